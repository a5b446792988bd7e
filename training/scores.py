"""Scores of one contender: on single kernels, and on whole schedules of one graph.

Kernels are scored on their times, schedules mostly on their order, since that is what a search
asks for. Reads no samples and asks no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.settled import settled
from fusewise.training.metrics import (
    best_of_first,
    mean,
    median,
    ordered_pairs,
    relative_errors,
    tau_b,
)

#: Kernels from here on are what decides a program's time (Kaufman et al. 2021, section 5).
LARGE_US: Final = 5.0
#: After how many measured schedules the regret is told.
MEASURED: Final = (1, 2, 4, 8)


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores on one set of samples. None where there is nothing to score."""

    n_kernels: int = 0
    #: Measured schedules that could be predicted, of graphs with at least two of them.
    n_schedules: int = 0
    #: Graphs that these are of.
    n_graphs: int = 0
    #: Mean absolute percentage error of kernels of at least 5 us, as a fraction.
    mape_5us: float | None = None
    #: As above for kernels below 5 us.
    mape_small: float | None = None
    #: Median absolute relative error, of kernels of at least 5 us and below.
    median_error_5us: float | None = None
    median_error_small: float | None = None
    #: Schedules of one graph: Kendall's tau over the pairs that differ by more than 3 % when
    #: measured, mean over the graphs; a pair that is predicted equal counts nothing.
    kendall_tau: float | None = None
    #: As above: tau-b over every pair, whatever its difference.
    kendall_tau_b: float | None = None
    #: Schedules of one graph: part of the pairs that differ by more than 3 % when measured which
    #: are put in the right order, over all graphs; one that is predicted equal counts a half.
    pairwise: float | None = None
    #: Best measured time of a graph over the best among the k predicted best, mean over graphs.
    top1: float | None = None
    top5: float | None = None
    #: Best time after measuring the k predicted best over the best measured, less 1, by k: mean
    #: over graphs.
    regret: dict[str, float] = {}
    #: Mean absolute percentage error of whole schedules, as a fraction.
    schedule_mape: float | None = None
    #: Part of the kernels whose time lies within the 90 % interval; as much of the schedules.
    coverage90: float | None = None
    schedule_coverage90: float | None = None
    #: Part of the kernels that lie outside of what the model knows: the roofline answered.
    flagged: float | None = None
    #: Tau and pairs as above, of kernels of one graph.
    kernel_kendall_tau: float | None = None
    kernel_pairwise: float | None = None


class Judgement(Scores, frozen=True, kw_only=True):
    """Scores on everything, and on each stratum. Schedules are of no kernel class."""

    by_family: dict[str, Scores] = {}
    by_size: dict[str, Scores] = {}
    by_class: dict[str, Scores] = {}


class Ordered(msgspec.Struct, frozen=True):
    """How well n times of one graph are put in order: what :func:`order_scores` sums up."""

    right: float
    pairs: int
    tau_b: float | None

    @classmethod
    def of(cls, measured: FloatArray, predicted: FloatArray) -> Ordered:
        """Of measured and predicted times [n]."""
        return cls(*ordered_pairs(measured, predicted), tau_b(measured, predicted))


def order_scores(graphs: Sequence[Ordered]) -> tuple[float | None, float | None, float | None]:
    """Tau, tau-b and pairwise accuracy over graphs; see :class:`Scores`."""
    compared = [graph for graph in graphs if graph.pairs]
    pairs = sum(graph.pairs for graph in compared)
    return (
        mean([2.0 * graph.right / graph.pairs - 1.0 for graph in compared]),
        mean([graph.tau_b for graph in graphs if graph.tau_b is not None]),
        sum(graph.right for graph in compared) / pairs if pairs else None,
    )


