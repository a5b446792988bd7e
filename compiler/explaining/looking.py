"""Looking at a live graph: its nodes, what Inductor makes of each pair, and one fusion closely.

Everything that has to be asked while Inductor holds the graph is asked here. Generates no code and
times nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fusewise.compiler.explaining.counterfactual import (
    Question,
    change_plan,
    explain_change,
    resolve,
)
from fusewise.compiler.explaining.fusions import explain_fusions
from fusewise.compiler.explaining.kernels import View
from fusewise.compiler.explaining.report import (
    ExplainedEdge,
    ExplainedFusion,
    ExplainedNode,
    Why,
)
from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.fusion_trace import FusionTrace
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.source_lines import source_lines
from fusewise.compiler.survey import Predictor
from fusewise.schedule.errors import PlanError
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.problem import Problem
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Schedule, problem_key
from fusewise.search.legality import Legality
from fusewise.search.rules import RuledLegality, Rulings


@dataclass(frozen=True)
class Seen:
    """One plan of a live graph."""

    view: View
    nodes: tuple[ExplainedNode, ...]
    edges: tuple[ExplainedEdge, ...]


@dataclass(frozen=True)
class Looked:
    """All that is told of a live graph."""

    default: Seen
    #: The chosen plan; None where the chosen schedule makes other nodes.
    chosen: Seen | None
    trace: FusionTrace
    fusions: tuple[ExplainedFusion, ...]
    decisions: tuple[InliningDecision, ...]
    #: The fusion that is asked for, and the changed schedule where there is a legal one.
    why: Why | None = None
    changed: Schedule | None = None


class Looker:
    """Looks at the live graphs of one compile."""

    def __init__(
        self,
        predictor: Predictor,
        key: str,
        kind: Literal["forward", "backward", "inference"],
        question: Question | None,
    ) -> None:
        """Look at graphs.

        Args:
            predictor: of the device.
            key: of the compile's graph.
            kind: of that graph.
            question: the fusion to look at closely.
        """
        self._predictor, self._key, self._kind = predictor, key, kind
        self._question = question
        #: Why no graph has a fusion of the kind that is asked for, as the first one says; None
        #: where it is not known of one, or some graph has one.
        self.unresolved: PlanError | None = None

    def seen(self, live: LiveGraph, schedule: Schedule, origin: str) -> Seen:
        """The graph under a schedule whose choices it was lowered under."""
        problem = extract_problem(
            live.scheduler,
            live.nodes,
            key=problem_key(self._key, schedule.lowering),
            kind=self._kind,
        )
        plan = schedule.plan or live.default_plan
        lines = source_lines(live.nodes)
        view = View(
            origin,
            schedule_of((*schedule.lowering, *schedule.codegen), plan),
            problem,
            plan,
            lines,
            self._predictor.plans(problem),
        )
        return Seen(view, _nodes(problem, lines), _edges(problem))

    def replanned(self, seen: Seen, schedule: Schedule, origin: str) -> Seen:
        """The same nodes by another plan, that of a schedule without choices."""
        plan = schedule.plan or seen.view.plan
        view = dataclasses.replace(
            seen.view, origin=origin, schedule=schedule_of((), plan), plan=plan
        )
        return dataclasses.replace(seen, view=view)

    def look(
        self,
        live: LiveGraph,
        trace: FusionTrace,
        default: Seen,
        chosen: Seen | None,
        rules: RuleSet | None = None,
    ) -> Looked:
        """What became of each pair, and closely the fusion that is asked for.

        Args:
            live: as Inductor lowers it by itself.
            trace: how Inductor fused it.
            default: with Inductor's own plan.
            chosen: with the chosen one; None where the chosen schedule makes other nodes.
            rules: the user's, where they hold for it.
        """
        problem = default.view.problem
        rulings = None if rules is None else Rulings(problem, rules)
        fusions = explain_fusions(
            trace,
            default.view.plan,
            None if chosen is None else chosen.view.plan,
            default.view.cost,
            rulings,
        )
        why = changed = None
        if self._question is not None:
            view = (chosen or default).view
            why, changed = self._why(live, self._question, view, fusions, rulings)
        return Looked(default, chosen, trace, fusions, tuple(live.decisions), why, changed)

    def _why(
        self,
        live: LiveGraph,
        question: Question,
        view: View,
        fusions: Sequence[ExplainedFusion],
        rulings: Rulings | None,
    ) -> tuple[Why | None, Schedule | None]:
        try:
            a, b, fusion = resolve(question, view.problem, fusions, view.plan)
        except PlanError as error:
            self.unresolved = self.unresolved or error
            return None, None
        legality: Legality = InductorLegality(live)
        if rulings is not None:
            legality = RuledLegality(legality, rulings)
        change = change_plan(view.problem, view.plan, legality, view.cost, a, b)
        why = explain_change(a, b, question, fusion, change, view.plan, view.origin, view.cost)
        if change.plan is None:
            return why, None
        return why, schedule_of((*view.schedule.lowering, *view.schedule.codegen), change.plan)


def _nodes(problem: Problem, lines: dict[str, tuple[str, ...]]) -> tuple[ExplainedNode, ...]:
    return tuple(
        ExplainedNode(
            name=node.name,
            kind=node.kind,
            device=node.device,
            operators=node.origins,
            loops=node.ranges,
            reads=tuple(dict.fromkeys(access.buffer for access in node.reads)),
            writes=tuple(dict.fromkeys(access.buffer for access in node.writes)),
            bytes_read=sum(access.bytes for access in node.reads),
            bytes_written=sum(access.bytes for access in node.writes),
            source=", ".join(lines[node.name]),
            sources=lines[node.name],
            modules=tuple(dict.fromkeys(module for module in node.modules if module)),
            signature=node.signature,
        )
        for node in problem.nodes
    )


def _edges(problem: Problem) -> tuple[ExplainedEdge, ...]:
    return tuple(
        ExplainedEdge(
            producer=dep.producer,
            consumer=dep.consumer,
            buffer=dep.buffer,
            bytes=problem.buffer_by_name[dep.buffer].bytes
            if dep.buffer in problem.buffer_by_name
            else 0,
            weak=dep.weak,
        )
        for dep in problem.dependencies
    )
