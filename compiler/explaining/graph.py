"""Explaining one graph where Inductor compiles it: lowered several times, and timed where asked.

Knows nothing of the program that the graph is part of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fusewise.compiler.contest import announce, graph_job, hold
from fusewise.compiler.explaining.candidates import (
    completed,
    explained_candidates,
    find_chosen,
    time_candidates,
)
from fusewise.compiler.explaining.counterfactual import (
    Question,
    change_plan,
    explain_change,
    resolve,
)
from fusewise.compiler.explaining.fusions import explain_fusions
from fusewise.compiler.explaining.kernels import Kernels, View, explained_plan
from fusewise.compiler.explaining.report import (
    ExplainedEdge,
    ExplainedGraph,
    ExplainedNode,
    ExplainedRewrite,
    Why,
)
from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.fusion_trace import trace_fusion
from fusewise.compiler.inductor.graph_key import GraphKey, graph_key
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.origins import operations_within
from fusewise.compiler.inductor.source_lines import source_lines
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.session import Session, device_of, unmeasurable
from fusewise.compiler.survey import Predictor
from fusewise.schedule.errors import MeasureError, PlanError
from fusewise.schedule.problem import Problem
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Candidate, Schedule, problem_key
from fusewise.search.legality import Legality
from fusewise.search.rules import RuledLegality, Rulings
from fusewise.search.samples import summary

#: Seconds that a contest of two plans is given, code generation left out.
_CONTEST_S = 12.0


@dataclass(frozen=True)
class Wish:
    """What is to be explained, and how far."""

    store: Path
    #: Name or path of the cost model; None for the newest one that fits the device.
    model: str | None = None
    #: Plan file whose schedules are the chosen ones; None for those in the store.
    plan: Path | None = None
    #: The user's rules; None for none.
    rules: RuleSet | None = None
    #: Whether the plan that is predicted to be best is the chosen one where there is no other.
    predicted: bool = False
    #: Whether kernels and candidates are timed.
    measure: bool = False
    #: One fusion to look at closely.
    why: Question | None = None
    #: Only these kinds of graphs; empty for all.
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Seen:
    """What was seen of a live graph."""

    view: View
    nodes: tuple[ExplainedNode, ...]
    edges: tuple[ExplainedEdge, ...]


class GraphExplainer:
    """One graph."""

    def __init__(
        self,
        session: Session,
        wish: Wish,
        graph: GraphCompile,
        passes: Callable[[], tuple[ExplainedRewrite, ...]],
        told: Callable[[str], None],
    ) -> None:
        """Explain ``graph``.

        Args:
            session: of the program.
            wish: what is asked.
            graph: as it is compiled now.
            passes: what changed the graph on its way, once it has been lowered.
            told: takes what is being done.
        """
        self._session, self._wish, self._graph = session, wish, graph
        self._passes, self._told = passes, told
        #: Why the graph has no fusion of the kind that is asked for; None where it has.
        self.unresolved: PlanError | None = None
        self._device = device_of(graph.gm, graph.example_inputs)
        self._predictor: Predictor = session.predictor(self._device)
        with graph.settings(None):
            self._key: GraphKey = graph_key(
                graph.gm,
                graph.example_inputs,
                graph.kwargs,
                self._predictor.profile.key,
                self._predictor.model.id,
                session.options.rules,
            )

    def explained(self) -> ExplainedGraph:
        """The graph explained; Inductor lowers it several times for that."""
        kind = self._graph.kind
        self._told(f"{kind}: fusions")
        choice = find_chosen(
            self._graph, self._session, self._predictor, self._key, search=self._wish.predicted
        )
        origin, chosen = choice.origin, choice.schedule
        own_choices = bool(chosen and (chosen.lowering or chosen.codegen))
        asked: dict[str, Any] = {}

        def look(live: LiveGraph) -> None:
            default = self._seen(live, Schedule(), "inductor")
            seen = default if own_choices or not chosen else self._seen(live, chosen, origin)
            trace = trace_fusion(live)
            fusions = explain_fusions(
                trace,
                default.view.plan,
                None if own_choices else seen.view.plan,
                default.view.cost,
                self._rulings(default.view.problem),
            )
            asked.update(default=default, chosen=seen, trace=trace, fusions=fusions)
            asked.update(decisions=tuple(live.decisions))
            if self._wish.why is not None:
                asked["why"] = self._why(live, seen.view, fusions)

        self._graph.survey((), look)
        passes = self._passes()
        default: _Seen = asked["default"]
        seen: _Seen = asked["chosen"]
        if own_choices and chosen is not None:
            views: list[_Seen] = []
            self._graph.survey(
                (*chosen.lowering, *chosen.codegen),
                lambda live: views.append(self._seen(live, chosen, origin)),
            )
            seen = views[0]
        self._told(f"{kind}: kernels")
        kernels = Kernels(self._graph, seen.view)
        default_kernels = kernels if seen is default else Kernels(self._graph, default.view)
        timed = default_timed = None
        why, why_plan = asked.get("why", (None, None))
        candidates = completed(choice, default.view, seen.view)
        not_measured = ""
        if self._wish.measure:
            try:
                job = self._job()
                self._told(f"{kind}: timing kernels")
                timed = kernels.time(job)
                default_timed = timed if seen is default else default_kernels.time(job)
                not_measured = timed.failure
                self._told(f"{kind}: timing candidates")
                candidates = time_candidates(self._graph, job, candidates, _CONTEST_S)
                if why is not None and why_plan is not None:
                    self._told(f"{kind}: timing both plans")
                    why = self._contest(why, why_plan, default, seen, job)
            except MeasureError as error:
                not_measured = str(error)
        groups = kernels.explained(timed)
        default_groups = groups if seen is default else default_kernels.explained(default_timed)
        trace = asked["trace"]
        return ExplainedGraph(
            kind=kind,
            key=self._key.key,
            key_parts=dict(self._key.parts),
            device=str(self._device),
            model=self._predictor.model.name,
            rewrites=passes,
            inlining=asked["decisions"],
            nodes=default.nodes,
            edges=default.edges,
            score_parts=trace.score_parts,
            rounds=tuple(trace.found),
            possible_fusions=asked["fusions"],
            groups=groups,
            plan=explained_plan(seen.view, groups),
            default_groups=default_groups,
            default_plan=explained_plan(default.view, default_groups),
            chosen_nodes=seen.nodes if own_choices else (),
            chosen_edges=seen.edges if own_choices else (),
            candidates=explained_candidates(candidates, choice, default.view.plan),
            why=why,
            within={name: len(inner) for name, inner in operations_within(self._graph.gm)},
            rules=choice.rules,
            not_measured=not_measured,
        )

    def _rulings(self, problem: Problem) -> Rulings | None:
        """The user's rules on a problem of the graph."""
        rules = self._session.options.rules
        return None if rules is None else Rulings(problem, rules)

    def _seen(self, live: LiveGraph, schedule: Schedule, origin: str) -> _Seen:
        choices = (*schedule.lowering, *schedule.codegen)
        problem = extract_problem(
            live.scheduler,
            live.nodes,
            key=problem_key(self._key.key, schedule.lowering),
            kind=self._graph.kind,
        )
        plan = schedule.plan or live.default_plan
        lines = source_lines(live.nodes)
        view = View(
            origin,
            schedule_of(choices, plan),
            problem,
            plan,
            lines,
            self._predictor.plans(problem),
        )
        return _Seen(view, _nodes(problem, lines), _edges(problem))

    def _why(
        self, live: LiveGraph, view: View, fusions: Sequence[Any]
    ) -> tuple[Why | None, Schedule | None]:
        """The fusion that is asked for, and the changed schedule where there is a legal one."""
        question = self._wish.why
        assert question is not None
        try:
            a, b, fusion = resolve(question, view.problem, fusions, view.plan)
        except PlanError as error:
            self.unresolved = error
            return None, None
        legality: Legality = InductorLegality(live)
        rulings = self._rulings(view.problem)
        if rulings is not None:
            legality = RuledLegality(legality, rulings)
        change = change_plan(view.problem, view.plan, legality, view.cost, a, b)
        why = explain_change(a, b, question, fusion, change, view.plan, view.origin, view.cost)
        if change.plan is None:
            return why, None
        return why, schedule_of((*view.schedule.lowering, *view.schedule.codegen), change.plan)

    def _job(self) -> GraphJob:
        """The graph as the measuring process gets it.

        Raises:
            MeasureError: it cannot be measured there.
        """
        graph, session = self._graph, self._session
        reason = unmeasurable(graph, session)
        if reason is not None:
            raise MeasureError(reason, subject="graph", remedy="leave --measure out")
        job = graph_job(
            graph,
            key=self._key.key,
            device=str(self._device),
            observed=session.observed,
            forward_key=session.forward_key,
            with_reference=False,
        )
        announce(job)
        if graph.kind == "forward":
            session.forward_key = self._key.key
        return job

    def _contest(
        self, why: Why, changed: Schedule, default: _Seen, seen: _Seen, job: GraphJob
    ) -> Why:
        """Time the plan and the changed one in turns.

        Raises:
            MeasureError: the process could not do it.
        """
        view = seen.view if why.plan == seen.view.origin else default.view
        programs = []
        for schedule in (view.schedule, changed):
            candidate = Candidate(schedule=schedule, origin="why", groups=0)
            try:
                programs.append((candidate, self._graph.generate(schedule)))
            except PlanError as error:
                return msgspec.structs.replace(
                    why, legal=False, detail=str(error), not_measured=str(error)
                )
        if programs[0][1].code_hash == programs[1][1].code_hash:
            return msgspec.structs.replace(why, not_measured="both plans give the same code")
        result = hold(job, programs, _CONTEST_S)
        samples = [[us for us in p.samples if math.isfinite(us)] for p in result.programs]
        failures = [program.failure for program in result.programs if program.failure]
        if failures or not all(samples):
            return msgspec.structs.replace(why, not_measured=(failures or ["no samples"])[0])
        now, then = (summary(times) for times in samples)
        return msgspec.structs.replace(
            why,
            measured_us=now.median,
            measured_changed_us=then.median,
            measured_interval=(now.low, now.high),
            measured_changed_interval=(then.low, then.high),
        )


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
