"""One candidate made ready to be timed again and again: CPU calls or replays of a CUDA graph.

A run owns its inputs. Whatever the program overwrites is restored between rounds and outside the
timed part, so that values do not drift and indices stay indices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusewise.compiler.inductor.program import Call
from fusewise.compiler.measuring import cuda_timing
from fusewise.compiler.measuring.quiet import LONGEST_S, Quiet

#: One timed round lasts at least this long, so that the clock's own cost does not count.
_ROUND_S = 2e-3
_MOST_REPEATS = 2000
#: Calls that show how long one takes.
_CALIBRATIONS = 3
#: Times that a round is taken at most where other programs get in.
_MOST_TRIES = 3
#: A call that takes longer is not repeated for that.
_LONG_S = _MOST_TRIES * LONGEST_S


class _Run:
    """Shared part: the inputs, and putting back what the program overwrites."""

    def __init__(self, call: Call, inputs: Sequence[Any], overwritten: Sequence[int]) -> None:
        self._call = call
        self._inputs = [_private(value) for value in inputs]
        self._pristine = {i: memory(self._inputs[i]).clone() for i in overwritten}
        #: Indices that were overwritten would send a second call out of bounds.
        self._single = any(not v.dtype.is_floating_point for v in self._pristine.values())
        self.repeats = 1
        #: Seconds of one call, as far as they were known when it was made ready.
        self.takes_s = 0.0

    def _restore(self) -> None:
        for i, value in self._pristine.items():
            memory(self._inputs[i]).copy_(value)

    def _calibrate(self, timed: Callable[[], float]) -> float:
        """Decide how often it is called in a round; seconds that one call takes."""
        once = timed()
        if once <= LONGEST_S:
            # It was slower than others will be.
            once = timed()
            for _ in range(_CALIBRATIONS - 1):
                # What takes longer than a round is called once in each, however long exactly.
                if once > _ROUND_S:
                    break
                once = min(once, timed())
        if not self._single:
            self.repeats = max(1, min(_MOST_REPEATS, int(_ROUND_S / max(once, 1e-7))))
        self.takes_s = once
        return once


class CpuRun(_Run):
    """Calls on the CPU, wall clock."""

    def __init__(self, call: Call, inputs: Sequence[Any], overwritten: Sequence[int]) -> None:
        super().__init__(call, inputs, overwritten)
        #: Done before each call, outside the time.
        self.before_each: Callable[[], object] | None = None
        self._quiet = Quiet()
        once = self._calibrate(self._round)
        for _ in range(_MOST_TRIES - 1):
            # Other programs make a call look longer than a window may be.
            if not self._quiet.disturbed or once <= _ROUND_S or once > _LONG_S:
                break
            once = min(once, self._round())
        self._least = once
        self._quiet.expect(self.repeats * once)

    def __call__(self) -> float:
        """Seconds for one call, averaged over one round; the best of some if it is disturbed.

        Other programs get into every round of a call that takes long, and into all alike.
        """
        best = self._round()
        for _ in range(_MOST_TRIES - 1):
            if not self._quiet.disturbed or best > _LONG_S:
                break
            best = min(best, self._round())
        if best < self._least:
            # Runs that are held against each other are to have windows all of them, or none.
            self._least = best
            self._quiet.expect(self.repeats * best)
        return best

    def once(self) -> Any:
        """Call it once; what it returns."""
        self._restore()
        return self._call(list(self._inputs))

    def _round(self) -> float:
        self._restore()
        call, inputs = self._call, self._inputs
        before = self.before_each
        with self._quiet:
            start = time.perf_counter()
            apart = 0.0
            for _ in range(self.repeats):
                if before is not None:
                    paused = time.perf_counter()
                    before()
                    apart += time.perf_counter() - paused
                call(list(inputs))
            return (time.perf_counter() - start - apart) / self.repeats


class CudaRun(_Run):
    """Replays of a CUDA graph of one call, timed by events on the device.

    Launching from Python would measure Python: many small kernels are launched more slowly than
    they run.
    """

    def __init__(self, call: Call, inputs: Sequence[Any], overwritten: Sequence[int]) -> None:
        super().__init__(call, inputs, overwritten)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._restore()
                call(list(self._inputs))
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._restore()
        # The outputs stay referenced: the graph writes to their memory at every replay.
        self._graph, self._outputs = cuda_timing.captured(lambda: call(list(self._inputs)))
        self._watch = cuda_timing.Stopwatch()
        self._calibrate(self)

    def __call__(self) -> float:
        """Seconds for one replay, averaged over one round."""
        self._restore()
        return self._watch.time(self._replay) / self.repeats

    def _replay(self) -> None:
        for _ in range(self.repeats):
            self._graph.replay()


def _private(value: Any) -> Any:
    """A copy with the same strides, also where elements overlap."""
    if not isinstance(value, torch.Tensor):
        return value
    return memory(value).clone().as_strided(value.shape, value.stride())


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last as one flat tensor.

    Elements of an expanded tensor share memory, and torch refuses to write to them as a tensor.
    """
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    length = 1 + sum((n - 1) * s for n, s in spans) if tensor.numel() else 0
    return tensor.as_strided((length,), (1,))


def private_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Copies of all inputs that a program may overwrite."""
    return [_private(value) for value in inputs]


def put_back(inputs: Sequence[Any], values: Sequence[Any]) -> None:
    """Give inputs that a program may have overwritten their values again."""
    for tensor, value in zip(inputs, values, strict=True):
        if isinstance(tensor, torch.Tensor):
            memory(tensor).copy_(memory(value))


def overwritten_inputs(before: Sequence[Any], after: Sequence[Any]) -> list[int]:
    """Positions of the tensors that differ, bit for bit."""
    return [
        i
        for i, (a, b) in enumerate(zip(before, after, strict=True))
        if isinstance(a, torch.Tensor) and not _identical(a, b)
    ]


def _identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype.is_floating_point:
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    return torch.equal(a, b)
