"""Which of several ways to run a kernel is the fastest: a look at each, then rounds of the best.

A choice among many by one noisy time each takes what was lucky, so the few that look best are
timed again in interleaved rounds, and the gate decides whether one of them takes the place of the
first. What a sample is, and how it is taken, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusewise.search.gate import MARGIN, judge
from fusewise.search.interleave import interleave

#: Samples of each in the first look, whose fastest counts.
_LOOKS = 2
#: How many are timed in rounds beside the first, and by how much they may look slower than the
#: fastest.
_FINALISTS, _NEAR = 4, 1.1
#: Rounds, at the least and the most, and the interval at which more are no use.
_ROUNDS, _MOST_ROUNDS, _INTERVAL = 12, 24, 0.004


def fastest(samples: Sequence[Callable[[], float]], budget_s: float) -> int:
    """Index of the fastest; 0, what was there before, unless another is faster beyond noise.

    Args:
        samples: each call takes one time, above 0.
        budget_s: wall-clock seconds for the rounds.

    Raises:
        MeasureError: a time is not finite or not above 0.
    """
    if len(samples) == 1:
        return 0
    looks = [min(sample() for _ in range(_LOOKS)) for sample in samples]
    best = min(looks)
    near = sorted(i for i in range(1, len(looks)) if looks[i] <= best * _NEAR)
    finalists = [0, *sorted(near, key=lambda i: looks[i])[:_FINALISTS]]
    times = interleave(
        [samples[i] for i in finalists],
        budget_s=budget_s,
        min_rounds=_ROUNDS,
        max_rounds=_MOST_ROUNDS,
        target_interval=_INTERVAL,
        threshold=1 - MARGIN,
    )
    chosen = judge(times, [[]] * len(times), resolutions=[]).chosen
    return finalists[chosen]
