"""Numbers that say how good predicted times are: errors, orders, and what the first k would give.

Arrays in, numbers out; knows neither models nor samples. None stands where there is nothing to
say.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from fusewise.costmodel.interface import FloatArray

#: Times that differ by no more than this part of the larger one are no pair: what is measured
#: again comes out in the other order too often.
APART: Final = 0.03


def relative_errors(measured: FloatArray, predicted: FloatArray) -> FloatArray:
    """Absolute errors [n] as parts of the measured times [n]."""
    errors: FloatArray = np.abs(predicted - measured) / measured
    return errors


def ordered_pairs(
    measured: FloatArray, predicted: FloatArray, *, apart: float = APART
) -> tuple[float, int]:
    """Pairs of n times that differ when measured: how many are predicted in order, and all.

    A pair with equal predictions counts a half: that is what a coin would get.

    Args:
        measured: [n].
        predicted: [n].
        apart: pairs count that differ by more than this part of the larger time.
    """
    upper = np.triu_indices(len(measured), 1)
    difference = np.subtract.outer(measured, measured)[upper]
    larger = np.maximum.outer(measured, measured)[upper]
    differ = np.abs(difference) > apart * larger
    truth = np.sign(difference)
    guess = np.sign(np.subtract.outer(predicted, predicted)[upper])
    agree = (truth == guess) + 0.5 * (guess == 0)
    return float(agree[differ].sum()), int(differ.sum())


def tau_b(measured: FloatArray, predicted: FloatArray) -> float | None:
    """Kendall's tau-b over every pair of n times, however alike; 0 where all predictions are equal.

    None where all measured times are equal.
    """
    if len(np.unique(measured)) < 2:  # noqa: PLR2004 - one value has no order
        return None
    if len(np.unique(predicted)) < 2:  # noqa: PLR2004
        return 0.0
    return float(kendalltau(measured, predicted).statistic)


def best_of_first(measured: FloatArray, predicted: FloatArray, k: int) -> tuple[float, float]:
    """What measuring the k predicted best of n would give, against the best there is.

    Equal predictions are taken in random order, and what is given is the mean over these.

    Returns:
        The best measured time over the best among the first k (TenSet's top-k, at most 1), and
        the regret: the inverse of it less 1.
    """
    order = np.argsort(predicted, kind="stable")
    k = min(k, len(order))
    last = predicted[order[k - 1]]
    sure = measured[predicted < last]
    tied = np.sort(measured[predicted == last])
    chosen = k - len(sure)
    # The i-th smallest of the tied is the smallest one chosen in this many of all choices.
    ways = np.array([comb(len(tied) - 1 - i, chosen - 1) for i in range(len(tied))], dtype=float)
    found = np.minimum(tied, sure.min()) if len(sure) else tied
    weights = ways / ways.sum()
    best = measured.min()
    return float(weights @ (best / found)), float(weights @ (found / best)) - 1.0


def mean(values: npt.ArrayLike | Sequence[float]) -> float | None:
    """Mean, None of nothing."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if len(array) else None


def median(values: npt.ArrayLike | Sequence[float]) -> float | None:
    """Median, None of nothing."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.median(array)) if len(array) else None
