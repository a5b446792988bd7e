"""Timing each kernel of a program where it stands: on the values that reach it in a real run.

The kernels are globals of the generated module. Each is replaced by a stand-in that, when the
program calls it, calls the kernel many times, takes the time, and puts back what it overwrote
before it lets the program go on. Everything is warm: inputs and outputs that fit are in the cache.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from fusewise.compiler.measuring.runs import memory

#: One sample lasts at least this long, so that the clock's own cost does not count.
_SAMPLE_S = 3e-4
_MOST_REPEATS = 200
#: Larger arguments are not copied and put back around a kernel's timing.
_MOST_COPIED_BYTES = 1 << 28


def undisturbed(samples: Sequence[float]) -> list[float]:
    """The faster half of the samples.

    Whatever else runs on the machine only ever adds time, and to threads that wait for each other
    it adds fifty times what it takes. On a quiet machine both halves are alike.
    """
    return sorted(samples)[: (len(samples) + 1) // 2]


@dataclass
class CallTimes:
    """Times of one call in a program."""

    #: Name of the generated kernel; "" for an extern call.
    kernel: str
    #: Microseconds for one launch, one value a sample; empty where it was not to be timed.
    samples: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Effort:
    """How well to time each kernel."""

    #: Seconds a kernel, at most.
    seconds: float = 0.1
    min_samples: int = 9
    max_samples: int = 40
    #: Spread of the median, relative, below which more samples are no use.
    target_interval: float = 0.03


class KernelTimer:
    """Stand-ins for the kernels and extern calls of one loaded program."""

    def __init__(
        self,
        module: ModuleType,
        device: torch.device,
        effort: Effort,
        skipped: frozenset[tuple[str, int]] = frozenset(),
    ) -> None:
        """``skipped``: calls to leave untimed, by kernel name ("" for extern) and occurrence."""
        self._device = device
        self._effort = effort
        self._skipped = skipped
        self._seen: Counter[str] = Counter()
        self.calls: list[CallTimes] = []
        for name, value in list(vars(module).items()):
            if name.startswith("cpp_fused") or name == "cpp_kernel":
                setattr(module, name, _Function(self, name, value))
            elif name.startswith("triton_") and hasattr(value, "run"):
                setattr(module, name, _Launcher(self, name, value))
        externs = getattr(module, "extern_kernels", None)
        if externs is not None:
            setattr(module, "extern_kernels", _Namespace(self, externs))  # noqa: B010
        setattr(module, "torch", _Torch(self))  # noqa: B010 - a module has no such attribute to mypy

    def time(self, kernel: str, call: Callable[[], Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Time ``call``, then leave its effects as if it had been called once."""
        occurrence = (kernel, self._seen[kernel])
        self._seen[kernel] += 1
        if occurrence in self._skipped:
            self.calls.append(CallTimes(kernel))
            return call()
        copied = [memory(t) for t in tensors if t.numel() * t.itemsize <= _MOST_COPIED_BYTES]
        before = [t.clone() for t in copied]
        sample = (
            self._cuda_sampler(call) if self._device.type == "cuda" else self._cpu_sampler(call)
        )
        times = CallTimes(kernel)
        deadline = time.perf_counter() + self._effort.seconds
        while len(times.samples) < self._effort.max_samples:
            times.samples.append(sample() * 1e6)
            if len(times.samples) >= self._effort.min_samples and (
                time.perf_counter() > deadline or self._settled(times.samples)
            ):
                break
        self.calls.append(times)
        for tensor, value in zip(copied, before, strict=True):
            tensor.copy_(value)
        return call()

    def _settled(self, samples: Sequence[float]) -> bool:
        """Whether the middle half of the undisturbed samples, over √n, is within the target."""
        ordered = undisturbed(samples)
        n = len(ordered)
        width = (ordered[(3 * n) // 4] - ordered[n // 4]) / math.sqrt(n)
        return width <= self._effort.target_interval * ordered[n // 2]

    def _cpu_sampler(self, call: Callable[[], Any]) -> Callable[[], float]:
        def timed(repeats: int) -> float:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats

        timed(1)
        repeats = _repeats(min(timed(1) for _ in range(2)))
        return lambda: timed(repeats)

    def _cuda_sampler(self, call: Callable[[], Any]) -> Callable[[], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timed(run: Callable[[], Any]) -> float:
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e-3

        # The first call tunes the kernel, the second is warm.
        timed(call)
        repeats = _repeats(timed(call))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                call()
        timed(graph.replay)
        return lambda: timed(graph.replay) / repeats


def _repeats(once_s: float) -> int:
    return max(1, min(_MOST_REPEATS, int(_SAMPLE_S / max(once_s, 1e-7))))


def _tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    return [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]


class _Function:
    """Stands for a generated C++ kernel or an extern function."""

    def __init__(self, timer: KernelTimer, kernel: str, function: Callable[..., Any]) -> None:
        self._timer, self._kernel, self._function = timer, kernel, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._timer.time(
            self._kernel, lambda: self._function(*args, **kwargs), _tensors(args, kwargs)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class _Launcher:
    """Stands for a Triton kernel, which a program launches by its ``run``."""

    def __init__(self, timer: KernelTimer, kernel: str, launcher: Any) -> None:
        self._timer, self._kernel, self._launcher = timer, kernel, launcher

    def run(self, *args: Any, stream: Any, **kwargs: Any) -> Any:
        """Launch on the current stream, which under graph capture is not the program's."""
        del stream

        def launch() -> Any:
            current = torch.cuda.current_stream().cuda_stream
            return self._launcher.run(*args, stream=current, **kwargs)

        return self._timer.time(self._kernel, launch, _tensors(args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)


class _Namespace:
    """Stands for a namespace of extern functions."""

    def __init__(self, timer: KernelTimer, namespace: Any) -> None:
        self._timer, self._namespace = timer, namespace

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._namespace, name)
        if isinstance(value, torch._ops.OpOverload):
            return _Function(self._timer, "", value)
        if isinstance(value, torch._ops._OpNamespace | torch._ops.OpOverloadPacket):
            return _Namespace(self._timer, value)
        return _Function(self._timer, "", value) if callable(value) else value


class _Torch:
    """Stands for ``torch`` in a generated program: operators are timed, all else is torch's."""

    def __init__(self, timer: KernelTimer) -> None:
        self.ops = _Namespace(timer, torch.ops)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
