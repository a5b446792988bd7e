"""Whether the processor runs as fast as it can while something is timed on it.

A neighbour on the other hyperthread of a core, a clock that was turned down or a host that gives
the machine less slows everything down for milliseconds or minutes: samples then agree with each
other and are wrong together. Knows two standard pieces of work and nothing of what is timed.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import torch

from fusewise.compiler.measuring.quiet import Quiet
from fusewise.costmodel.device import physical_name

#: Elements for each of torch's threads to take the sigmoid of, in place: some 20 microseconds of
#: vector arithmetic on what is in a core's own cache. A neighbour on the core takes a part of its
#: units; work of which each step waits for the one before, such as hashing, would not show that.
_EACH = 1 << 16
#: Elements for each thread to add a number to: a quarter of a megabyte that comes from a core's
#: second cache each time, as most of what kernels of a graph read does.
_MOVED_EACH = 1 << 16
#: The shortest of so many counts.
_TRIES = 3
#: Seconds that these take of both, roughly.
_TAKES_S = 1e-4
#: Seconds over which the first look is taken where there is no better to hold it against.
_LEARNING_S = 1.0
#: Seconds for which the best that was seen on a machine counts: its host may change.
_RECENT_S = 86400.0
#: Less is no better best: it would be written down again and again.
_BETTER = 0.995
#: Times of the arithmetic over the shortest seen, up to which the pace is full. With a neighbour on
#: a core it is 1.4 and more; without one 1.2 at most, nearly always: the shortest is the luckiest
#: of very many.
SLOW = 1.25
#: What a slower pace of arithmetic and of what is moved does to kernels, as exponents: some of what
#: they take is spent elsewhere. Of 310 and 643 kernels that were timed twice on a Xeon most agree
#: so; fitted to either they are 0.6 and 0.3, 0.5 and 0.5.
_OF_SLOWNESS, _OF_DRAG = 0.4, 0.4
_PAUSE_S = 0.01
#: Seconds without a moment of full pace after which none is waited for: some neighbours stay.
_PATIENCE_S = 10.0


class Moment(NamedTuple):
    """What the standard work took at some moment, over the shortest seen; 1 at full pace."""

    #: Of arithmetic in what is a core's own, where a neighbour on the core shows.
    slowness: float
    #: Of what goes through a core's second cache, which is what kernels are slowed down with.
    drag: float


#: Where nothing is in the way, in the median.
_USUAL: Final = Moment(1.08, 1.12)


def at_usual_pace(taken: float, moment: Moment) -> float:
    """What a kernel would have taken at the pace that a processor has where nothing is in the way.

    Of what goes beyond :data:`SLOW` nothing is taken off: what a neighbour does to a kernel is
    another thing with each.

    Args:
        taken: the time that it took, in any unit.
        moment: what the standard work took meanwhile.
    """
    slower = min(moment.slowness, SLOW) / _USUAL.slowness
    drag = min(moment.drag, SLOW) / _USUAL.drag
    return taken / float(slower**_OF_SLOWNESS * drag**_OF_DRAG)


#: Seconds that the two pieces of the standard work take.
_Seconds = tuple[float, float]
_NEVER: _Seconds = (math.inf, math.inf)


class Pace:
    """The pace of the cores that torch's threads run on, against the best seen on this machine.

    The best is kept in a file for other processes: a neighbour may be there for all the time of
    one of them, to which its own best is then no measure.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where the best is kept; None for the system's folder of temporary files."""
        self._folder = folder or Path(tempfile.gettempdir())
        self._quiet = Quiet()
        self._work: tuple[Callable[[], object], ...] = ()
        self._threads = 0
        self._best_s = _NEVER
        #: When the pace was full last, or first looked at.
        self._full_at: float | None = None

    def moment(self) -> Moment:
        """Times of the standard work over the shortest seen."""
        threads = torch.get_num_threads()
        if self._threads != threads:
            self._threads = threads
            self._work = _standard_work(threads)
            self._learn()
        taken = self._time()
        self._take(taken)
        moment = Moment(taken[0] / self._best_s[0], taken[1] / self._best_s[1])
        if moment.slowness <= SLOW or self._full_at is None:
            self._full_at = time.monotonic()
        return moment

    @property
    def stays_slow(self) -> bool:
        """Whether the pace has not been full for long."""
        return self._full_at is not None and time.monotonic() - self._full_at > _PATIENCE_S

    def recovered(self, seconds: float) -> bool:
        """Whether the pace is full, now or within so many seconds.

        Nothing is waited for where it has not been for long.
        """
        end = time.monotonic() + seconds
        while self.moment().slowness > SLOW:
            if self.stays_slow or time.monotonic() > end:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _learn(self) -> None:
        """Find out the best: of other processes, or over some time."""
        path = self._path()
        self._best_s = _NEVER
        try:
            fresh = time.time() - path.stat().st_mtime < _RECENT_S
            arithmetic, moved = map(float, path.read_text().split())
        except (OSError, ValueError):
            # None has written one down, or not to the end.
            fresh = False
        if fresh and min(arithmetic, moved) > 0:
            self._best_s = arithmetic, moved
            return
        end = time.monotonic() + _LEARNING_S
        while time.monotonic() < end:
            self._best_s = _least(self._best_s, self._time())
            time.sleep(_PAUSE_S)
        self._keep()

    def _take(self, seconds: _Seconds) -> None:
        before = self._best_s
        self._best_s = _least(before, seconds)
        if any(now < _BETTER * then for now, then in zip(seconds, before, strict=True)):
            self._keep()

    def _keep(self) -> None:
        """Write the best down for others, who learn it themselves where that fails."""
        path = self._path()
        part = path.with_name(f"{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            part.write_text(" ".join(map(repr, self._best_s)))
            part.replace(path)

    def _path(self) -> Path:
        name, threads = physical_name(torch.device("cpu")), torch.get_num_threads()
        return self._folder / f"fusewise-{name}-{threads}t-{torch.__version__}.pace"

    def _time(self) -> _Seconds:
        self._quiet.expect(_TAKES_S)
        with self._quiet:
            arithmetic, moved = (min(_timed(work) for _ in range(_TRIES)) for work in self._work)
        return arithmetic, moved


def _standard_work(threads: int) -> tuple[Callable[[], object], ...]:
    """What is timed: arithmetic, and what moves."""
    computed, moved = torch.zeros(_EACH * threads), torch.zeros(_MOVED_EACH * threads)
    return computed.sigmoid_, lambda: moved.add_(1.0)


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _least(one: _Seconds, other: _Seconds) -> _Seconds:
    return min(one[0], other[0]), min(one[1], other[1])
