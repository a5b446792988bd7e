"""The kernels of a plan: predicted, with what bounds them, and timed one by one where asked.

Those of graphs within the graph are generated and timed with it. Judges no fusion.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusewise.compiler.explaining.report import ExplainedGroup, ExplainedPlan
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.fusion_trace import FusionTrace
from fusewise.compiler.inductor.inner_graphs import inner_graphs
from fusewise.compiler.inductor.interceptors import FusionWatch, LiveGraph, Program
from fusewise.compiler.inductor.launches import (
    Launch,
    generate_with_launches,
    survey_with_launches,
)
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.job import GraphJob, ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.costmodel.attribution import amounts, attribute, moved_bytes
from fusewise.costmodel.plan_cost import GroupCost, PlanCost
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import FINISHED_KINDS, Problem
from fusewise.schedule.schedule import Schedule

#: Seconds for all kernels of one program, loading included.
_KERNELS_S = 120.0


@dataclass(frozen=True)
class View:
    """A plan with the problem that it is of."""

    origin: str
    schedule: Schedule
    problem: Problem
    plan: Plan
    sources: Mapping[str, tuple[str, ...]]
    cost: PlanCost


@dataclass(frozen=True)
class Timed:
    """Measured microseconds of each group, by its place in the plan, and why others have none."""

    us: dict[int, float]
    failures: dict[int, str]
    #: Why nothing was timed; "" where it was.
    failure: str = ""


@dataclass(frozen=True)
class Times:
    """What was timed in runs of one program."""

    own: Timed
    #: Of the graphs within the graph, by name.
    within: Mapping[str, Timed]


#: Is shown a graph within a graph: its name, the graph, and how Inductor fused it.
LookWithin = Callable[[str, LiveGraph, FusionTrace], None]


@dataclass(frozen=True)
class Generated:
    """A generated program, not yet compiled, and what it launches in its order."""

    program: Program
    launches: tuple[Launch, ...]
    #: Of the graphs within the graph, by name.
    within: Mapping[str, tuple[Launch, ...]]


def generated(
    graph: GraphCompile, schedule: Schedule, look_within: LookWithin, *, to_time: bool
) -> Generated:
    """The program of a schedule.

    Args:
        graph: that the schedule is of.
        schedule: of it.
        look_within: is shown each graph within the graph.
        to_time: whether its kernels are to be timed, not only named.

    Raises:
        PlanError: the plan is illegal for this graph.
    """
    return _with_inner(look_within, lambda: generate_with_launches(graph, schedule, to_run=to_time))


def surveyed(
    graph: GraphCompile,
    visit: Callable[[LiveGraph], None],
    watch: FusionWatch,
    look_within: LookWithin,
    *,
    to_time: bool,
) -> Generated:
    """Inductor's own program of a graph that ``visit`` is shown before anything is fused.

    Args:
        graph: the graph.
        visit: is shown it.
        watch: Inductor fuses inside of it to find its own plan.
        look_within: as in :func:`generated`.
        to_time: as in :func:`generated`.
    """
    return _with_inner(
        look_within, lambda: survey_with_launches(graph, visit, watch, to_run=to_time)
    )


def _with_inner(
    look_within: LookWithin, generate: Callable[[], tuple[Program, tuple[Launch, ...]]]
) -> Generated:
    with inner_graphs(look_within) as within:
        program, launches = generate()
    return Generated(program, launches, {name: tuple(of) for name, of in within.items()})


class Kernels:
    """The launches of a plan's program, each with the group that it is of."""

    def __init__(self, view: View, program: Generated) -> None:
        """Args:
        view: the plan.
        program: of the plan.
        """
        self._view = view
        self._program, self._launches = program.program, program.launches
        self._within = program.within
        self._of_launch = _groups_of(view, self._launches)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """What the program launches, in its order."""
        return self._launches

    def explained(self, times: Times | None) -> tuple[ExplainedGroup, ...]:
        """The groups of the plan."""
        timed = None if times is None else times.own
        return _explained_groups(self._view, self._launches, timed)

    def explained_within(
        self, name: str, view: View, times: Times | None
    ) -> tuple[ExplainedGroup, ...]:
        """The groups of a graph within the graph."""
        timed = None if times is None else times.within[name]
        return _explained_groups(view, self._within.get(name, ()), timed)

    def time(self, job: GraphJob, within: Mapping[str, View]) -> Times:
        """Time each kernel where it stands in a run of the program; failures are in the result.

        Args:
            job: the graph.
            within: graphs within the graph, by name.
        """
        us: dict[int, float] = {}
        failures: dict[int, str] = {}
        try:
            calls = self._calls(job)
        except MeasureError as error:
            failed = Timed(us, failures, str(error))
            return Times(failed, dict.fromkeys(within, failed))
        failures |= _shared(self._of_launch)
        timed = self._matched(calls)
        for launch, groups, times in zip(self._launches, self._of_launch, timed, strict=True):
            for group in groups:
                if launch.kind == "graphs":
                    failures[group] = "it runs graphs of its own"
                elif times is None:
                    failures[group] = "what was called is not what was generated"
                elif not times.samples:
                    failures[group] = times.failure or "no samples"
                else:
                    us[group] = us.get(group, 0.0) + statistics.median(times.samples)
        own = Timed({g: t for g, t in us.items() if g not in failures}, failures)
        inner = {name: self._time_within(name, view, calls) for name, view in within.items()}
        return Times(own, inner)

    def _time_within(self, name: str, view: View, calls: Sequence[CallTimes]) -> Timed:
        """Times of the kernels of a graph within: what its name was called for, all the times."""
        samples: dict[str, list[float]] = {}
        for call in calls:
            samples.setdefault(call.kernel, []).extend(call.samples)
        elsewhere = {k for n, kernels in self._kernel_names().items() if n != name for k in kernels}
        launches = self._within.get(name, ())
        of_launch = _groups_of(view, launches)
        us: dict[int, float] = {}
        failures = _shared(of_launch)
        for launch, groups in zip(launches, of_launch, strict=True):
            found = samples.get(launch.kernel)
            for group in groups:
                if launch.kind != "kernel":
                    failures[group] = "calls within another graph cannot be told apart"
                elif launch.kernel in elsewhere:
                    failures[group] = "another graph has the same kernel"
                elif not found:
                    failures[group] = "it was not run" if found is None else "no samples"
                else:
                    us[group] = us.get(group, 0.0) + statistics.median(found)
        return Timed({g: t for g, t in us.items() if g not in failures}, failures)

    def _kernel_names(self) -> Mapping[str, frozenset[str]]:
        """Kernels of each graph by its name; "" for the one that has the others within."""
        launches = {"": self._launches, **self._within}
        return {
            name: frozenset(launch.kernel for launch in of if launch.kind == "kernel")
            for name, of in launches.items()
        }

    def _matched(self, calls: Sequence[CallTimes]) -> list[CallTimes | None]:
        """The times of each launch, kernels and library calls each in their order.

        None for all of a kind where the two do not agree: a time under the wrong name is worse.
        """
        names = self._kernel_names()
        inner = frozenset().union(*(of for name, of in names.items() if name)) - names[""]
        kernels = [call for call in calls if call.kernel and call.kernel not in inner]
        externs = [call for call in calls if not call.kernel]
        launched = [launch.kernel for launch in self._launches if launch.kind == "kernel"]
        called = sum(launch.kind == "extern" for launch in self._launches)
        agreed = {
            "kernel": [call.kernel for call in kernels] == launched,
            "extern": len(externs) == called,
        }
        left = {"kernel": iter(kernels), "extern": iter(externs)}
        return [
            next(left[launch.kind]) if agreed.get(launch.kind) else None
            for launch in self._launches
        ]

    def _calls(self, job: GraphJob) -> list[CallTimes]:
        """What the program called, with times.

        Raises:
            MeasureError: it could not be run.
        """
        program = self._program
        process = measuring_process(job.device)
        if process.graph_id != job.graph_id:
            process.prepare(job)
        library = build_library([(program.source, program.settings)], timeout_s=_KERNELS_S)
        return process.time_kernels(
            ProgramJob(
                self._view.schedule.id,
                program.source,
                program.constants,
                program.settings,
                library,
                program.code_hash,
            ),
            Effort(),
            _KERNELS_S,
        )


