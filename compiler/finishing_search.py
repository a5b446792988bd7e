"""The last touch where there is time for it: each choice by itself, then the good ones together.

What is tried online in one contest and by rule is tried here one by one, on the best schedule that
a search has found. Times and judges through the search's own contests; what it finds is among what
they timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fusewise.compiler.contest import generate_distinct
from fusewise.compiler.finishing import finished
from fusewise.compiler.inductor.choices import stage_of, unpredictable
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import LiveGraph, Program
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate, Schedule, problem_key
from fusewise.search.finishing import Finishes
from fusewise.search.offers import Offer

_Entry = tuple[Candidate, Program]
#: Times candidates against the default, given how many seconds it may take.
Contest = Callable[[Sequence[_Entry], float], GraphReport]

#: By how much, relative, a choice has to make a schedule faster to be put together with others.
_GAIN = 0.005


def finish_search(
    graph: GraphCompile,
    default: Program,
    best: Candidate,
    predictor: Predictor,
    *,
    key: str,
    contest: Contest,
    default_us: float,
    together: int,
    contest_s: float,
    until: float,
) -> None:
    """Try all that may be tried on ``best``, then put together what gained.

    Args:
        graph: the graph.
        default: Inductor's own program.
        best: what is to be built on, with its measured time in microseconds.
        predictor: of its kernels.
        key: of the graph.
        contest: see :data:`Contest`.
        default_us: of Inductor's own, on the scale of ``best``.
        together: candidates in one contest.
        contest_s: seconds for one.
        until: moment of the monotonic clock after which none begins.
    """
    if best.schedule.plan is None or best.measured_us is None:
        return
    standing_at = best.measured_us / default_us
    cost = _cost(graph, best.schedule, predictor, key)
    own = {c.name for c in best.schedule.codegen}
    kind = predictor.profile.kind
    whole = [
        choices
        for choices in unpredictable(kind)
        # A lowering choice makes other nodes, for which the plan is none.
        if all(stage_of(c) == "codegen" and c.name not in own for c in choices)
    ]
    offers = Finishes(best.schedule.plan, cost).every(whole)
    gained: list[tuple[float, Offer]] = []
    for start in range(0, len(offers), together):
        part = offers[start : start + together]
        times = _tried(graph, default, best, part, contest, contest_s, until)
        gained += [(ratio, offer) for ratio, offer in times if ratio < standing_at * (1 - _GAIN)]
    gained.sort(key=lambda pair: (pair[0], pair[1].choices))
    standing, combined = Offer((), 0.0, ""), []
    for _, offer in gained:
        if _apart(standing, offer):
            standing = standing + offer if standing.choices else offer
            combined.append(standing)
    # The first of them was timed already.
    _tried(graph, default, best, combined[1 : together + 1], contest, contest_s, until)


def _cost(graph: GraphCompile, schedule: Schedule, predictor: Predictor, key: str) -> PlanCost:
    found: list[PlanCost] = []

    def visit(live: LiveGraph) -> None:
        problem = extract_problem(
            live.scheduler,
            live.nodes,
            key=problem_key(key, schedule.lowering),
            kind=graph.kind,
        )
        found.append(predictor.plans(problem))

    graph.survey((*schedule.lowering, *schedule.codegen), visit)
    return found[0]


def _tried(
    graph: GraphCompile,
    default: Program,
    best: Candidate,
    offers: Sequence[Offer],
    contest: Contest,
    seconds: float,
    until: float,
) -> list[tuple[float, Offer]]:
    """Offers that are accepted, each with its time over the default's."""
    if not offers or time.monotonic() > until:
        return []
    by_schedule = {finished(best, offer).schedule: offer for offer in offers}
    candidates = [finished(best, offer) for offer in offers]
    pairs, _ = generate_distinct(graph, default, candidates, len(candidates))
    if not pairs:
        return []
    try:
        outcome = contest(pairs, seconds)
    except MeasureError:
        # A candidate that breaks the process costs those beside it their try, and nobody else.
        return []
    own_us = outcome.candidates[0].measured_us
    assert own_us is not None
    return [
        (candidate.measured_us / own_us, by_schedule[candidate.schedule])
        for candidate in outcome.candidates
        if candidate.accepted
        and candidate.measured_us is not None
        and candidate.schedule in by_schedule
    ]


def _apart(standing: Offer, offer: Offer) -> bool:
    """Whether two offers say nothing of the same kernel in the same respect."""
    return not _said(standing) & _said(offer)


def _said(offer: Offer) -> set[str]:
    said: set[str] = set()
    for choice in offer.choices:
        kind, colon, node = choice.name.partition(":")
        others = str(choice.value).split() if kind == "combo" and colon else []
        said |= {f"{kind}{colon}{name}" for name in (node, *others)}
    return said
