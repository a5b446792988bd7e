"""What models are judged by: kernels held out, and schedules of their graphs, told apart by strata.

Gathers and labels samples; predicts nothing and scores nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import FloatArray
from fusewise.datasets.kernel_class import UNKNOWN, kernel_class
from fusewise.datasets.samples import KernelSamples, Problems, ScheduleSample, ScheduleSamples
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, check_plan
from fusewise.schedule.problem import Problem
from fusewise.training.strata import class_of, sizes_of


@dataclass(frozen=True)
class JudgedKernels:
    """Kernels that a model has not seen, n of them."""

    samples: KernelSamples
    problems: Problems

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def node_estimates(self) -> FloatArray:
        """[n], the compiler's own estimates of each kernel's nodes, summed; nan where it has none.

        Its unit differs among versions of torch, so only ratios of them mean something.
        """
        return self._told[1]

    @cached_property
    def classes(self) -> list[str]:
        """Length n: the class of each."""
        return self._told[0]

    @cached_property
    def coarse_classes(self) -> list[str]:
        """Length n: the class of each as datasets publish it."""
        return self._told[2]

    @cached_property
    def families(self) -> list[str]:
        """Length n: the family of each."""
        return [str(family) or "none" for family in self.samples.family]

    @cached_property
    def sizes(self) -> list[str]:
        """Length n: the size of each."""
        return sizes_of(self.samples.median_us)

    @cached_property
    def _told(self) -> tuple[list[str], FloatArray, list[str]]:
        """Classes, estimates and coarse classes, from problems that are decoded once each."""
        classes, coarse = [UNKNOWN] * len(self), [UNKNOWN] * len(self)
        estimates = np.full(len(self), np.nan)
        for key, rows in rows_by(self.samples.graph_key).items():
            if key not in self.problems:
                continue
            problem = self.problems[key]
            for row in rows:
                names = self.samples.nodes[row]
                classes[row] = class_of(problem, names)
                coarse[row] = kernel_class(problem, names)
                estimates[row] = sum(problem.node_by_name[name].compiler_us for name in names)
        estimates[estimates <= 0.0] = np.nan
        return classes, estimates, coarse


class JudgedPlan(NamedTuple):
    """A plan and the problem that it is over, which lowering choices change."""

    problem_key: str
    problem: Problem
    plan: Plan


@dataclass(frozen=True)
class JudgedGraph:
    """Measured schedules of one graph, at least two: m of them."""

    graph_key: str
    family: str
    #: [m], in microseconds.
    measured: FloatArray
    #: Length m.
    plans: tuple[JudgedPlan, ...]

    @property
    def size(self) -> str:
        """Size of its fastest schedule."""
        return sizes_of(self.measured.min(keepdims=True))[0]


@dataclass(frozen=True)
class JudgedSchedules:
    """Schedules of graphs that a model has not seen."""

    graphs: tuple[JudgedGraph, ...] = ()
    #: Schedules that cannot be predicted: over no stored problem, or the compiler's own fusion.
    skipped: int = 0


def judged_schedules(
    samples: ScheduleSamples, graphs: Iterable[str], profile: DeviceProfile
) -> JudgedSchedules:
    """Measured schedules of ``graphs`` (their keys) on the device of ``profile``.

    Schedules that are not a plan over a stored problem (the compiler's own fusion, or lowering
    choices whose problem was not kept) are counted as skipped; so are those made on another
    lowering of the graph, since that is no fault of a model.

    Raises:
        StoreError: a stored problem cannot be read.
        DatasetError: a published one cannot be read.
    """
    wanted = set(graphs)
    by_graph: dict[str, list[ScheduleSample]] = defaultdict(list)
    for sample in samples:
        if sample.graph_key in wanted and sample.device_key == profile.key:
            by_graph[sample.graph_key].append(sample)
    judged, skipped = [], 0
    for key, members in by_graph.items():
        measured, plans = [], []
        for sample in members:
            plan = sample.schedule.plan
            if plan is None or not samples.has_problem(sample):
                skipped += 1
                continue
            problem = samples.problem(sample)
            try:
                check_plan(problem, plan)
            except PlanError:
                skipped += 1
                continue
            measured.append(sample.median_us)
            plans.append(JudgedPlan(sample.problem_key, problem, plan))
        if len(measured) > 1:
            family = members[0].family or "none"
            judged.append(JudgedGraph(key, family, np.array(measured), tuple(plans)))
    return JudgedSchedules(tuple(judged), skipped)


def rows_by(labels: npt.NDArray[np.object_] | Iterable[str]) -> dict[str, list[int]]:
    """Row numbers of each label, labels in the order in which they come."""
    rows: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(str(label), []).append(row)
    return rows
