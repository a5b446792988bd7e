"""Whether the processor runs as fast as it can while something is timed on it.

A neighbour on the other hyperthread of a core, a clock that was turned down or a host that gives
the machine less slows everything down for milliseconds or minutes: samples then agree with each
other and are wrong together. Knows a standard piece of work and nothing of what is timed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

import torch

from fusewise.compiler.measuring.quiet import Quiet
from fusewise.costmodel.device import physical_name

#: Elements for each of torch's threads to take the sigmoid of, in place: some 20 microseconds of
#: vector arithmetic on what is in a core's own cache. A neighbour on the core takes a part of its
#: units; work of which each step waits for the one before, such as hashing, would not show that.
_EACH = 1 << 16
#: The shortest of so many counts.
_TRIES = 3
#: Seconds that these take, roughly.
_TAKES_S = 1e-4
#: Seconds over which the first look is taken where there is no better to hold it against.
_LEARNING_S = 1.0
#: Seconds for which the best that was seen on a machine counts: its host may change.
_RECENT_S = 86400.0
#: Less is no better best: it would be written down again and again.
_BETTER = 0.995
#: Times of the standard piece of work over the shortest seen, up to which the pace is full. With a
#: neighbour on a core it is 1.4 and more; without one 1.2 at most, nearly always: the shortest is
#: the luckiest of very many.
SLOW = 1.25
#: The same where nothing is in the way, in the median.
_USUAL = 1.08
#: What a slower pace of the standard work does to kernels, as an exponent: some of what they take
#: is spent on memory, whose pace is another. Fitted to kernels that were timed twice (logarithm of
#: the ratio of their times over that of the two slownesses: 0.594 of 550 kernels, 0.600 of 286).
_OF_KERNELS = 0.6
_PAUSE_S = 0.01
#: Seconds without a moment of full pace after which none is waited for: some neighbours stay.
_PATIENCE_S = 10.0


def at_usual_pace(taken: float, slowness: float) -> float:
    """What a kernel would have taken at the pace that a processor has where nothing is in the way.

    Of what goes beyond :data:`SLOW` nothing is taken off: what a neighbour does to a kernel is
    another thing with each.

    Args:
        taken: the time that it took, in any unit.
        slowness: of the standard work meanwhile, as :meth:`Pace.slowness` tells it.
    """
    return taken * float((_USUAL / min(slowness, SLOW)) ** _OF_KERNELS)


class Pace:
    """The pace of the cores that torch's threads run on, against the best seen on this machine.

    The best is kept in a file for other processes: a neighbour may be there for all the time of
    one of them, to which its own best is then no measure.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where the best is kept; None for the system's folder of temporary files."""
        self._folder = folder or Path(tempfile.gettempdir())
        self._quiet = Quiet()
        self._work = torch.empty(0)
        self._best_s = 0.0
        #: When the pace was full last, or first looked at.
        self._full_at: float | None = None

    def slowness(self) -> float:
        """Time of the standard work over the shortest seen; 1 at full pace."""
        wanted = _EACH * torch.get_num_threads()
        if self._work.numel() != wanted:
            self._work = torch.zeros(wanted)
            self._learn()
        taken = self._time()
        self._take(taken)
        slowness = taken / self._best_s
        if slowness <= SLOW or self._full_at is None:
            self._full_at = time.monotonic()
        return slowness

    @property
    def stays_slow(self) -> bool:
        """Whether the pace has not been full for long."""
        return self._full_at is not None and time.monotonic() - self._full_at > _PATIENCE_S

    def recovered(self, seconds: float) -> bool:
        """Whether the pace is full, now or within so many seconds.

        Nothing is waited for where it has not been for long.
        """
        end = time.monotonic() + seconds
        while self.slowness() > SLOW:
            if self.stays_slow or time.monotonic() > end:
                return False
            time.sleep(_PAUSE_S)
        return True

    def _learn(self) -> None:
        """Find out the best: of other processes, or over some time."""
        path = self._path()
        try:
            fresh = time.time() - path.stat().st_mtime < _RECENT_S
            self._best_s = float(path.read_text()) if fresh else 0.0
        except (OSError, ValueError):
            # None has written one down, or not to the end.
            self._best_s = 0.0
        if self._best_s > 0:
            return
        end = time.monotonic() + _LEARNING_S
        self._best_s = self._time()
        while time.monotonic() < end:
            time.sleep(_PAUSE_S)
            self._best_s = min(self._best_s, self._time())
        self._keep()

    def _take(self, seconds: float) -> None:
        if seconds < self._best_s:
            better = seconds < _BETTER * self._best_s
            self._best_s = seconds
            if better:
                self._keep()

    def _keep(self) -> None:
        """Write the best down for others, who learn it themselves where that fails."""
        path = self._path()
        part = path.with_name(f"{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            part.write_text(repr(self._best_s))
            part.replace(path)

    def _path(self) -> Path:
        name, threads = physical_name(torch.device("cpu")), torch.get_num_threads()
        return self._folder / f"fusewise-{name}-{threads}t-{torch.__version__}.pace"

    def _time(self) -> float:
        """Seconds that the standard work takes."""
        taken = []
        self._quiet.expect(_TAKES_S)
        with self._quiet:
            for _ in range(_TRIES):
                start = time.perf_counter()
                self._work.sigmoid_()
                taken.append(time.perf_counter() - start)
        return min(taken)
