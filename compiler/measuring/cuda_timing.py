"""Taking times on a GPU: launches without the launching process.

A graph is captured here without the collection of garbage and the return of memory that
``torch.cuda.graph`` begins with: both cost more than the timing itself.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import torch

from fusewise.compiler.measuring.cuda_clock import stay_awake, wake

#: Launches in one graph, and seconds after which there are enough of them.
_LAUNCHES, _ENOUGH_S = 20, 1e-3
#: Seconds that its replay is to take at least, for which there may be this many.
_SAMPLE_S, _MOST_LAUNCHES = 3e-4, 400
#: What a launch takes at the least, where the noise of two times is as large as their difference.
_LEAST_S = 1e-7


def captured(call: Callable[[], Any], launches: int = 1) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of some calls, and what the last one returned, which the graph writes to.

    Raises:
        RuntimeError: the call does what cannot be captured, such as waiting for the device.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    # What is collected during a capture may be something of the device's.
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for _ in range(launches):
                    result = call()
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
    return graph, result


class Stopwatch:
    """Time between two points on the device."""

    def __init__(self) -> None:
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, run: Callable[[], Any]) -> float:
        """Seconds that the device takes for what ``run`` has it do."""
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3


def samples(call: Callable[[], Any]) -> Callable[[], float]:
    """A function that takes one sample of a launch that can be repeated: seconds, cache warm."""
    wake()
    sample, _ = sampler(call, _nothing, single=False)

    def awake() -> float:
        wake()
        found = sample()
        stay_awake()
        return found

    stay_awake()
    return awake


def _nothing() -> None:
    """What there is to put back for a call that may be repeated."""


def sampler(
    call: Callable[[], Any], restore: Callable[[], None], *, single: bool
) -> tuple[Callable[[], float], str]:
    """A function that takes one sample of a call, seconds a launch, and what its clock is.

    Args:
        call: launches the kernel on the current stream; it has been tuned.
        restore: puts back what it changes; called before each sample.
        single: whether a second launch without ``restore`` between could do harm: each launch is
            then timed with it, and it alone besides.
    """
    watch = Stopwatch()

    def once() -> float:
        restore()
        return watch.time(call)

    def restored_call() -> Any:
        restore()
        return call()

    once()
    launches = max(1, min(_LAUNCHES, math.ceil(_ENOUGH_S / once())))
    try:
        if not single:
            return _replayed(watch, call, restore, launches), "cuda graph"
        both = _replayed(watch, restored_call, restore, launches)
        alone = _replayed(watch, restore, restore, launches)
    except RuntimeError:
        # A device that is lost for good says so here.
        torch.cuda.synchronize()
        return once, "events"
    return lambda: max(both() - alone(), _LEAST_S), "cuda graph less copies"


def _replayed(
    watch: Stopwatch, call: Callable[[], Any], restore: Callable[[], None], launches: int
) -> Callable[[], float]:
    """A function that replays a graph of some calls and gives the seconds of one."""

    def prepare(launches: int) -> Callable[[], float]:
        restore()
        graph, kept = captured(call, launches)

        def replay(_: Any = kept) -> float:
            restore()
            return watch.time(graph.replay) / launches

        replay()
        return replay

    replay = prepare(launches)
    took = replay() * launches
    if took < _SAMPLE_S:
        more = math.ceil(launches * _SAMPLE_S / max(took, 1e-6))
        replay = prepare(min(_MOST_LAUNCHES, more))
    return replay
