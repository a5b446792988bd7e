"""What of a graph's surveys is worth timing, in which order, and what it promises together.

Predictions order and bound; nothing is generated or timed here, and no clock plays a part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusewise.compiler.finishing import finished
from fusewise.compiler.survey import Predictor, Survey
from fusewise.costmodel.gains import PROBED, Kernel, difference, kinds_of
from fusewise.schedule.problem import group_signature
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.gate import MARGIN
from fusewise.search.offers import Offer

#: Part of the time of a Triton kernel that other block sizes may take off, which no prediction
#: sees; of one that takes so many launches' time.
_BY_BLOCKS, _BARE = 0.15, 4.0
#: Of what is to be saved by what would be taken without a contest, what no contest is promised: how
#: much of it comes true, and whether something else saves as much, only one can tell. And the part
#: of a graph's time that counts as promised in any case where more is.
_TRUSTED, _CHECKED = 0.5, 0.02

#: What a plan is predicted to save beyond this part of a graph's time counts as promised, however
#: unsure the prediction is: half of such plans are faster.
_UNSURE = 0.3

#: What is to be tried on a candidate's plan, the most promising first, by what is promised.
Offers = Callable[[Candidate, float], Sequence[Offer]]


@dataclass(frozen=True)
class Asked:
    """What is worth timing."""

    #: In the order in which it is to be tried.
    candidates: tuple[Candidate, ...]
    #: Part of the graph's time that it might gain, by the lower ends of predictions or by rules,
    #: beyond half of what is to be gained without a contest.
    promise: float
    #: Plans that could not gain what the gate asks for if all predictions were off by as much as
    #: they may be.
    hopeless: int
    #: Microseconds that each candidate is expected to save.
    saved_us: Mapping[Schedule, float]

    def beginning_with(self, candidate: Candidate) -> Asked:
        """The same, with a candidate first."""
        others = (one for one in self.candidates if one.schedule != candidate.schedule)
        return replace(self, candidates=(candidate, *others))

    def favourite(self, among: Sequence[Candidate]) -> Candidate:
        """The one that is expected to save most; of equals the first."""
        return max(among, key=lambda candidate: self.saved_us.get(candidate.schedule, 0.0))


def worth_timing(
    default: Candidate,
    listed: Sequence[Candidate],
    surveys: Sequence[Survey],
    predictor: Predictor,
    offers: Offers,
    foreseen: float,
) -> Asked:
    """Sort out which candidates are worth it.

    Args:
        default: Inductor's own.
        listed: other plans, the best predicted first.
        surveys: that they come from, that under Inductor's own choices first.
        predictor: that they rest on.
        offers: see :data:`Offers`.
        foreseen: part of the graph's time that what is taken without a contest is to save.
    """
    bounds = _bounds_of(default, listed, surveys, predictor)
    own_us = default.predicted_us or 0.0
    # What takes no time has nothing to gain.
    hopeful = [c for c in listed if own_us and bounds[c.schedule].most >= MARGIN]
    gaining = [c for c in hopeful if (c.predicted_us or own_us) < own_us]
    saved = {c.schedule: own_us - (c.predicted_us or own_us) for c in hopeful}
    sure = max((bounds[c.schedule].sure for c in hopeful), default=0.0)
    promised = [(o.gain_us - o.sure_us) / own_us for o in offers(default, sure) if own_us]
    if predictor.profile.kind == "cuda" and not predictor.tunes:
        promised.append(_by_blocks(default, surveys[0], predictor))
    likely = [us / own_us - _UNSURE for us in saved.values()]
    most = max([0.0, sure, *promised, *likely])
    promise = max(most - _TRUSTED * foreseen, min(most, _CHECKED))

    def finish(candidate: Candidate) -> list[tuple[Candidate, Offer]]:
        made = [(finished(candidate, offer), offer) for offer in offers(candidate, promise)]
        for one, offer in made:
            saved[one.schedule] = saved.get(candidate.schedule, 0.0) + offer.gain_us
        return made

    tried = [one for one, _ in finish(default)]
    first = [*gaining[:1], *_by_experience(surveys, hopeful)[:1]]
    ahead, both = [], []
    # Often one is both.
    for candidate in {one.schedule: one for one in first}.values():
        made = finish(candidate)[:1]
        # What makes nothing slower is part of whatever is timed.
        ahead += [one for one, offer in made if offer.sure_us >= offer.gain_us] or [candidate]
        both += [one for one, _ in made if candidate in gaining[:1]]
    if predictor.profile.kind == "cuda" and not predictor.tunes:
        # Block sizes: predictions say nothing of them, and they are most likely to pay.
        ahead = [*tried[:1], *ahead, *both]
    else:
        # One of each kind, that first which is expected to save most: there may be time for one.
        ahead = sorted([*ahead, *tried[:1], *both], key=lambda c: -saved[c.schedule])
    distinct = {c.schedule: c for c in (*ahead, *tried[1:], *hopeful)}
    return Asked(tuple(distinct.values()), promise, len(listed) - len(hopeful), saved)


def _by_experience(surveys: Sequence[Survey], hopeful: Sequence[Candidate]) -> list[Candidate]:
    """The best plan under each set of choices, in the order in which these were looked at."""
    found = []
    for survey in surveys[1:]:
        of_survey = set(survey.candidates)
        found += [candidate for candidate in hopeful if candidate in of_survey][:1]
    return found


@dataclass(frozen=True)
class _Bounds:
    """What a candidate gains of the default's time, by the ends of the intervals."""

    sure: float
    most: float


