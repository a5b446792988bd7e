"""Which plans of a problem are worth collecting: those whose groups nobody has timed.

Chance proposes and coverage chooses; with a cost model, so do its doubts and its hopes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from fusewise.compiler.survey import Predictor
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem, group_signature
from fusewise.search.legality import Legality
from fusewise.search.random_plan import random_plan

#: Random plans that are drawn for each one that is taken.
_DRAWN_EACH = 4
#: Share of the plans that the active strategy takes for being fast; the rest for doubt.
_HOPEFUL = 0.5


def generated(problem: Problem, plan: Plan) -> dict[str, tuple[str, ...]]:
    """The groups of ``plan`` that become generated kernels, by signature."""
    return {
        group_signature(problem, group): group
        for group in plan.groups
        if problem.node_by_name[group[0]].fusible
    }


def covering_plans(
    problem: Problem,
    legality: Legality,
    generator: random.Random,
    most: int,
    *,
    known: Iterable[str],
    predictor: Predictor | None = None,
) -> list[Plan]:
    """At most ``most`` random legal plans, each with groups that none before it has.

    Args:
        problem: the graph, with its possible fusions.
        legality: the compiler's rules.
        generator: source of chance.
        most: plans wanted.
        known: signatures of groups that need no further timing.
        predictor: a cost model, for the active strategy: half of the plans are those predicted to
            be fastest, half those with the widest intervals among groups not yet known.
    """
    if most == 0 or not problem.possible_fusions:
        return []
    drawn = {random_plan(problem, legality, generator): None for _ in range(_DRAWN_EACH * most)}
    offered = [(plan, frozenset(generated(problem, plan))) for plan in drawn]
    seen = set(known)
    if predictor is None:
        return _greedy(offered, seen, most)
    hopeful = round(_HOPEFUL * most)
    costs = predictor.plans(problem)
    by_time = sorted(offered, key=lambda o: costs.plan(o[0]).us)
    taken = [plan for plan, _ in by_time[:hopeful]]
    doubts = {}
    for plan, _ in by_time[hopeful:]:
        doubts[plan] = sum(
            group.high_us - group.low_us
            for group in costs.breakdown(plan)
            if group_signature(problem, group.names) not in seen
        )
    return [*taken, *sorted(doubts, key=lambda plan: -doubts[plan])[: most - hopeful]]


def _greedy(
    offered: Sequence[tuple[Plan, frozenset[str]]], seen: set[str], most: int
) -> list[Plan]:
    """Again and again the plan with the most groups that are new."""
    left = list(offered)
    taken: list[Plan] = []
    while left and len(taken) < most:
        best = max(left, key=lambda o: len(o[1] - seen))
        if not best[1] - seen:
            break
        left.remove(best)
        taken.append(best[0])
        seen |= best[1]
    return taken
