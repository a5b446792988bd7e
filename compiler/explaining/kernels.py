"""The kernels of a plan: predicted, with what bounds them, and timed one by one where asked."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusewise.compiler.explaining.report import ExplainedGroup, ExplainedPlan
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.launches import Launch, generate_with_launches
from fusewise.compiler.measuring.client import measuring_process
from fusewise.compiler.measuring.job import GraphJob, ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.costmodel.attribution import amounts, attribute, moved_bytes
from fusewise.costmodel.plan_cost import GroupCost, PlanCost
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule

#: Seconds for all kernels of one program, loading included.
_KERNELS_S = 120.0
_FINISHED = ("extern", "template")


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


class Kernels:
    """The generated program of a plan and its launches."""

    def __init__(self, graph: GraphCompile, view: View) -> None:
        self._view = view
        self._program, self._launches = generate_with_launches(graph, view.schedule)
        # By place in the plan: on a GPU several groups may share a launch, and one may need many.
        of = view.plan.group_of()
        self._of_launch = [tuple(sorted({of[n] for n in launch.nodes})) for launch in self.launches]

    @property
    def program(self) -> Program:
        """The program, not yet compiled."""
        return self._program

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Its launches in their order."""
        return self._launches

    def explained(self, timed: Timed | None) -> tuple[ExplainedGroup, ...]:
        """The groups of the plan."""
        view = self._view
        names: dict[int, list[str]] = {}
        for launch, groups in zip(self._launches, self._of_launch, strict=True):
            for group in groups:
                names.setdefault(group, []).append(launch.kernel)
        costs = view.cost.breakdown(view.plan)
        return tuple(self._group(i, cost, names.get(i, ()), timed) for i, cost in enumerate(costs))

    def time(self, job: GraphJob) -> Timed:
        """Time each kernel where it stands in a run of the program; failures are in the result."""
        us: dict[int, float] = {}
        failures: dict[int, str] = {}
        try:
            calls = self._calls(job)
        except MeasureError as error:
            return Timed(us, failures, str(error))
        shared = {group for groups in self._of_launch if len(groups) > 1 for group in groups}
        failures |= dict.fromkeys(shared, "it shares a launch with other groups")
        timed = self._matched(calls)
        for (group, *_), times in zip(self._of_launch, timed, strict=True):
            if times is None:
                failures[group] = "what was called is not what was generated"
            elif not times.samples:
                failures[group] = times.failure or "no samples"
            else:
                us[group] = us.get(group, 0.0) + statistics.median(times.samples)
        return Timed({g: t for g, t in us.items() if g not in failures}, failures)

    def _matched(self, calls: Sequence[CallTimes]) -> list[CallTimes | None]:
        """The times of each launch, kernels and library calls each in their order.

        None for all of a kind where the two do not agree: a time under the wrong name is worse.
        """
        kernels = [call for call in calls if call.kernel]
        externs = [call for call in calls if not call.kernel]
        launched = [launch.kernel for launch in self._launches if launch.kind == "kernel"]
        agreed = {
            "kernel": [call.kernel for call in kernels] == launched,
            "extern": len(externs) == len(self._launches) - len(launched),
        }
        left = {"kernel": iter(kernels), "extern": iter(externs)}
        return [
            next(left[launch.kind]) if agreed[launch.kind] else None for launch in self._launches
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

    def _group(
        self, i: int, cost: GroupCost, kernels: Sequence[str], timed: Timed | None
    ) -> ExplainedGroup:
        view = self._view
        nodes = [view.problem.node_by_name[name] for name in cost.names]
        features = view.cost.featurizer.group(cost.names)
        parts = attribute(view.cost.model, features[np.newaxis], trees=False)[0]
        read, written = moved_bytes(features)
        sources = tuple(dict.fromkeys(line for n in nodes for line in view.sources[n.name]))
        finished = any(node.kind in _FINISHED for node in nodes)
        idle = all(node.kind == "nop" for node in nodes)
        return ExplainedGroup(
            nodes=cost.names,
            predicted_us=cost.us,
            predicted_low_us=cost.low_us,
            predicted_high_us=cost.high_us,
            predicted_by=cost.source,
            measured_us=None if timed is None else 0.0 if idle else timed.us.get(i),
            kernel=", ".join(dict.fromkeys(name for name in kernels if name)),
            source=", ".join(sources),
            sources=sources,
            operators=tuple(dict.fromkeys(op for node in nodes for op in node.origins)),
            bytes_read=0 if idle else read,
            bytes_written=0 if idle else written,
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
        measured_us=sum(us for us in times if us is not None)
        if times and None not in times
        else None,
    )
