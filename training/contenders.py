"""Who is judged: cost models, and what the compiler itself goes by.

A contender guesses the times of kernels and of schedules. Inductor's are here to be beaten:

* ``inductor_estimate``: ``get_estimated_runtime`` of each node (the bytes that it reads and writes
  over the memory's bandwidth), summed over a kernel's nodes. It knows of no fusion, so plans of one
  problem are all alike to it. One factor for all kernels is fitted to the very kernels that it is
  judged by, which is as kind as can be, and makes its unit not matter.
* ``score_fusion``: the order that Inductor's greedy fusion prefers. The score of a plan is the sum
  of the scores of all pairs of nodes that stand in one group, over the pairs that Inductor would
  have considered (``Problem.possible_fusions``). The parts of a score (template, kind of node,
  shared bytes, distance) are summed each for itself and compared most significant first; the
  higher, the better. It says nothing of times.

Nothing here scores a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.training.judged import JudgedGraph, JudgedKernels
from fusewise.training.metrics import median
from fusewise.training.scores import LARGE_US


@dataclass(frozen=True)
class Guess:
    """Predicted times of n kernels or schedules, in microseconds; nan where there is none."""

    #: [n]; only their order means something where the contender says so.
    us: FloatArray
    #: [n], the 90 % interval, None where the contender gives none.
    low_us: FloatArray | None = None
    high_us: FloatArray | None = None
    #: [n], whether the row was outside of what the model knows, so that the roofline answered.
    flagged: npt.NDArray[np.bool_] | None = None


class Contender(Protocol):
    """Somebody who guesses."""

    #: Whether guesses are times, and not only an order.
    times: bool

    def kernels(self, judged: JudgedKernels) -> Guess | None:
        """Guesses of kernels, None where it has no way to tell."""
        ...

    def schedules(self, graph: JudgedGraph) -> Guess:
        """Guesses of the schedules of one graph."""
        ...


class Model:
    """A cost model; a plan's time is as :class:`PlanCost` has it."""

    times = True

    def __init__(
        self, model: CostModel, profile: DeviceProfile, extern_us: Mapping[str, float]
    ) -> None:
        self._model = model
        self._profile = profile
        self._extern_us = extern_us

    def kernels(self, judged: JudgedKernels) -> Guess:
        """See :class:`Contender`.

        Raises:
            ModelError: the samples' features are not the model's.
        """
        found = self._model.predict(judged.samples.features)
        flagged = np.array([source != "learned" for source in found.source], dtype=bool)
        return Guess(found.us, found.low_us, found.high_us, flagged)

    def schedules(self, graph: JudgedGraph) -> Guess:
        """See :class:`Contender`."""
        costs: dict[str, PlanCost] = {}
        found = []
        for key, problem, plan in graph.plans:
            cost = costs.get(key)
            if cost is None:
                cost = PlanCost(problem, self._profile, self._model, self._extern_us)
                costs[key] = cost
            found.append(cost.plan(plan))
        return Guess(
            np.array([one.us for one in found]),
            np.array([one.low_us for one in found]),
            np.array([one.high_us for one in found]),
        )


class InductorEstimate:
    """Inductor's own estimate of time."""

    times = True

    def __init__(self, judged: JudgedKernels, extern_us: Mapping[str, float]) -> None:
        measured = judged.samples.median_us
        ratio = measured / judged.node_estimates
        large = ratio[(measured >= LARGE_US) & np.isfinite(ratio)]
        some = large if len(large) else ratio[np.isfinite(ratio)]
        #: What estimates are multiplied by.
        self.factor = median(some) or 1.0
        self._extern_us = extern_us

    def kernels(self, judged: JudgedKernels) -> Guess:
        """See :class:`Contender`."""
        return Guess(self.factor * judged.node_estimates)

    def schedules(self, graph: JudgedGraph) -> Guess:
        """Generated nodes by the estimate, extern ones as measured, for all contenders have that.

        See :class:`Contender`.
        """
        return Guess(np.array([self._problem(problem) for _, problem, _ in graph.plans]))

    def _problem(self, problem: Problem) -> float:
        return sum(
            self._extern_us.get(node.signature, self.factor * node.compiler_us)
            for node in problem.nodes
        )


class ScoreFusion:
    """The order that Inductor's greedy fusion prefers."""

    times = False

    def kernels(self, judged: JudgedKernels) -> None:
        """See :class:`Contender`."""
        del judged

    def schedules(self, graph: JudgedGraph) -> Guess:
        """Rank of each plan, 0 for the highest score; equal scores have equal ranks."""
        totals = [plan_score(problem, plan) for _, problem, plan in graph.plans]
        rank = {total: at for at, total in enumerate(sorted(set(totals), reverse=True))}
        return Guess(np.array([float(rank[total]) for total in totals]))


def plan_score(problem: Problem, plan: Plan) -> tuple[int, ...]:
    """Sums of the parts of ``score_fusion`` over the considered pairs that share a group.

    One number for each part, most significant first; empty where no pair is considered.
    """
    return tuple(sum(part) for part in zip(*_scores(problem, plan), strict=True))


def _scores(problem: Problem, plan: Plan) -> Iterator[tuple[int, ...]]:
    group = plan.group_of()
    for pair in problem.possible_fusions:
        # A pair that shares none is nothing, so that all sums have as many parts.
        joined = group[pair.first] == group[pair.second]
        yield pair.score if joined else (0,) * len(pair.score)
