"""How good a cost model is: on single kernels, and on whole schedules of one graph.

Only scores; which samples a model may be scored on is decided by whoever calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.datasets.samples import KernelSamples, ScheduleSample, ScheduleSamples
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import check_plan

#: Kernels from here on are what decides a program's time (Kaufman et al. 2021, section 5).
LARGE_US: Final = 5.0


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one model on one set of samples. None where there is nothing to score."""

    n_kernels: int = 0
    #: Mean absolute percentage error of kernels of at least 5 us, as a fraction.
    mape_5us: float | None = None
    #: As above for kernels below 5 us.
    mape_small: float | None = None
    #: Median absolute relative error, of kernels of at least 5 us and below.
    median_error_5us: float | None = None
    median_error_small: float | None = None
    #: Kendall's tau-b of kernels within each graph, weighted by the number of pairs.
    kendall_tau: float | None = None
    #: Part of the pairs of kernels of one graph that are put in the right order.
    pairwise: float | None = None
    #: Part of the kernels whose time lies within the 90 % interval.
    coverage90: float | None = None
    #: Part of the kernels for which the learned model answered.
    learned_share: float | None = None
    #: Measured schedules that could be predicted, of graphs with at least two of them.
    n_schedules: int = 0
    #: Measured schedules that could not: they are over no stored problem.
    n_schedules_skipped: int = 0
    #: Part of the pairs of schedules of one graph that are put in the right order.
    schedule_pairwise: float | None = None
    #: Best measured time over the best among the k predicted best (TenSet's top-k), mean.
    top1: float | None = None
    top5: float | None = None
    #: Time of the predicted best over the best measured, less 1, mean.
    regret: float | None = None


def score_kernels(model: CostModel, samples: KernelSamples) -> Scores:
    """Scores of ``model`` on single kernels.

    Raises:
        ModelError: the samples' features are not the model's.
    """
    if not len(samples):
        return Scores()
    predicted = model.predict(samples.features)
    measured = samples.median_us
    error = np.abs(predicted.us - measured) / measured
    large = measured >= LARGE_US
    taus, weights, right, pairs = [], [], 0.0, 0
    for graph in np.unique(samples.graph_key.astype(str)):
        rows = samples.graph_key == graph
        one_right, one_pairs = ordered_pairs(measured[rows], predicted.us[rows])
        right, pairs = right + one_right, pairs + one_pairs
        if one_pairs:
            tau = float(kendalltau(measured[rows], predicted.us[rows]).statistic)
            # Not a number where all predictions are equal: no order at all.
            taus.append(0.0 if np.isnan(tau) else tau)
            weights.append(one_pairs)
    within = (measured >= predicted.low_us) & (measured <= predicted.high_us)
    learned = np.array([source == "learned" for source in predicted.source])
    return Scores(
        n_kernels=len(samples),
        mape_5us=_mean(error[large]),
        mape_small=_mean(error[~large]),
        median_error_5us=_median(error[large]),
        median_error_small=_median(error[~large]),
        kendall_tau=float(np.average(taus, weights=weights)) if taus else None,
        pairwise=right / pairs if pairs else None,
        coverage90=_mean(within.astype(np.float64)),
        learned_share=_mean(learned.astype(np.float64)),
    )


def score_schedules(
    model: CostModel,
    samples: ScheduleSamples,
    graphs: Iterable[str],
    profile: DeviceProfile,
    extern_us: Mapping[str, float] | None = None,
) -> Scores:
    """Scores of ``model`` on the measured schedules of ``graphs`` (their keys).

    Schedules that are not a plan over a stored problem (the compiler's own fusion, or lowering
    choices whose problem was not kept) cannot be predicted; they are counted as skipped.

    Raises:
        StoreError: a stored problem cannot be read.
    """
    wanted = set(graphs)
    by_graph: dict[str, list[ScheduleSample]] = defaultdict(list)
    for sample in samples:
        if sample.graph_key in wanted and sample.device_key == profile.key:
            by_graph[sample.graph_key].append(sample)
    right, pairs, scored, skipped = 0.0, 0, 0, 0
    top: dict[int, list[float]] = {1: [], 5: []}
    for members in by_graph.values():
        measured, predicted = [], []
        costs: dict[str, PlanCost] = {}
        for sample in members:
            plan = sample.schedule.plan
            if plan is None or not samples.has_problem(sample):
                skipped += 1
                continue
            problem = samples.problem(sample)
            try:
                check_plan(problem, plan)
            except PlanError:
                # Made on another lowering of the graph; counted, since it is no fault of the model.
                skipped += 1
                continue
            cost = costs.get(sample.problem_key)
            if cost is None:
                cost = costs[sample.problem_key] = PlanCost(problem, profile, model, extern_us)
            measured.append(sample.median_us)
            predicted.append(cost.plan(plan).us)
        if len(measured) < 2:  # noqa: PLR2004 - one schedule has nothing to be compared with
            continue
        times, guesses = np.array(measured), np.array(predicted)
        scored += len(times)
        one_right, one_pairs = ordered_pairs(times, guesses)
        right, pairs = right + one_right, pairs + one_pairs
        order = np.argsort(guesses, kind="stable")
        for k, results in top.items():
            results.append(float(times.min() / times[order[:k]].min()))
    first = np.array(top[1])
    return Scores(
        n_schedules=scored,
        n_schedules_skipped=skipped,
        schedule_pairwise=right / pairs if pairs else None,
        top1=_mean(first),
        top5=_mean(np.array(top[5])),
        regret=_mean(1.0 / first - 1.0),
    )


def merge(kernels: Scores, schedules: Scores) -> Scores:
    """Kernel scores of the first with schedule scores of the second."""
    names = ("n_schedules", "n_schedules_skipped", "schedule_pairwise", "top1", "top5", "regret")
    return msgspec.structs.replace(kernels, **{name: getattr(schedules, name) for name in names})


def ordered_pairs(measured: FloatArray, predicted: FloatArray) -> tuple[float, int]:
    """Pairs [n (n - 1) / 2] that differ when measured: how many are predicted in order, and all.

    A pair with equal predictions counts a half: that is what a coin would get.
    """
    upper = np.triu_indices(len(measured), 1)
    truth = np.sign(np.subtract.outer(measured, measured)[upper])
    guess = np.sign(np.subtract.outer(predicted, predicted)[upper])
    differ = truth != 0
    agree = (truth == guess) + 0.5 * (guess == 0)
    return float(agree[differ].sum()), int(differ.sum())


def _mean(values: npt.NDArray[np.float64]) -> float | None:
    return float(values.mean()) if len(values) else None


def _median(values: npt.NDArray[np.float64]) -> float | None:
    return float(np.median(values)) if len(values) else None
