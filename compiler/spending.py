"""What deciding on a graph may cost, in seconds that its program waits.

Held against Inductor's own work on the same program, as it is found to take in this process, unless
the user gave a number of seconds. Says whether something still fits; does none of it, and never
ends what has begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: Of Inductor's own time, what everything else may take where nothing is promised, what more for
#: each part of the graph's time that is (a tenth of it adds a half), and the most.
SHARE, SHARE_OF_PROMISE, MOST_SHARE = 0.8, 5.0, 4.0
#: Seconds that a program may take beside it in any case where so much of a graph's time is promised
#: (less where less is), however small the program is.
LEAST_S, PROMISE = {"cpu": 3.0, "cuda": 8.0}, 0.1
#: Seconds that a program may wait beside all that for its measuring process and Inductor's pool to
#: start, by kind of device. Beside an H200 they were there after five, and after eleven where
#: Python keeps no byte code and no code of imported modules is kept yet.
START_S = {"cpu": 0.0, "cuda": 12.0}
#: Part of that waiting which is taken off what may be spent: who waited long is not to go on long.
WAITED = 0.5
#: Up to what promise no process is waited for, and from which on it is for all of that time.
NOT_AWAITED, AWAITED = 0.05, 0.15
#: Of these, and of what tracing leaves, what a forward graph may take whose backward is still to
#: come, and mostly runs longer.
FORWARD_PART = 0.4
#: Seconds that Inductor's compile of a graph is taken to need where it came from a cache.
_CACHED_S = 5.0

#: Of Inductor's own time so far, what looking at the graph under other choices may take, and the
#: seconds that it may take in any case: in a warm process Inductor's own time is a moment.
_LOOKING, _LEAST_LOOKING_S = 0.5, 1.0
#: How often another schedule than Inductor's wins a contest, at the most.
_WINS = 0.5

_Clock = Callable[[], float]


@dataclass
class Spending:
    """Of one program: all its graphs draw on what Inductor takes for them together."""

    #: Seconds for each graph by the user's wish; None for a share of Inductor's own time.
    given_s: float | None = None
    clock: _Clock = time.monotonic
    #: Seconds of Inductor's own work on graphs that are done with, tracing included.
    own_s: float = 0.0
    #: Seconds that they took beside it.
    extra_s: float = 0.0
    #: Seconds for which they waited for processes to start.
    waited_s: float = 0.0
    _traced_from: float | None = field(default=None, init=False)

    def begin(self) -> None:
        """The program is traced from now on, until its first graph is there."""
        self._traced_from = self.clock()

    def graph(self) -> GraphSpending:
        """A graph begins."""
        now = self.clock()
        if self._traced_from is not None:
            self.own_s += now - self._traced_from
            self._traced_from = None
        return GraphSpending(self, now)


@dataclass
class GraphSpending:
    """Of one graph."""

    program: Spending
    began: float
    #: Seconds of Inductor's own work on the graph, as far as they are known.
    own_s: float = 0.0
    #: Seconds that it takes Inductor to lower the graph and generate its code once more: what
    #: another schedule costs after it was chosen.
    again_s: float = 0.0
    #: Kind of the device that it runs on.
    kind: str = "cpu"
    #: Whether a backward graph follows.
    forward: bool = False
    #: Share of its time that the graph might gain, as far as anything can be said.
    promise: float = 0.0
    #: Whether one contest is held whatever is promised and allowed.
    due: bool = False
    #: Seconds for which it waited for processes to start.
    waited_s: float = 0.0

    @property
    def given(self) -> bool:
        """Whether the user said how long it may take."""
        return self.program.given_s is not None

    def own(self, seconds: float, *, again: bool = False) -> None:
        """Inductor did something that it would have done anyhow.

        ``again``: it is to be done once more where another schedule than its own is chosen.
        """
        self.own_s += seconds
        self.again_s += seconds if again else 0.0

    def cached(self) -> None:
        """Inductor's own compile came from a cache, which tells nothing of how long it takes."""
        self.own_s = max(self.own_s, _CACHED_S)

    @property
    def starting_s(self) -> float:
        """Seconds for which a measuring process that starts may be waited for."""
        part = 1.0 if self.due else (self.promise - NOT_AWAITED) / (AWAITED - NOT_AWAITED)
        most_s = START_S[self.kind] * min(1.0, max(0.0, part))
        return max(0.0, most_s - self.program.waited_s)

    @property
    def awaits_start(self) -> bool:
        """Whether a measuring process that starts is waited for longer than a moment.

        A GPU's is a new one, which may take as long to start as a small program to compile; a CPU's
        is a copy of the program's.
        """
        return self.kind == "cpu" or self.starting_s > 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """It waits in here for processes to start, which is spent once a program.

        Where that fails it was no waiting for a start.
        """
        began = self.program.clock()
        yield
        counted = min(self.program.clock() - began, self.starting_s)
        self.waited_s += counted
        self.program.waited_s += counted

    @property
    def extra_s(self) -> float:
        """Seconds that the graph took so far beside what is Inductor's own."""
        passed = self.program.clock() - self.began
        return max(0.0, passed - self.own_s - (1.0 - WAITED) * self.waited_s)

    @property
    def allowed_s(self) -> float:
        """Seconds that may go beside Inductor's own work on this graph."""
        if self.program.given_s is not None:
            return self.program.given_s
        share = min(SHARE + SHARE_OF_PROMISE * self.promise, MOST_SHARE)
        part = FORWARD_PART if self.forward else 1.0
        # What was not spent on the program's graphs before is this one's, and no debt of theirs.
        spared = max(0.0, part * SHARE * self.program.own_s - self.program.extra_s)
        least = part * LEAST_S[self.kind] * min(1.0, self.promise / PROMISE)
        return max(share * self.own_s + spared, least - self.program.extra_s)

    @property
    def looking_s(self) -> float:
        """Seconds for looking at the graph under choices and searching plans."""
        if self.program.given_s is not None:
            return self.program.given_s / 4
        # Of what is known by now: compilers are still at work on its own kernels.
        return max(_LOOKING * (self.own_s + self.program.own_s), _LEAST_LOOKING_S)

    def left(self) -> float:
        """Seconds that may still be spent, at least 0."""
        return max(0.0, self.allowed_s - self.extra_s)

    def fits(self, seconds: float) -> bool:
        """Whether something may begin that will take so long, and what may follow if it wins."""
        return self.given or seconds + _WINS * self.again_s <= self.left()

    def end(self) -> str:
        """The graph is done with; what it cost, in words."""
        self.program.own_s += self.own_s
        self.program.extra_s += self.extra_s
        waited = f", {self.waited_s:.1f} s waited" if self.waited_s else ""
        return (
            f"{self.own_s:.1f} s are Inductor's own; of {self.allowed_s:.1f} s beside it "
            f"{self.extra_s:.1f} s were used{waited}"
        )
