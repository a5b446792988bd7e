"""Measuring a device with plain eager operations: copies, gathers, atomics, arithmetic, launch.

Each rate is what the device can reach, whatever else runs on it: the best single call of several
sweeps. Nothing here compiles code, times a generated kernel, or keeps what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: Sweeps at least; the more, the likelier a quiet moment for each call.
_SWEEPS: Final = 3
#: Seconds of one sweep of one call.
_SWEEP_S: Final = 0.05
_LEAST_ROUNDS: Final = 3
_SHORT_S: Final = 20e-6
_CUDA_QUEUE: Final = 50
#: Elements from one that a strided read takes to the next.
_STRIDE: Final = 16
#: Elements of a table that many additions meet in.
_CONTENDED: Final = 1024
#: Rows and columns of the 16-bit matrices that are multiplied on a CPU: some processors take them
#: one by one, and larger ones would take seconds.
_HALF_SIDE: Final = 128
_Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Extent:
    """What sizes depend on."""

    #: Last-level cache, bytes.
    cache_bytes: int
    #: What the rate of one core is multiplied by, for work that stays on a core.
    spread: int


def probe(device: torch.device, extent: Extent, *, seconds: float = 0.0) -> dict[str, float]:
    """Rates of a CPU or CUDA device, by the names that ``DeviceProfile`` has for them.

    Takes some three seconds, or ``seconds`` where that is longer. On a CPU, torch's number of
    threads is one for a moment; settings of the user's program are put back.
    """
    cuda = device.type == "cuda"
    large = min(max((8 if cuda else 2) * extent.cache_bytes, 64 << 20), 256 << 20)
    # A quarter of the cache leaves room for both sides of the copy and for others.
    resident = min(extent.cache_bytes // 4, 8 << 20) // 8
    # Sizes at which neither the call nor the memory counts for much.
    wide = (1 << 22) if cuda else (1 << 16)
    side = 4096 if cuda else 512
    n = 1 << 20
    # A compiler that asks may have a mode active under which nothing really runs.
    with (
        _disable_current_modes(),
        torch.no_grad(),
        _current(device),
        _full_precision(cuda=cuda),
        _nondeterministic(),
    ):
        generator = torch.Generator(device=device).manual_seed(0)

        def random(count: int) -> torch.Tensor:
            return torch.rand(count, device=device, generator=generator)

        def places(count: int, table: int) -> torch.Tensor:
            return torch.randint(0, table, (count,), device=device, generator=generator)

        source, target = random(large // 4), random(large // 4)
        apart = source[::_STRIDE]
        strided = random(apart.numel())
        where, meeting = places(n, large // 4), places(n // 4, _CONTENDED)
        gathered, added, few = random(n), random(n // 4), random(_CONTENDED)
        near, near_out = random(resident), random(resident)
        values, values_out = random(wide), random(wide)
        left, product = random(side * side).view(side, side), random(side * side).view(side, side)
        tiny, tiny_out = random(16), random(16)
        shared: dict[str, _Call] = {
            "copy": lambda: target.copy_(source),
            "gather": lambda: torch.index_select(source, 0, where, out=gathered),
            "strided": lambda: strided.copy_(apart),
            "atomic": lambda: target.index_add_(0, where[: n // 4], added),
            "contended": lambda: few.index_add_(0, meeting, added),
        }
        own: dict[str, _Call] = {
            "cache": lambda: near_out.copy_(near),
            "exp": lambda: torch.exp(values, out=values_out),
            "matmul": lambda: torch.mm(left, left, out=product),
            "launch": lambda: torch.add(tiny, tiny, out=tiny_out),
        }
        half_side = side if cuda else _HALF_SIDE
        half = random(half_side * half_side).view(half_side, half_side).bfloat16()
        half_product = torch.empty_like(half)
        # Transposed as weights are.
        own["half"] = lambda: torch.mm(half, half.t(), out=half_product)
        if not cuda and torch.backends.mkldnn.is_available():
            own["onednn"] = lambda: _by_onednn(left)
        end = time.perf_counter() + seconds
        time_us = _cuda_us if cuda else _cpu_us
        # Work that stays on a core is timed on one and scaled up: threads that wait for each other
        # on a busy machine would make it slower by orders of magnitude. Memory is shared, so its
        # rate is what all threads get; one alone is the least it can be.
        best: dict[str, float] = {}
        with _one_thread(cuda=cuda):
            _sweep(time_us, {**shared, **own}, best, _SWEEPS)
        _sweep(time_us, shared, best, _SWEEPS)
        while time.perf_counter() < end:
            with _one_thread(cuda=cuda):
                _sweep(time_us, own, best, 1)
            _sweep(time_us, shared, best, 1)

    launch_us = best["launch"]
    half_flops = 2 * half_side**3 * extent.spread
    flops = 2 * side**3 * extent.spread
    return {
        "copy_gbs": _rate(2 * large, best["copy"], 0.0),
        "gather_gbs": _rate(4 * n, best["gather"], launch_us),
        "strided_gbs": _rate(4 * apart.numel(), best["strided"], launch_us),
        "atomic_gops": _rate(n // 4, best["atomic"], launch_us),
        "contended_gops": _rate(n // 4, best["contended"], launch_us),
        "flops_gfs": _rate(flops, best["matmul"], launch_us),
        "transcendental_gops": _rate(wide * extent.spread, best["exp"], launch_us),
        "launch_us": round(launch_us, 3),
        "cache_gbs": _rate(8 * resident * extent.spread, best["cache"], launch_us),
        "half_gfs": _rate(half_flops, best["half"], launch_us),
        "onednn_gfs": _rate(flops, best["onednn"], launch_us) if "onednn" in best else 0.0,
    }


def _by_onednn(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix times itself transposed, as oneDNN multiplies plain fp32 matrices."""
    linear: Any = torch.ops.mkldnn._linear_pointwise
    product: torch.Tensor = linear(matrix, matrix, None, "none", [], "")
    return product


