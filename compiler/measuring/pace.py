"""Whether the processor runs as fast as it can while something is timed on it.

A clock that was turned down, a neighbour on the same core or a host that gives the machine less
slow everything down for seconds or minutes: samples then agree with each other and are wrong
together. Knows a standard piece of work and nothing of what is timed.
"""

from __future__ import annotations

import hashlib
import math
import time

#: Hashing stays within one core and its nearest cache: some 100 microseconds.
_WORK = bytes(1 << 17)
_TRIES = 3
#: Times of the standard piece of work over the shortest seen, up to which the pace is full.
SLOW = 1.1
_PAUSE_S = 0.02


class Pace:
    """The pace of the processor, against the best that this object has seen."""

    def __init__(self) -> None:
        self._best_s = math.inf

    def slowness(self) -> float:
        """Time of the standard work over the shortest seen; 1 at full pace."""
        taken = []
        for _ in range(_TRIES):
            start = time.perf_counter()
            hashlib.sha256(_WORK)
            taken.append(time.perf_counter() - start)
        self._best_s = min(self._best_s, *taken)
        return min(taken) / self._best_s

    def recovered(self, seconds: float) -> bool:
        """Whether the pace is full, now or within so many seconds."""
        end = time.monotonic() + seconds
        while self.slowness() > SLOW:
            if time.monotonic() > end:
                return False
            time.sleep(_PAUSE_S)
        return True
