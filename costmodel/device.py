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

from fusewise.schedule.errors import ModelError, UnsupportedError

_ROUNDS = 5
_CPU_ROUND_S = 0.02
_FALLBACK_CACHE = 16 << 20


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
    """Measure ``device``; takes about one second and some hundred megabytes of its memory.

    Each rate is the best of five rounds: what the device can reach, which repeats better from one
    process to the next than what it reached on average.

    Raises:
        UnsupportedError: see :func:`device_key`.
    """
    kind = _kind(device)
    time_us = _cuda_us if kind == "cuda" else _cpu_us
    cache_bytes, cores, threads = _sizes(device)
    large = max(8 * cache_bytes, 64 << 20) if kind == "cuda" else max(2 * cache_bytes, 64 << 20)
    large = min(large, 256 << 20)
    generator = torch.Generator(device=device).manual_seed(0)

    def random(n: int) -> torch.Tensor:
        return torch.rand(n, device=device, generator=generator)

    with torch.no_grad(), _current(device), _full_precision(kind):
        source, target = random(large // 4), torch.empty(large // 4, device=device)
        copy_us = time_us(lambda: target.copy_(source))
        n = 1 << 20
        where = torch.randint(0, large // 4, (n,), device=device, generator=generator)
        gathered = torch.empty(n, device=device)
        gather_us = time_us(lambda: torch.index_select(source, 0, where, out=gathered))
        # A quarter of the cache leaves room for both sides of the copy and for others.
        resident = min(cache_bytes // 4, 8 << 20) // 8
        near, near_out = random(resident), torch.empty(resident, device=device)
        cache_us = time_us(lambda: near_out.copy_(near))
        # At a size where the call itself and the memory hardly count.
        wide = (1 << 22) if kind == "cuda" else (1 << 16)
        values, values_out = random(wide), torch.empty(wide, device=device)
        exp_us = time_us(lambda: torch.exp(values, out=values_out))
        side = 4096 if kind == "cuda" else 512
        left = random(side * side).view(side, side)
        product = torch.empty(side, side, device=device)
        matmul_us = time_us(lambda: torch.mm(left, left, out=product))
        tiny, tiny_out = random(16), torch.empty(16, device=device)
        launch_us = time_us(lambda: torch.add(tiny, tiny, out=tiny_out))

    return DeviceProfile(
        key=device_key(device),
        kind=kind,
        name=_name(device),
        threads=threads,
        copy_gbs=_rate(2 * large, copy_us, 0.0),
        gather_gbs=_rate(4 * n, gather_us, launch_us),
        flops_gfs=_rate(2 * side**3, matmul_us, launch_us),
        transcendental_gops=_rate(wide, exp_us, launch_us),
        launch_us=round(launch_us, 3),
        cache_bytes=cache_bytes,
        cores=cores,
        cache_gbs=_rate(8 * resident, cache_us, launch_us),
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


def _cpu_us(call: Callable[[], object]) -> float:
    """Best time of one call, over rounds of at least 20 ms each."""
    call()
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    repeats = max(1, int(_CPU_ROUND_S / max(once, 1e-7)))
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best * 1e6


def _cuda_us(call: Callable[[], object]) -> float:
    """Best time of one call on the device, from events around queues of calls.

    A queue of 50 is long enough that a small kernel shows the distance to the next one, which is
    what a chain of small kernels costs.
    """
    event: Any = torch.cuda.Event
    repeats = 50
    call()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(_ROUNDS):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        best = min(best, float(begin.elapsed_time(end)) / repeats)
    return best * 1e3