def _rate(units: int, us: float, launch_us: float) -> float:
    """Units a nanosecond, which are 10^9 a second, the launch cost taken off (half at most)."""
    return round(units / (1e3 * max(us - launch_us, us / 2)), 3)


def _sweep(
    time_us: Callable[[_Call], float], calls: dict[str, _Call], best: dict[str, float], sweeps: int
) -> None:
    """Note the best time of each call; sweeps are apart in time, so a burst of load hits one."""
    for call in calls.values():
        call()
    for _ in range(sweeps):
        for name, call in calls.items():
            best[name] = min(best.get(name, float("inf")), time_us(call))


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _nondeterministic() -> Iterator[None]:
    """Let additions be atomic: with deterministic algorithms another kernel would be timed."""
    before = torch.are_deterministic_algorithms_enabled()
    if not before:
        yield
        return
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


@contextmanager
def _one_thread(*, cuda: bool) -> Iterator[None]:
    threads = torch.get_num_threads()
    if cuda or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _full_precision(*, cuda: bool) -> Iterator[None]:
    """Keep matrix multiplication at fp32: a setting of the user's program must not change a rate.

    Only touched where a lower precision is in force, and put back; torch refuses its older
    precision functions once the newer ones disagree with them.
    """
    backends: Any = torch.backends
    setting = backends.cuda.matmul if cuda else backends.mkldnn.matmul
    before = setting.fp32_precision
    if before in ("none", "ieee"):
        yield
        return
    setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def _cpu_us(call: _Call) -> float:
    """Best time of a single call in 50 ms, three at least; of ten together where they are short."""
    best, end = float("inf"), time.perf_counter() + _SWEEP_S
    repeats, rounds = 1, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
        rounds += 1
        # Below 20 us the clock itself would count.
        repeats = 10 if best < _SHORT_S else 1
    return best * 1e6


def _cuda_us(call: _Call) -> float:
    """Time of one call on the device: replays of a CUDA graph of many, the best of several.

    Launched from Python, a small kernel would be timed at the pace of Python. In a graph it shows
    the distance to the next one, which is what a chain of small kernels costs.
    """
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CUDA_QUEUE):
            call()
    best, stop = float("inf"), time.perf_counter() + _SWEEP_S
    rounds = 0
    # The clocks rise while it runs: the first replays are slower than what programs will see.
    while rounds < _LEAST_ROUNDS or time.perf_counter() < stop:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, float(begin.elapsed_time(end)) / _CUDA_QUEUE * 1e3)
        rounds += 1
    return best