def _bounds_of(
    default: Candidate,
    listed: Sequence[Candidate],
    surveys: Sequence[Survey],
    predictor: Predictor,
) -> dict[Schedule, _Bounds]:
    of_default = surveys[0].kernels(default, predictor)
    total = default.predicted_us or 1.0
    found: dict[Schedule, _Bounds] = {}
    wanted = {candidate.schedule for candidate in listed}
    for survey in surveys:
        for candidate in survey.candidates:
            if candidate.schedule not in wanted:
                continue
            if candidate.schedule.codegen:
                # No prediction tells of these: as much as there is in generated kernels.
                most = _generated_share(default, surveys[0], predictor)
                found[candidate.schedule] = _Bounds(0.0, most)
                continue
            kernels = survey.kernels(candidate, predictor)
            found[candidate.schedule] = _bounds(of_default, kernels, total, _caution(candidate))
    return found


def _bounds(
    default: Counter[Kernel], candidate: Counter[Kernel], total_us: float, caution: float
) -> _Bounds:
    """``caution``: half intervals that are held against what is sure."""
    only_default, only_candidate = default - candidate, candidate - default
    sure = difference(default, candidate).at_least(caution)
    most = sum(k.high_us * n for k, n in only_default.items()) - sum(
        k.low_us * n for k, n in only_candidate.items()
    )
    return _Bounds(sure / total_us, most / total_us)


def _generated_share(default: Candidate, survey: Survey, predictor: Predictor) -> float:
    """Part of the predicted time that is in generated kernels."""
    return sum(us for _, us in _generated(default, survey, predictor)) / (
        default.predicted_us or 1.0
    )


def _by_blocks(default: Candidate, survey: Survey, predictor: Predictor) -> float:
    """Part of the predicted time that other block sizes may take off.

    Where little is expected of them, other plans and choices may gain by as much: what is promised
    here is time to try them, too.
    """
    long_us = _BARE * predictor.profile.launch_us
    saved_us = 0.0
    for signature, us in _generated(default, survey, predictor):
        by_rule = _BY_BLOCKS if us >= long_us else 0.0
        saved_us += max(predictor.savings.get(signature, 0.0), by_rule) * us
    return saved_us / (default.predicted_us or 1.0)


def _generated(
    default: Candidate, survey: Survey, predictor: Predictor
) -> Iterator[tuple[str, float]]:
    """Signature and predicted time of each generated kernel."""
    plan = default.schedule.plan
    assert plan is not None
    for group in predictor.plans(survey.problem).breakdown(plan):
        kinds = {survey.problem.node_by_name[name].kind for name in group.names}
        if not kinds <= {"extern", "nop"}:
            yield group_signature(survey.problem, group.names), group.us


def _caution(candidate: Candidate) -> float:
    """Half intervals to hold against a gain: fewer where the same products are computed."""
    kinds = kinds_of(candidate.schedule.lowering, candidate.schedule.codegen, own_plan=True)
    probed = [PROBED[kind].caution if kind in PROBED else 1.0 for kind in kinds]
    return max(probed, default=1.0)
