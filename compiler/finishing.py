"""The last touch: what the cost model cannot see, tried on the schedule that was chosen.

Which launches are shared and how block sizes are found changes nothing that is predicted, so these
choices have no place in the first contest. They are tried in a second one on its winner, few where
a program waits for its compile. What is worth trying is the search room's to say, and the gate's is
the last word.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from fusewise.compiler.contest import generate_distinct, hold
from fusewise.compiler.inductor.blocks_ahead import compiling_s
from fusewise.compiler.inductor.choices import PRODUCTS
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.products import vector_products
from fusewise.compiler.measuring.client import running_process
from fusewise.compiler.measuring.job import GraphJob, GraphResult
from fusewise.compiler.notices import tell_once
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor, Survey, default_candidate, survey
from fusewise.schedule.errors import MeasureError, PlanError
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.beam import Budget
from fusewise.search.gate import GateResult, judge
from fusewise.search.offers import Offer, on_top

log = logging.getLogger(__name__)

_Entry = tuple[Candidate, Program]
#: Seconds that have to be left for a second contest to begin, and for one in which products are
#: sums: that is another lowering, whose kernels nobody has compiled.
SECOND_S, PRODUCTS_S = 3.0, 4.0
#: Seconds that a second contest is given: there are few candidates, and all is known by then.
_CONTEST_S = 12.0
#: Times that it takes to compile the block sizes of a kernel that there have to be for each that is
#: tuned step by step: all of them are waited for, and then timed.
_DESCENTS = 2.0
#: Part of a graph's time that products with a vector have to take.
_PRODUCTS_SHARE = 0.1
#: Seconds for the search of plans where they are sums.
_SEARCH_S = 1.0


def may_finish(surveys: Sequence[Survey], predictor: Predictor, graph: GraphCompile) -> bool:
    """Whether a second contest may follow: whether one would if the default is kept."""
    offers = _offers(surveys, predictor, default_candidate(surveys).schedule, SECOND_S)
    return bool(offers) or products_count(surveys, predictor, graph)


def first_offers(
    surveys: Sequence[Survey], predictor: Predictor, schedule: Schedule, descents: int
) -> list[Offer]:
    """What is to be tried on top of a schedule, the most promising first.

    No block sizes where those are tuned when kernels run: they need no contest then.

    Args:
        surveys: of the graph.
        predictor: that they rest on.
        schedule: of a plan that is in one of them.
        descents: different kernels to tune by coordinate descent, at most.
    """
    if schedule.plan is None:
        return []
    for found in surveys:
        if any(schedule.same_but_kernels(c.schedule) for c in found.candidates):
            finishes = predictor.finishes(schedule.plan, found.problem)
            offers = finishes.few(descents, blocks=not predictor.tunes)
            new = (_without(offer, schedule.codegen) for offer in offers)
            return [offer for offer in new if offer.choices]
    return []


def _without(offer: Offer, codegen: Sequence[Choice]) -> Offer:
    """What of an offer is new to a schedule with these choices."""
    known = {choice.name for choice in codegen}
    return replace(offer, choices=tuple(c for c in offer.choices if c.name not in known))


def let_go(job: GraphJob) -> None:
    """Have the measuring process forget a graph that no second contest follows for."""
    process = running_process(job.device)
    if process is None:
        return
    try:
        process.let_go()
    except MeasureError as error:
        # It is gone, and its memory with it.
        log.debug("the measuring process: %s", error)


def finish(
    report: GraphReport,
    entries: Sequence[_Entry],
    surveys: Sequence[Survey],
    predictor: Predictor,
    graph: GraphCompile,
    job: GraphJob,
    seconds: float,
) -> dict[str, float]:
    """Try a few more choices on what the report says is chosen, and take them if they are faster.

    The measuring process is to have kept the graph. Where nothing is tried it lets go of it.

    Args:
        report: with the outcome of the first contest, which is carried on.
        entries: its candidates with their programs, the default first.
        surveys: of the graph.
        predictor: that they rest on.
        graph: the graph.
        job: as the measuring process knows it.
        seconds: that may be spent.

    Returns:
        The conditions under which times were taken; empty where none were.
    """
    chosen = report.chosen
    assert chosen is not None
    standing = next(e for e in entries if e[0].schedule == chosen.schedule)
    # Without it the measuring process has not kept the graph.
    made: list[_Entry] = []
    if may_finish(surveys, predictor, graph):
        with report.phase("generate"):
            candidates = _candidates(report, surveys, predictor, graph, job, seconds)
            made, dropped = generate_distinct(graph, entries[0][1], candidates, len(candidates))
            report.candidates += dropped
    if not made:
        let_go(job)
        return {}
    rivals = [entries[0]] if standing is entries[0] else [entries[0], standing]
    try:
        with report.phase("finish"):
            result = hold(job, [*rivals, *made], min(seconds, _CONTEST_S))
    except MeasureError as error:
        # What was chosen stands.
        tell_once(f"choices about kernels were not tried: {error}")
        return {}
    report.seconds |= {f"finish.{name}": value for name, value in result.seconds.items()}
    settle_finish(report, [candidate for candidate, _ in (*rivals, *made)], len(rivals), result)
    return result.conditions


def _offers(
    surveys: Sequence[Survey], predictor: Predictor, schedule: Schedule, seconds: float
) -> list[Offer]:
    if seconds < SECOND_S:
        return []
    return first_offers(surveys, predictor, schedule, _descents(seconds))


def _descents(seconds: float) -> int:
    return int(min(seconds / (_DESCENTS * compiling_s()), 1e6))


def finished(chosen: Candidate, offer: Offer) -> Candidate:
    """The candidate with an offer on top; the prediction is that of what it is based on."""
    schedule = chosen.schedule
    return Candidate(
        schedule=msgspec.structs.replace(schedule, codegen=on_top(schedule.codegen, offer)),
        origin="finish",
        groups=chosen.groups,
        predicted_us=chosen.predicted_us,
        predicted_low_us=chosen.predicted_low_us,
        predicted_high_us=chosen.predicted_high_us,
        reason=offer.reason,
    )


def _candidates(
    report: GraphReport,
    surveys: Sequence[Survey],
    predictor: Predictor,
    graph: GraphCompile,
    job: GraphJob,
    seconds: float,
) -> list[Candidate]:
    """Two candidates at most."""
    chosen = report.chosen
    assert chosen is not None
    made = left_to_try(report, surveys, predictor, seconds)
    if seconds < PRODUCTS_S or not products_count(surveys, predictor, graph) or _in_vain(report):
        return made
    lowering = chosen.schedule.lowering
    sums = with_sums(predictor, graph, job.graph_id, lowering, _descents(seconds))
    return made if sums is None else [*made[:1], sums[1]]


def left_to_try(
    report: GraphReport, surveys: Sequence[Survey], predictor: Predictor, seconds: float
) -> list[Candidate]:
    """What may still be tried on top of what the report says is chosen, in so many seconds."""
    chosen = report.chosen
    assert chosen is not None
    offers = _offers(surveys, predictor, chosen.schedule, seconds)
    known = {candidate.schedule for candidate in report.candidates}
    made = (finished(chosen, offer) for offer in offers)
    return [candidate for candidate in made if candidate.schedule not in known]


def _in_vain(report: GraphReport) -> bool:
    """Whether products are sums in what was timed, and that was not what is chosen."""
    assert report.chosen is not None
    timed = [c for c in report.candidates if c.status != "predicted" and _has_sums(c)]
    return _has_sums(report.chosen) or any(not c.accepted for c in timed)


def _has_sums(candidate: Candidate) -> bool:
    return any(choice.name == PRODUCTS for choice in candidate.schedule.lowering)


def with_sums(
    predictor: Predictor,
    graph: GraphCompile,
    key: str,
    lowering: Sequence[Choice],
    descents: int,
) -> tuple[Survey, Candidate] | None:
    """The graph with products with a vector as sums, and its best plan with kernels tuned.

    None where Inductor fails at it.

    Args:
        predictor: to search plans with.
        graph: the graph.
        key: of it.
        lowering: other choices that it is lowered under.
        descents: different kernels to tune by coordinate descent, at most.
    """
    try:
        found = survey(
            graph,
            predictor,
            key=key,
            kind=graph.kind,
            choices=(*lowering, Choice(PRODUCTS, True)),
            budget=Budget(seconds=_SEARCH_S),
        )
    except (PlanError, RuntimeError) as error:
        # Inductor may fail at what it does not meet by itself.
        log.debug("products as sums cannot be: %s", error)
        return None
    best = found.candidates[0]
    assert best.schedule.plan is not None
    tuned = predictor.finishes(best.schedule.plan, found.problem).tuned(descents)
    offer = tuned or Offer((), 0.0, "")
    why = "; ".join(filter(None, ("products with a vector are sums", offer.reason)))
    return found, msgspec.structs.replace(finished(best, offer), reason=why)


def products_count(surveys: Sequence[Survey], predictor: Predictor, graph: GraphCompile) -> bool:
    """Whether products with a vector take enough of the time to be computed as sums.

    What a library takes for them is hardly known, so no prediction could tell.
    """
    profile = predictor.profile
    if profile.kind != "cuda" or graph.rules is not None:
        return False
    # GB/s are 10^3 bytes a microsecond.
    us = vector_products(graph.gm) / (profile.copy_gbs * 1e3)
    return us > _PRODUCTS_SHARE * surveys[0].best_us


def settle_finish(
    report: GraphReport, candidates: Sequence[Candidate], rivals: int, result: GraphResult
) -> None:
    """Judge the second contest and carry its outcome into the report.

    What stood after the first contest has to win again. What is built on it takes its place only
    if it is faster than that, too: a schedule that says more has to be worth it.

    Args:
        report: with the outcome of the first contest.
        candidates: those of the second one: the default, what stood if that is another one, and
            what is built on it.
        rivals: how many of them were there before: one or two.
        result: what was measured.
    """
    programs = result.programs
    if programs[0].failure:
        tell_once(f"Inductor's own program failed when it was timed again: {programs[0].failure}")
        return
    times = [program.samples for program in programs]
    errors = [program.errors for program in programs]
    gate = judge(times, errors, resolutions=result.resolutions)
    marked = [
        msgspec.structs.replace(
            candidate,
            error=max(program.errors, default=None),
            **({"status": "failed", "reason": program.failure} if program.failure else {}),
        )
        for candidate, program in zip(gate.mark(candidates, times), programs, strict=True)
    ]
    best = gate.chosen
    if rivals > 1 and gate.rulings[1].accepted:
        # Errors are held against the default's, times against those of what stood.
        over = judge(
            [times[1], *times[rivals:]],
            [errors[0], *errors[rivals:]],
            resolutions=result.resolutions,
        )
        marked[rivals:] = _not_better(marked[rivals:], over)
        best = rivals + over.chosen - 1
        if over.chosen == 0 or not marked[best].accepted:
            best = 1
    report.candidates = _carried(report.candidates, marked, rivals)
    chosen = marked[best].schedule
    report.chosen = next(c for c in report.candidates if c.schedule == chosen)
    report.source = "measured"


def _not_better(marked: Sequence[Candidate], over: GateResult) -> list[Candidate]:
    """Candidates, those that do not beat what they are built on with that as the reason."""
    return [
        candidate
        if ruling.accepted or not candidate.accepted
        else msgspec.structs.replace(
            candidate,
            accepted=False,
            reason=f"not faster than what it is built on: {ruling.reason}",
        )
        for candidate, ruling in zip(marked, over.rulings[1:], strict=True)
    ]


def _carried(
    before: Sequence[Candidate], marked: Sequence[Candidate], rivals: int
) -> list[Candidate]:
    """The candidates of both contests, times brought to the default's in the first one.

    Drift from one contest to the next hits the default alike.
    """
    again = {candidate.schedule: candidate for candidate in marked[:rivals]}
    default = next(c for c in before if c.baseline)
    own = again[default.schedule]
    scale = 1.0
    if default.measured_us is not None and own.measured_us is not None:
        scale = default.measured_us / own.measured_us
    kept = []
    for candidate in before:
        second = again.get(candidate.schedule)
        if second is None:
            kept.append(candidate)
        elif candidate.measured_us is None:
            kept.append(second)
        elif not second.accepted:
            kept.append(
                msgspec.structs.replace(
                    candidate, accepted=False, reason=f"timed again: {second.reason}"
                )
            )
        else:
            kept.append(candidate)
    return [*kept, *(_scaled(candidate, scale) for candidate in marked[rivals:])]


def _scaled(candidate: Candidate, scale: float) -> Candidate:
    us = candidate.measured_us
    return msgspec.structs.replace(candidate, measured_us=None if us is None else us * scale)
