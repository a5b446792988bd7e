"""Statistics of repeated timings: median, spread and intervals that assume no distribution.

Timings have a hard floor and a long tail, so means and normal intervals mislead; everything here
rests on order statistics. Takes no measurements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fusewise.schedule.errors import MeasureError


@dataclass(frozen=True, slots=True)
class Summary:
    """A median with how far it can be trusted, in the unit of the samples."""

    count: int
    median: float
    #: Half the distance between the 25th and the 75th percentile over the median.
    spread: float
    #: Interval of the median; without bounds where there are too few samples for one.
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the interval over the median."""
        return (self.high - self.low) / 2 / self.median if self.median else math.inf


def summary(samples: Sequence[float], *, confidence: float = 0.95) -> Summary:
    """Median, spread and interval of ``samples``.

    Raises:
        MeasureError: no samples, or one that is not finite.
    """
    if not samples or not all(map(math.isfinite, samples)):
        raise MeasureError(
            f"samples {list(samples)[:5]} have no median",
            subject="timing",
            remedy="measure again; look for a failed run",
        )
    ordered = sorted(samples)
    median = statistics.median(ordered)
    iqr = _percentile(ordered, 0.75) - _percentile(ordered, 0.25)
    low, high = median_interval(ordered, confidence=confidence)
    spread = iqr / 2 / median if median else math.inf
    return Summary(len(ordered), median, spread, low, high)


def median_interval(samples: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """Interval that holds the true median with at least ``confidence``, whatever the distribution.

    The k-th smallest and the k-th largest of n samples enclose the median unless fewer than k fall
    on one side of it, and how many fall on one side is binomial with p = 1/2 (David and Nagaraja,
    Order Statistics, 3rd edition, section 7.1; recommended for timings by Hoefler and Belli,
    Scientific Benchmarking of Parallel Computing Systems, SC 2015, section 3.1.3). With fewer than
    6 samples there is no such interval at 95 %; it is (-inf, inf) then.
    """
    rank = interval_rank(len(samples), confidence)
    if rank == 0:
        return -math.inf, math.inf
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[-rank]


@lru_cache(maxsize=1024)
def interval_rank(count: int, confidence: float) -> int:
    """Largest k for which the k-th smallest and k-th largest of ``count`` enclose the median.

    0 where even the smallest and the largest do not do so with ``confidence``.
    """
    allowed = (1 - confidence) / 2
    tail, term, rank = 0.0, 0.5**count, 0
    # tail: probability that fewer than ``rank + 1`` samples fall below the median.
    while rank < count // 2:
        tail += term
        if tail > allowed:
            break
        rank += 1
        term *= (count - rank + 1) / rank
    return rank


def _percentile(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
