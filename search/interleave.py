"""Timing several runs against each other, round by round.

Clocks, temperature and neighbours drift over seconds, far more than good candidates differ. In
each round every run is timed once, so that a drift meets all alike and ratios within a round stay
comparable. What a run is, and how it times itself, is the caller's business.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from fusewise.schedule.errors import MeasureError
from fusewise.search.samples import summary

#: A run is dropped when, after this many rounds, it was slower than the first in every one...
_DROP_ROUNDS: Final = 5
#: ...and its median ratio to the first is above this.
_DROP_RATIO: Final = 1.3
#: In so many rounds a run that takes less than this of the first's time in each is plainly faster.
#: A burst of other work makes single rounds twice as slow; it does not meet the first in every
#: round and the other in none.
PLAIN_ROUNDS: Final = 3
PLAIN: Final = 0.5
#: Confidence at which a run is on one side of the threshold.
_DECIDED: Final = 0.99


def interleave(
    runs: Sequence[Callable[[], float]],
    *,
    budget_s: float,
    min_rounds: int = 12,
    max_rounds: int = 200,
    target_interval: float = 0.005,
    threshold: float | None = None,
    may_win: Sequence[bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[list[float]]:
    """Time all ``runs`` in rounds and give the times of each.

    Args:
        runs: each call runs once and returns its time, in whatever unit, above 0. The first is
            the baseline that the others are compared with; it is never dropped.
        budget_s: wall-clock seconds after which no further round is begun; a round that would by
            the length of the last not fit is not begun either. One round is always run, and as many
            as it takes to see that a run is plainly faster, with those runs alone that may be.
        min_rounds: rounds before the intervals may end it.
        max_rounds: rounds at most.
        target_interval: ends when for every run that is left half the 95 % interval of its ratio
            to the first (of its time, where it is the only one) is at most this, relative.
        threshold: ratio to the first that decides over a run; one whose 99 % interval lies wholly
            below it needs no further rounds either, and one whose interval lies above is dropped.
            Once all are dropped it ends.
        may_win: which runs may be the fastest, where only that one is wanted. A run that may not is
            timed in one round, and one that is slower than the best of the others is dropped as one
            that is slower than the first is. None where the times of all are wanted.
        clock: seconds; for tests.

    Returns:
        For each run the time in each round it took part in, from round 0 on. A run that was
        dropped for being clearly slower has fewer: entry i is of round i always, so entries pair.

    Raises:
        MeasureError: a run returned a time that is not finite or not above 0.
    """
    times: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    # The order within a round is shuffled, since what runs before a run leaves its traces in
    # caches; the seed is fixed so that a repeated measurement takes the same course.
    shuffler = random.Random(0)
    began = clock()
    while left:
        round_began = clock()
        order = list(left)
        shuffler.shuffle(order)
        for i in order:
            times[i].append(_timed(runs[i], i))
        done = len(times[0])
        left = [i for i in left if i == 0 or not _clearly_slower(times[i], times[0])]
        if done >= min_rounds and threshold is not None:
            left = [i for i in left if i == 0 or not _lost(times, i, threshold)]
        if may_win is not None:
            left = _race([i for i in left if i == 0 or may_win[i]], times, min_rounds)
        now = clock()
        if done >= max_rounds:
            break
        if now + (now - round_began) - began > budget_s:
            left = [i for i in left if i == 0 or _may_be_plain(times[i], times[0])]
            if done >= PLAIN_ROUNDS or len(left) == 1:
                break
            continue
        if len(runs) > len(left) == 1 and done >= min_rounds:
            break
        if done >= min_rounds and all(
            half_width(times, i) <= target_interval or _decided(times, i, threshold)
            for i in (left[1:] or left)
        ):
            break
    return times


def _decided(times: Sequence[Sequence[float]], i: int, threshold: float | None) -> bool:
    if threshold is None or i == 0:
        return False
    ratio = summary(ratios(times[i], times[0]), confidence=_DECIDED)
    return ratio.low > threshold or ratio.high < threshold


def _lost(times: Sequence[Sequence[float]], i: int, threshold: float) -> bool:
    return summary(ratios(times[i], times[0]), confidence=_DECIDED).low > threshold


def _race(left: Sequence[int], times: Sequence[Sequence[float]], min_rounds: int) -> list[int]:
    """Those that may still turn out to be the fastest, and the first."""
    best = min(left, key=lambda i: summary(times[i]).median)
    by_far = [i for i in left if i in (0, best) or not _clearly_slower(times[i], times[best])]
    if len(times[0]) < min_rounds:
        return by_far
    beaten = {
        i
        for i in by_far
        if i not in (0, best)
        and summary(ratios(times[i], times[best]), confidence=_DECIDED).low > 1
    }
    return [i for i in by_far if i not in beaten]


def half_width(times: Sequence[Sequence[float]], i: int) -> float:
    """Half the 95 % interval of run i's ratio to run 0 (of run 0's own time), relative."""
    return summary(times[0] if i == 0 else ratios(times[i], times[0])).half_width


def ratios(times: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Time over baseline, round by round, for the rounds that both took part in."""
    return [t / b for t, b in zip(times, baseline, strict=False)]


def _timed(run: Callable[[], float], i: int) -> float:
    value = run()
    if not (math.isfinite(value) and value > 0):
        raise MeasureError(
            f"a time of {value}",
            subject=f"run {i}",
            remedy="have the run return the time it took, above 0",
        )
    return value


def plainly_faster(by_round: Sequence[float]) -> bool:
    """Whether ratios to the first run's times tell that a run is faster, however few they are."""
    return len(by_round) >= PLAIN_ROUNDS and max(by_round) < PLAIN


def _may_be_plain(times: Sequence[float], baseline: Sequence[float]) -> bool:
    return max(ratios(times, baseline)) < PLAIN


def _clearly_slower(times: Sequence[float], baseline: Sequence[float]) -> bool:
    by_round = ratios(times, baseline)
    if len(by_round) < _DROP_ROUNDS:
        return False
    return min(by_round) > 1 and summary(by_round).median > _DROP_RATIO
