"""Explaining one graph where Inductor compiles it: lowered several times, and timed where asked.

Knows nothing of the program that the graph is part of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fusewise.compiler.contest import announce, graph_job, hold
from fusewise.compiler.explaining.candidates import (
    Chosen,
    completed,
    explained_candidates,
    find_chosen,
    predict_chosen,
    time_candidates,
)
from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.inner import InnerLooks
from fusewise.compiler.explaining.kernels import (
    Generated,
    Kernels,
    Times,
    explained_plan,
    generated,
    surveyed,
)
from fusewise.compiler.explaining.looking import Looked, Looker, Seen
from fusewise.compiler.explaining.report import (
    ExplainedGraph,
    ExplainedGroup,
    ExplainedRewrite,
    Why,
)
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.fusion_trace import Tracing
from fusewise.compiler.inductor.graph_key import GraphKey, graph_key
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.origins import operations_within
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.session import Session, device_of, unmeasurable
from fusewise.compiler.survey import Predictor
from fusewise.schedule.errors import MeasureError, PlanError
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Candidate, Schedule
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
        self._looker = Looker(self._predictor, self._key.key, graph.kind, wish.why)

    @property
    def unresolved(self) -> PlanError | None:
        """Why a graph has no fusion of the kind that is asked for; None where all have."""
        return self._looker.unresolved

    def explained(self) -> tuple[ExplainedGraph, ...]:
        """The graph explained, then those within it; Inductor lowers it several times for that."""
        kind = self._graph.kind
        self._told(f"{kind}: fusions")
        within = InnerLooks(self._looker)
        choice, own, seen, program = self._look(within)
        passes, default = self._passes(), own.default
        self._told(f"{kind}: kernels")
        kernels = default_kernels = Kernels(default.view, program)
        if seen is not default:
            look, to_time = within.look_at_chosen(seen.view), self._wish.measure
            program = generated(self._graph, seen.view.schedule, look, to_time=to_time)
            kernels = Kernels(seen.view, program)
        timed = default_timed = None
        why = own.why
        candidates = completed(choice, default.view, seen.view)
        not_measured = ""
        if self._wish.measure:
            try:
                job = self._job()
                self._told(f"{kind}: timing kernels")
                timed = default_timed = kernels.time(job, within.chosen_views)
                if kernels is not default_kernels:
                    default_timed = default_kernels.time(job, within.views)
                not_measured = timed.own.failure
                self._told(f"{kind}: timing candidates")
                candidates = time_candidates(self._graph, job, candidates, _CONTEST_S)
                if why is not None and own.changed is not None:
                    self._told(f"{kind}: timing both plans")
                    why = self._contest(why, own.changed, default, seen, job)
            except MeasureError as error:
                not_measured = str(error)
        groups = kernels.explained(timed)
        default_groups = groups
        if kernels is not default_kernels:
            default_groups = default_kernels.explained(default_timed)
        whole = msgspec.structs.replace(
            self._told_of(own, seen, groups, default_groups),
            rewrites=passes,
            inlining=own.decisions,
            candidates=explained_candidates(candidates, choice, default.view.plan),
            why=why,
            within={name: len(inner) for name, inner in operations_within(self._graph.gm)},
            rules=choice.rules,
            not_measured=not_measured,
        )
        return whole, *self._told_within(within, kernels, timed, default_kernels, default_timed)

    def _look(self, within: InnerLooks) -> tuple[Chosen, Looked, Seen, Generated]:
        """The chosen schedule, what is told of Inductor's own nodes, and the chosen plan.

        With Inductor's own program: it is generated from the nodes that were looked at.
        """
        known = find_chosen(self._graph, self._session, self._predictor, self._key)
        tracing = Tracing()
        looked: list[tuple[Chosen, Looked]] = []

        def look(live: LiveGraph) -> None:
            default = self._looker.seen(live, Schedule(), "inductor")
            choice = known or Chosen("inductor", None)
            if known is None and self._wish.predicted:
                choice = predict_chosen(live, default.view)
            same: Seen | None = default
            if choice.schedule is not None:
                own_choices = bool(choice.schedule.lowering or choice.schedule.codegen)
                replanned = self._looker.replanned(default, choice.schedule, choice.origin)
                same = None if own_choices else replanned
            rules = self._session.options.rules
            looked.append((choice, self._looker.look(live, tracing.trace, default, same, rules)))

        program = surveyed(
            self._graph, look, tracing.watch, within.look, to_time=self._wish.measure
        )
        ((choice, own),) = looked
        if own.chosen is not None:
            return choice, own, own.chosen, program
        assert choice.schedule is not None, "only a schedule has choices of its own"
        return choice, own, self._seen_under(choice.schedule, choice.origin), program

    def _seen_under(self, schedule: Schedule, origin: str) -> Seen:
        """The graph lowered under the choices of a schedule."""
        found: list[Seen] = []
        self._graph.survey(
            (*schedule.lowering, *schedule.codegen),
            lambda live: found.append(self._looker.seen(live, schedule, origin)),
        )
        return found[0]

    def _told_within(
        self,
        within: InnerLooks,
        kernels: Kernels,
        timed: Times | None,
        default_kernels: Kernels,
        default_timed: Times | None,
    ) -> Iterator[ExplainedGraph]:
        for name, looked in within.looked.items():
            seen = within.chosen(name)
            groups = default_kernels.explained_within(name, looked.default.view, default_timed)
            default_groups = groups
            if kernels is not default_kernels:
                groups = kernels.explained_within(name, seen.view, timed)
            why = looked.why
            if why is not None and self._wish.measure:
                reason = "Inductor takes no plan for a graph within another"
                why = msgspec.structs.replace(why, not_measured=reason)
            yield msgspec.structs.replace(
                self._told_of(looked, seen, groups, default_groups), name=name, why=why
            )

    def _told_of(
        self,
        looked: Looked,
        seen: Seen,
        groups: tuple[ExplainedGroup, ...],
        default_groups: tuple[ExplainedGroup, ...],
    ) -> ExplainedGraph:
        """What is told alike of a whole graph and of one within."""
        default = looked.default
        other_nodes = bool(seen.view.schedule.lowering or seen.view.schedule.codegen)
        return ExplainedGraph(
            kind=self._graph.kind,
            key=self._key.key,
            key_parts=dict(self._key.parts),
            device=str(self._device),
            model=self._predictor.model.name,
            rewrites=(),
            inlining=(),
            nodes=default.nodes,
            edges=default.edges,
            score_parts=looked.trace.score_parts,
            rounds=tuple(looked.trace.found),
            possible_fusions=looked.fusions,
            groups=groups,
            plan=explained_plan(seen.view, groups),
            default_groups=default_groups,
            default_plan=explained_plan(default.view, default_groups),
            chosen_nodes=seen.nodes if other_nodes else (),
            chosen_edges=seen.edges if other_nodes else (),
        )

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
        self, why: Why, changed: Schedule, default: Seen, seen: Seen, job: GraphJob
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
