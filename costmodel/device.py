"""What a device can do: a profile of a dozen rates, measured once with plain eager operations.

The rates are what generated kernels are up against (bandwidth, gather, arithmetic, launch cost).
They are device features of the learned model and the constants of the roofline. Nothing here
compiles code or times a generated kernel.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusewise.schedule.errors import ModelError, UnsupportedError

_SWEEPS = 3
_CPU_SWEEP_S = 0.05
#: Seconds of one sweep of one call on a GPU.
_CUDA_SWEEP_S = 0.05
_LEAST_ROUNDS = 3
_SHORT_S = 20e-6
_CUDA_QUEUE = 50
_FALLBACK_CACHE = 16 << 20
_Call = Callable[[], object]


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one device. GB and GFLOP are powers of ten; all rates are of the whole device."""

    #: Stable text that names the device, such as ``cpu-AMD_EPYC-2t`` or ``cuda-NVIDIA_H200``.
    key: str
    kind: Literal["cpu", "cuda"]
    name: str
    #: CPU: threads that torch uses. CUDA: threads that can be resident at once.
    threads: int
    #: Bytes read plus bytes written a second by a large copy, GB/s.
    copy_gbs: float
    #: Useful bytes a second of random four-byte reads from a table beyond the cache, GB/s.
    gather_gbs: float
    #: Rate of fp32 matrix multiplication, an addition and a multiplication counting two, GFLOP/s.
    flops_gfs: float
    #: Exponentials of cache-resident fp32 values, 10^9 a second.
    transcendental_gops: float
    #: Time from one small kernel to the next, microseconds.
    launch_us: float
    #: Last-level cache, bytes.
    cache_bytes: int
    #: CPU: logical cores. CUDA: streaming multiprocessors.
    cores: int
    #: As ``copy_gbs`` for a copy that stays in the cache; 0 where unknown, ``copy_gbs`` then holds.
    cache_gbs: float = 0.0


def device_key(device: torch.device) -> str:
    """The key of ``device``, without measuring anything.

    Raises:
        UnsupportedError: the device is neither a CPU nor a CUDA device.
    """
    kind = _kind(device)
    name = _identifier(_name(device))
    return f"cpu-{name}-{torch.get_num_threads()}t" if kind == "cpu" else f"cuda-{name}"


def physical_name(device: torch.device) -> str:
    """What tells the device from all others of this machine, whatever a process may see of them.

    Two processes that are each shown one GPU both call theirs ``cuda:0``.
    """
    if device.type != "cuda":
        return device.type
    return f"cuda-{torch.cuda.get_device_properties(device).uuid}"


