"""Choosing by prediction alone: what is taken where nothing is measured.

What may be taken, and how sure it has to be, is the record's to say that came with the model:
``costmodel/gains.py``. Nothing is compiled or timed here, and no clock plays a part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor, Survey, default_candidate
from fusewise.costmodel.gains import (
    LEAST_LAUNCHES,
    LEAST_SHARE,
    Difference,
    Gains,
    difference,
    gains_of,
    kinds_of,
    sure_total,
)
from fusewise.schedule.kernel_choices import combos
from fusewise.schedule.schedule import Candidate
from fusewise.search.offers import Offer, on_top
from fusewise.search.shortlist import shortlist

#: Candidates that are told of, Inductor's own included.
_TOLD = 8


@dataclass(frozen=True)
class _Foreseen:
    """A candidate with what is predicted to come of it."""

    candidate: Candidate
    survey: Survey
    gain: Difference
    #: Microseconds that it saves with the caution that it asks for; None where it is never taken.
    surely_us: float | None
    #: Why it is taken, or is not.
    reason: str


def choose_predicted(
    report: GraphReport,
    surveys: Sequence[Survey],
    predictor: Predictor,
    *,
    launches: bool = True,
    read: Callable[[Survey], Mapping[str, float]] | None = None,
) -> float:
    """Take the candidate that surely saves most, else Inductor's own; then share launches.

    Args:
        report: is told what was chosen and why.
        surveys: of the graph, that under Inductor's own choices first.
        predictor: that they rest on.
        launches: whether small kernels may share launches.
        read: what other block sizes are expected to save of the kernels of a survey under other
            choices; None where they are not to be read.

    Returns:
        Part of the graph's predicted time that what was taken is to save, but for what is sure.
    """
    gains = gains_of(predictor.model, predictor.profile.kind)
    default = default_candidate(surveys)
    assert default.schedule.plan is not None
    costs = predictor.plans(surveys[0].problem)
    total_us = sure_total(costs.breakdown(default.schedule.plan))
    found = _foreseen(surveys, default, predictor, gains, total_us)
    best = max(
        (one for one in found if one.surely_us is not None),
        key=lambda one: (one.surely_us, one.candidate.schedule.id),
        default=None,
    )
    base = own = found[0]
    tuning, known = _tuning(own, predictor), predictor
    if best is not None:
        savings = {} if read is None or best.survey is surveys[0] else read(best.survey)
        knowing = replace(predictor, savings={**savings, **predictor.savings})
        other = _tuning(best, knowing)
        # Its kernels may be the faster ones and leave less to be tuned, or more.
        if _saved_us(best, other) > _saved_us(own, tuning):
            base, tuning, known = best, other, knowing
    finished = None
    if launches:
        finished = _in_common_launches(base, predictor, gains, total_us)
    if finished is None:
        finished = _rewritten(base, predictor)
    shared, saved_us = finished or (None, 0.0)
    untuned = shared or base.candidate
    if predictor.tunes:
        tuning = _tuning(base, known, heavy=True, sets=combos(untuned.schedule.codegen))
    tuned = None if tuning is None else _tuned(untuned, tuning, total_us)
    chosen = tuned or untuned
    others = [c for c in (untuned, base.candidate) if c not in (chosen, default)]
    report.instead = next(iter(others), None)
    listed = shortlist(default, [one.candidate for one in found], _TOLD)
    reasons = {one.candidate.schedule: one.reason for one in found}
    if best is not None and base is own:
        reasons[best.candidate.schedule] += ", less than other block sizes of the compiler's own"
    told = [default, *(c for c in (tuned, shared) if c is not None)]
    told += [] if base is own else [base.candidate]
    told += [c for c in listed if c.schedule not in {t.schedule for t in told}]
    report.candidates = [
        msgspec.structs.replace(
            candidate,
            accepted=candidate.schedule == chosen.schedule,
            reason=reasons.get(candidate.schedule, candidate.reason),
        )
        for candidate in told[:_TOLD]
    ]
    report.chosen = next(c for c in report.candidates if c.accepted)
    report.source = "predicted"
    return (saved_us + _saved_us(base, tuning)) / total_us if total_us else 0.0


def _foreseen(
    surveys: Sequence[Survey],
    default: Candidate,
    predictor: Predictor,
    gains: Gains,
    total_us: float,
) -> list[_Foreseen]:
    """All candidates, the default first."""
    own = surveys[0].kernels(default, predictor)
    reason = "the compiler's own schedule"
    found = [_Foreseen(default, surveys[0], Difference(0.0, 0.0), None, reason)]
    wanted = {*default.schedule.lowering, *default.schedule.codegen}
    for survey in surveys:
        for candidate in survey.candidates:
            if candidate is default:
                continue
            schedule = candidate.schedule
            kinds = kinds_of(
                # What rules want is the default's, too.
                [choice for choice in schedule.lowering if choice not in wanted],
                [choice for choice in schedule.codegen if choice not in wanted],
                own_plan=schedule.plan == survey.default_plan,
            )
            gain = difference(own, survey.kernels(candidate, predictor))
            demand = gains.asked(kinds)
            surely, reason = None, f"saves {gain.saved_us:.1f} us of {total_us:.1f} by prediction"
            if demand is None:
                reason += "; of its kind nothing is taken without being measured"
            elif gain.saved_us < demand.share * total_us:
                reason += ", too little to be sure of"
            elif demand.surely_us(gain, total_us) <= 0.0:
                reason += f", give or take {gain.unsure_us:.1f}: not sure enough"
            else:
                surely = demand.surely_us(gain, total_us)
            found.append(_Foreseen(candidate, survey, gain, surely, reason))
    return found


def _rewritten(base: _Foreseen, predictor: Predictor) -> tuple[Candidate, float] | None:
    """``base`` with C++ kernels written otherwise, and microseconds that this might save.

    None where that is too little. What is sure to be saved is not counted.

    What changes no result is only faster. Functions that are written out are as exact as
    the library's, and where they were timed nothing was slower beyond noise
    (``docs/kernel-choices.md``): no contest is needed for what the calls cost.
    """
    plan = base.candidate.schedule.plan
    assert plan is not None
    if predictor.profile.kind != "cpu":
        return None
    finishes = predictor.finishes(plan, base.survey.problem)
    offer = finishes.cpp.sure()
    if offer is None:
        return None
    schedule = base.candidate.schedule
    codegen = on_top(schedule.codegen, offer)
    candidate = msgspec.structs.replace(
        base.candidate,
        schedule=msgspec.structs.replace(schedule, codegen=codegen),
        origin="rewritten",
        reason=f"{offer.reason}: saves {offer.gain_us:.1f} us of {finishes.total_us:.1f} "
        "by prediction",
    )
    return candidate, offer.gain_us - offer.sure_us


def _tuning(
    foreseen: _Foreseen,
    predictor: Predictor,
    *,
    heavy: bool = False,
    sets: Sequence[Sequence[str]] = (),
) -> Offer | None:
    """Block sizes of kernels of a candidate to tune; None where that is to save too little.

    Each kernel is timed with few block sizes, the compiler's own among them, where it runs: a
    prediction that fails costs the time of trying. So does trying what is ``heavy``, of which
    little is predicted.
    """
    plan = foreseen.candidate.schedule.plan
    assert plan is not None
    if not predictor.savings or foreseen.survey.rules is not None:
        return None
    finishes = predictor.finishes(plan, foreseen.survey.problem)
    return finishes.tuned_by_prediction(LEAST_SHARE, heavy=heavy, sets=sets)


def _saved_us(foreseen: _Foreseen, tuning: Offer | None) -> float:
    """Microseconds that a candidate saves with kernels of it tuned."""
    return (foreseen.surely_us or 0.0) + (0.0 if tuning is None else tuning.gain_us)


def _tuned(candidate: Candidate, tuning: Offer, total_us: float) -> Candidate:
    """``candidate`` with block sizes of its kernels tuned."""
    schedule = candidate.schedule
    return msgspec.structs.replace(
        candidate,
        schedule=msgspec.structs.replace(schedule, codegen=on_top(schedule.codegen, tuning)),
        origin="blocks",
        reason=f"{tuning.reason}: saves {tuning.gain_us:.1f} us of {total_us:.1f} by prediction",
    )


def _in_common_launches(
    base: _Foreseen, predictor: Predictor, gains: Gains, total_us: float
) -> tuple[Candidate, float] | None:
    """``base`` with small kernels in common launches, and microseconds that this saves.

    None where that is too little. What a user's rules keep apart is not looked into: under rules
    nothing is put together.
    """
    plan = base.candidate.schedule.plan
    assert plan is not None
    may = predictor.profile.kind == "cuda" and gains.may(["launches"])
    if not may or base.survey.rules is not None:
        return None
    offers = predictor.finishes(plan, base.survey.problem).each_together(sure=True)
    most_us = sum(offer.gain_us for offer in offers)
    saved_us = gains.launch_share * most_us
    if not offers or saved_us < LEAST_LAUNCHES * total_us:
        return None
    schedule = base.candidate.schedule
    codegen = schedule.codegen
    for offer in offers:
        codegen = on_top(codegen, offer)
    names = sum(len(str(choice.value).split()) + 1 for o in offers for choice in o.choices)
    us, low, high = (
        base.candidate.predicted_us,
        base.candidate.predicted_low_us,
        base.candidate.predicted_high_us,
    )
    candidate = msgspec.structs.replace(
        base.candidate,
        schedule=msgspec.structs.replace(schedule, codegen=codegen),
        origin="launches",
        predicted_us=None if us is None else us - saved_us,
        predicted_low_us=None if low is None else min(low, low - most_us),
        predicted_high_us=high,
        reason=f"{names} small kernels in {len(offers)} launches save {saved_us:.1f} us of "
        f"{total_us:.1f} by prediction",
    )
    return candidate, saved_us