def kernel_scores(
    measured: FloatArray,
    predicted: FloatArray,
    graph: npt.NDArray[np.object_],
    *,
    low_us: FloatArray | None = None,
    high_us: FloatArray | None = None,
    flagged: npt.NDArray[np.bool_] | None = None,
) -> Scores:
    """Scores on kernels.

    Args:
        measured: [n], in microseconds.
        predicted: [n], nan where there is none, which is left out.
        graph: [n], what each is of; only kernels of one graph are put in order.
        low_us: [n], ends of the 90 % interval, where there is one.
        high_us: [n].
        flagged: [n], where the model says what it does not know.
    """
    known = np.isfinite(predicted)
    if not known.any():
        return Scores()
    # The last bits of equal predictions differ among processors, and must not put them in order.
    predicted = settled(predicted)
    error = relative_errors(measured[known], predicted[known])
    large = measured[known] >= LARGE_US
    orders = []
    for key in np.unique(graph[known].astype(str)):
        rows = known & (graph == key)
        orders.append(Ordered.of(measured[rows], predicted[rows]))
    tau, _, pairwise = order_scores(orders)
    return Scores(
        n_kernels=int(known.sum()),
        mape_5us=mean(error[large]),
        mape_small=mean(error[~large]),
        median_error_5us=median(error[large]),
        median_error_small=median(error[~large]),
        coverage90=_coverage(measured, low_us, high_us),
        flagged=None if flagged is None else mean(flagged),
        kernel_kendall_tau=tau,
        kernel_pairwise=pairwise,
    )


class GraphScores(msgspec.Struct, frozen=True):
    """What the schedules of one graph add to the scores."""

    schedules: int
    order: Ordered
    #: Top-k by k, and regret by k.
    top: dict[int, float]
    regret: dict[int, float]
    #: Absolute relative errors and whether the interval holds; empty where there is none.
    errors: tuple[float, ...]
    covered: tuple[bool, ...]

    @classmethod
    def of(
        cls,
        measured: FloatArray,
        predicted: FloatArray,
        *,
        times: bool,
        low_us: FloatArray | None = None,
        high_us: FloatArray | None = None,
    ) -> GraphScores:
        """Of m schedules; ``times`` says whether predictions are times and not only an order."""
        predicted = settled(predicted)
        found = {k: best_of_first(measured, predicted, k) for k in (*MEASURED, 5)}
        inside: npt.NDArray[np.bool_] = np.empty(0, dtype=bool)
        if low_us is not None and high_us is not None:
            inside = (measured >= low_us) & (measured <= high_us)
        return cls(
            schedules=len(measured),
            order=Ordered.of(measured, predicted),
            top={k: found[k][0] for k in (1, 5)},
            regret={k: found[k][1] for k in MEASURED},
            errors=tuple(relative_errors(measured, predicted).tolist()) if times else (),
            covered=tuple(inside.tolist()),
        )


def schedule_scores(kernels: Scores, graphs: Sequence[GraphScores]) -> Scores:
    """The scores on kernels with those on schedules of graphs beside them."""
    if not graphs:
        return kernels
    tau, tau_of_all, pairwise = order_scores([graph.order for graph in graphs])
    return msgspec.structs.replace(
        kernels,
        n_schedules=sum(graph.schedules for graph in graphs),
        n_graphs=len(graphs),
        kendall_tau=tau,
        kendall_tau_b=tau_of_all,
        pairwise=pairwise,
        top1=mean([graph.top[1] for graph in graphs]),
        top5=mean([graph.top[5] for graph in graphs]),
        regret={str(k): sum(graph.regret[k] for graph in graphs) / len(graphs) for k in MEASURED},
        schedule_mape=mean([error for graph in graphs for error in graph.errors]),
        schedule_coverage90=mean([one for graph in graphs for one in graph.covered]),
    )


def _coverage(
    measured: FloatArray, low_us: FloatArray | None, high_us: FloatArray | None
) -> float | None:
    if low_us is None or high_us is None:
        return None
    return mean((measured >= low_us) & (measured <= high_us))