def device_profile(device: torch.device, home: Path) -> DeviceProfile:
    """The profile kept in ``<home>/devices/``, probed and written there the first time.

    Predictions are functions of the profile. Reading it back rather than probing again is what
    lets two processes predict the same.

    Raises:
        UnsupportedError: see :func:`device_key`.
        ModelError: the stored profile cannot be read.
    """
    path = home / "devices" / f"{device_key(device)}.json"
    if path.is_file():
        try:
            return msgspec.json.decode(path.read_bytes(), type=DeviceProfile)
        except msgspec.DecodeError as error:
            raise ModelError(
                f"no device profile: {error}",
                subject=str(path),
                remedy="delete the file, it will be measured again",
            ) from error
    profile = probe_device(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{time.time_ns()}.tmp")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(profile)))
    try:
        # Whoever comes first wins, so that processes that start together agree afterwards.
        path.hardlink_to(scratch)
    except FileExistsError:
        return device_profile(device, home)
    finally:
        scratch.unlink()
    return profile


def probe_device(device: torch.device) -> DeviceProfile:
    """Measure ``device``; takes one to two seconds and some hundred megabytes of its memory.

    Each rate is the best single call of three sweeps: what the device can reach, whatever else
    runs. On a CPU, torch's number of threads is one for a moment.

    Raises:
        UnsupportedError: see :func:`device_key`.
    """
    kind = _kind(device)
    cuda = kind == "cuda"
    cache_bytes, cores, threads = _sizes(device)
    large = min(max((8 if cuda else 2) * cache_bytes, 64 << 20), 256 << 20)
    # A quarter of the cache leaves room for both sides of the copy and for others.
    resident = min(cache_bytes // 4, 8 << 20) // 8
    # Sizes at which neither the call nor the memory counts for much.
    wide = (1 << 22) if cuda else (1 << 16)
    side = 4096 if cuda else 512
    n = 1 << 20
    # A compiler that asks may have a mode active under which nothing really runs.
    with _disable_current_modes(), torch.no_grad(), _current(device), _full_precision(kind):
        generator = torch.Generator(device=device).manual_seed(0)

        def random(count: int) -> torch.Tensor:
            return torch.rand(count, device=device, generator=generator)

        source, target = random(large // 4), random(large // 4)
        where = torch.randint(0, large // 4, (n,), device=device, generator=generator)
        gathered = random(n)
        near, near_out = random(resident), random(resident)
        values, values_out = random(wide), random(wide)
        left, product = random(side * side).view(side, side), random(side * side).view(side, side)
        tiny, tiny_out = random(16), random(16)
        time_us = _cuda_us if cuda else _cpu_us

        def copy() -> object:
            return target.copy_(source)

        def gather() -> object:
            return torch.index_select(source, 0, where, out=gathered)

        # Work that stays on a core, timed on one and scaled up: threads that wait for each other
        # on a busy machine would make it slower by orders of magnitude.
        with _one_thread(kind):
            one_copy_us, one_gather_us, cache_us, exp_us, matmul_us, launch_us = _best_us(
                time_us,
                copy,
                gather,
                lambda: near_out.copy_(near),
                lambda: torch.exp(values, out=values_out),
                lambda: torch.mm(left, left, out=product),
                lambda: torch.add(tiny, tiny, out=tiny_out),
            )
        # Memory is shared, so its rate is what all threads get; one alone is the least it can be.
        copy_us, gather_us = _best_us(time_us, copy, gather)
        scale = 1 if cuda else min(threads, cores)

    return DeviceProfile(
        key=device_key(device),
        kind=kind,
        name=_name(device),
        threads=threads,
        copy_gbs=_rate(2 * large, min(copy_us, one_copy_us), 0.0),
        gather_gbs=_rate(4 * n, min(gather_us, one_gather_us), launch_us),
        flops_gfs=_rate(2 * side**3 * scale, matmul_us, launch_us),
        transcendental_gops=_rate(wide * scale, exp_us, launch_us),
        launch_us=round(launch_us, 3),
        cache_bytes=cache_bytes,
        cores=cores,
        cache_gbs=_rate(8 * resident * scale, cache_us, launch_us),
    )


def _rate(units: int, us: float, launch_us: float) -> float:
    """Units a nanosecond, which are 10^9 a second, the launch cost taken off (half at most)."""
    return round(units / (1e3 * max(us - launch_us, us / 2)), 3)


def _kind(device: torch.device) -> Literal["cpu", "cuda"]:
    if device.type == "cpu":
        return "cpu"
    if device.type == "cuda":
        return "cuda"
    raise UnsupportedError(
        f"device type {device.type!r} is not supported",
        subject="device",
        remedy="use a CPU or a CUDA device",
    )


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine() or "unknown"


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_")


def _sizes(device: torch.device) -> tuple[int, int, int]:
    """Last-level cache in bytes, cores and threads."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        cores = int(properties.multi_processor_count)
        resident = int(properties.max_threads_per_multi_processor)
        return int(properties.L2_cache_size) or _FALLBACK_CACHE, cores, cores * resident
    levels = Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")
    cache = max((_cache_size(level) for level in levels), default=0)
    return cache or _FALLBACK_CACHE, os.cpu_count() or 1, torch.get_num_threads()


def _cache_size(path: Path) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


def _current(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _one_thread(kind: Literal["cpu", "cuda"]) -> Iterator[None]:
    threads = torch.get_num_threads()
    if kind == "cuda" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _full_precision(kind: Literal["cpu", "cuda"]) -> Iterator[None]:
    """Keep matrix multiplication at fp32: a setting of the user's program must not change a rate.

    Only touched where a lower precision is in force, and put back; torch refuses its older
    precision functions once the newer ones disagree with them.
    """
    backends: Any = torch.backends
    setting = backends.cuda.matmul if kind == "cuda" else backends.mkldnn.matmul
    before = setting.fp32_precision
    if before in ("none", "ieee"):
        yield
        return
    setting.fp32_precision = "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def _best_us(time_us: Callable[[_Call], float], *calls: _Call) -> list[float]:
    """Best time of each call; the sweeps are apart in time, so that a burst of load hits one."""
    for call in calls:
        call()
    sweeps = [[time_us(call) for call in calls] for _ in range(_SWEEPS)]
    return [min(times) for times in zip(*sweeps, strict=True)]


def _cpu_us(call: _Call) -> float:
    """Best time of a single call in 50 ms, three at least; of ten together where they are short."""
    best, end = float("inf"), time.perf_counter() + _CPU_SWEEP_S
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
    best, stop = float("inf"), time.perf_counter() + _CUDA_SWEEP_S
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
