"""A plan on a changed graph: the graph is lowered under the plan's choices, and what fits is kept.

Compiles nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusewise.compiler.carrying import Carried, carry_over
from fusewise.compiler.inductor.choices import is_known, schedule_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.schedule.errors import FusewiseError
from fusewise.schedule.plan_file import PlannedGraph
from fusewise.schedule.schedule import Choice, Schedule, problem_key
from fusewise.search.legality import Legality
from fusewise.search.rules import RuledLegality, Rulings


@dataclass(frozen=True)
class PartialPlan:
    """What of a plan holds for a changed graph."""

    schedule: Schedule
    carried: Carried
    lost_choices: tuple[str, ...]

    @property
    def told(self) -> str:
        """How much of it, in words."""
        carried = self.carried
        text = f"{len(carried.groups)} groups carried over, {len(carried.lost)} lost"
        return f"{text}, {len(self.lost_choices)} choices lost" if self.lost_choices else text


def partial_plan(graph: GraphCompile, planned: PlannedGraph, key: str) -> PartialPlan:
    """What of a plan holds for a changed graph: choices, and groups that match by signature.

    Choices about single nodes that are not there any more are left out, and so are those about
    kernels, which go by names that are of the other graph, and those of another version.
    """
    schedule = planned.schedule
    kernels = tuple(choice.name for choice in schedule.codegen if choice.of_part)
    every = (*schedule.lowering, *(c for c in schedule.codegen if not c.of_part))
    choices = tuple(choice for choice in every if is_known(choice))
    foreign = tuple(choice.name for choice in every if choice not in choices)
    lost: tuple[str, ...] = ()
    try:
        found = _partial_plan(graph, planned, key, choices)
    except FusewiseError:
        lost = tuple(choice.name for choice in choices if choice.of_part)
        if not lost:
            raise
        kept = tuple(choice for choice in choices if not choice.of_part)
        found = _partial_plan(graph, planned, key, kept)
    return PartialPlan(found.schedule, found.carried, (*foreign, *lost, *kernels))


def _partial_plan(
    graph: GraphCompile, planned: PlannedGraph, key: str, choices: tuple[Choice, ...]
) -> PartialPlan:
    found: list[Carried] = []

    def look(live: LiveGraph) -> None:
        problem = extract_problem(
            live.scheduler, live.nodes, key=problem_key(key, choices), kind=graph.kind
        )
        legality: Legality = InductorLegality(live)
        if graph.rules is not None:
            legality = RuledLegality(legality, Rulings(problem, graph.rules))
        found.append(carry_over(planned, problem, live.default_plan, legality))

    graph.survey(choices, look)
    return PartialPlan(schedule_of(choices, found[0].plan), found[0], ())
