"""One step of a program as something that times itself: by calls, or by replays of a CUDA graph.

A step is all that a user's loop would run: the forward, and where there is a loss its backward.
Which program it is and how it was compiled makes no difference here.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from workloads import Program

#: A round lasts about this long, so that the clock's own cost does not count.
_ROUND_S = {"cpu": 5e-3, "cuda": 2e-3}
_MOST_REPEATS = 100
_WARM_UP_CALLS = 3
#: Steps after the first until nothing is compiled or tuned any more.
SETTLING = 5


@contextmanager
def ended_if_it_hangs(seconds: float) -> Iterator[None]:
    """End this process after so many seconds in here, with where each of its threads was.

    One that hangs would hold up all that wait for their turn.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Step:
    """A program with a compiled function in the place of its own."""

    def __init__(self, program: Program, function: Callable[..., Any]) -> None:
        self._program = program
        self._function = function
        self._parameters = program.parameters() if program.backward else []

    def run(self) -> Any:
        """One step; what the program returns."""
        if not self._program.backward:
            with torch.no_grad():
                return self._function(*self._program.args)
        for parameter in self._parameters:
            parameter.grad = None
        loss = self._function(*self._program.args)
        loss.backward()
        return loss

    def first(self) -> list[Tensor]:
        """Run one step and copy all that came of it: results, gradients, overwritten tensors."""
        result = self.run()
        tensors = [v for v in pytree.tree_leaves(result) if isinstance(v, Tensor)]
        tensors += [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        tensors += list(self._program.state())
        return [tensor.detach().clone() for tensor in tensors]


class CallClock:
    """Wall-clock time of calls, on the CPU."""

    name = "calls"

    def __init__(self, step: Step) -> None:
        self._step = step
        self._repeats = 1
        self._repeats = _repeats(self, "cpu")

    def __call__(self) -> float:
        """Seconds for one step, averaged over one round."""
        start = time.perf_counter()
        for _ in range(self._repeats):
            self._step.run()
        return (time.perf_counter() - start) / self._repeats


class GraphClock:
    """Replays of a CUDA graph of one step, timed by events on the device.

    Calls would measure Python: many small kernels are launched more slowly than they run.
    """

    name = "cuda graph"

    def __init__(self, step: Step) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                step.run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            # Stays referenced: the graph writes to its memory at every replay.
            self._result = step.run()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._repeats = 1
        self._repeats = _repeats(self, "cuda")

    def __call__(self) -> float:
        """Seconds for one replay, averaged over one round."""
        self._start.record()
        for _ in range(self._repeats):
            self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e-3 / self._repeats


def clock_for(device: torch.device, step: Step) -> CallClock | GraphClock:
    """The clock of a device."""
    return GraphClock(step) if device.type == "cuda" else CallClock(step)


def _repeats(timed: Callable[[], float], device_type: str) -> int:
    for _ in range(_WARM_UP_CALLS):
        timed()
    once = min(timed() for _ in range(3))
    return max(1, min(_MOST_REPEATS, int(_ROUND_S[device_type] / max(once, 1e-7))))


def worst_error(values: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest relative error (L2) of any tensor against the one that is wanted.

    Raises:
        ValueError: the tensors are not the same in number or shape.
    """
    if [v.shape for v in values] != [w.shape for w in wanted]:
        raise ValueError(f"{len(values)} results instead of {len(wanted)}, or of other shapes")
    return max((_error(v, w) for v, w in zip(values, wanted, strict=True)), default=0.0)


def _error(value: Tensor, wanted: Tensor) -> float:
    value, wanted = value.double(), wanted.double()
    size = float(wanted.norm())
    difference = float((value - wanted).norm())
    # Infinities in the same place are right, and their difference is no number.
    if math.isnan(difference):
        same = (value == wanted) | (value.isnan() & wanted.isnan())
        return 0.0 if bool(same.all()) else float("inf")
    return difference / size if size else difference