def _groups_of(view: View, launches: Sequence[Launch]) -> list[tuple[int, ...]]:
    """Groups of each launch by their place in the plan.

    On a GPU several groups may share a launch, and one may need many.
    """
    of = view.plan.group_of()
    return [tuple(sorted({of[name] for name in launch.nodes})) for launch in launches]


def _shared(of_launch: Sequence[Sequence[int]]) -> dict[int, str]:
    shared = {group for groups in of_launch if len(groups) > 1 for group in groups}
    return dict.fromkeys(shared, "it shares a launch with other groups")


def _explained_groups(
    view: View, launches: Sequence[Launch], timed: Timed | None
) -> tuple[ExplainedGroup, ...]:
    """The groups of a plan with the kernels that they are launched as."""
    names: dict[int, list[str]] = {}
    for launch, groups in zip(launches, _groups_of(view, launches), strict=True):
        for group in groups:
            names.setdefault(group, []).append(launch.kernel)
    costs = view.cost.breakdown(view.plan)
    return tuple(_group(view, i, cost, names.get(i, ()), timed) for i, cost in enumerate(costs))


def _group(
    view: View, i: int, cost: GroupCost, kernels: Sequence[str], timed: Timed | None
) -> ExplainedGroup:
    nodes = [view.problem.node_by_name[name] for name in cost.names]
    features = view.cost.featurizer.group(cost.names)
    parts = attribute(view.cost.model, features[np.newaxis], trees=False)[0]
    read, written = moved_bytes(features)
    sources = tuple(dict.fromkeys(line for n in nodes for line in view.sources[n.name]))
    finished = any(node.kind in FINISHED_KINDS for node in nodes)
    idle = all(node.kind == "nop" for node in nodes)
    alone = cost.alone
    return ExplainedGroup(
        nodes=cost.names,
        predicted_us=alone.us,
        predicted_low_us=alone.low_us,
        predicted_high_us=alone.high_us,
        predicted_by=cost.source,
        measured_us=None if timed is None else 0.0 if idle else timed.us.get(i),
        kernel=", ".join(dict.fromkeys(name for name in kernels if name)),
        source=", ".join(sources),
        sources=sources,
        operators=tuple(dict.fromkeys(op for node in nodes for op in node.origins)),
        bytes_read=0 if idle else read,
        bytes_written=0 if idle else written,
        around_us=cost.around_us,
        bound_by="nothing" if idle else "library" if finished else parts.bound_by,
        launch_us=0.0 if idle else parts.launch_us,
        memory_us=0.0 if idle else parts.memory_us,
        arithmetic_us=0.0 if idle else parts.arithmetic_us,
        features={} if finished or idle else amounts(features),
        not_measured="" if timed is None else timed.failures.get(i, ""),
    )


def explained_plan(view: View, groups: Sequence[ExplainedGroup]) -> ExplainedPlan:
    """The plan as a whole."""
    whole = view.cost.plan(view.plan)
    times = [group.measured_us for group in groups]
    return ExplainedPlan(
        origin=view.origin,
        schedule=view.schedule.id,
        choices=view.schedule.describe(),
        predicted_us=whole.us,
        predicted_low_us=whole.low_us,
        predicted_high_us=whole.high_us,
        around_us=whole.us - sum(group.predicted_us for group in groups),
        measured_us=sum(us for us in times if us is not None)
        if times and None not in times
        else None,
    )
