"""What a device can do: a profile of a dozen rates, measured once with plain eager operations.

The rates are what generated kernels are up against (bandwidth, gather, arithmetic, launch cost).
They are device features of the learned model and the constants of the roofline. How they are
measured is ``fusewise.costmodel.probe``'s; here they are named, kept and read back.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path
from typing import Final, Literal

import msgspec
import torch

from fusewise.costmodel.probe import Extent, probe
from fusewise.schedule.errors import ModelError, UnsupportedError

_FALLBACK_CACHE: Final = 16 << 20
#: Where Linux tells of the processors.
_CPUINFO: Final = Path("/proc/cpuinfo")
#: Rates of profiles that are older than these, as parts of others. A strided read brings sectors of
#: 32 bytes for four on a GPU, and on a CPU lines of 64, but writes nothing back; an atomic update
#: is a random read and a random write; a small table stays in a CPU's first cache (25 times as
#: fast, on an AMD EPYC), of a GPU nothing better is known.
_STRIDED_OF_COPY: Final = 1 / 8
_ATOMIC_OF_GATHERS: Final = 1 / 2
_CONTENDED_OF_ATOMIC: Final = {"cpu": 25.0, "cuda": 1.0}
_GATHERED_BYTES: Final = 4
#: Matrix products of 2-byte elements on a GPU, over those of 4-byte ones (H200: 989 to 67 TFLOP/s).
TENSOR_CORES: Final = 14.8
#: GFLOP/s of a thread that no processor reaches with vectors of 32 bytes.
_WIDE_GFLOPS: Final = 130.0
#: Bytes of a vector, by what torch calls the processor's instructions.
_VECTORS: Final = {"AVX512": 64, "AVX2": 32, "DEFAULT": 16}


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rates of one device. GB and GFLOP are powers of ten; all rates are of the whole device.

    A rate of 0 was not probed, since the profile is older than it: the property of the same thing
    without a unit in its name then gives a documented part of another rate.
    """

    #: Stable text that names the device, such as ``cpu-AMD_EPYC_family_26_model_2-2t``, the same
    #: with ``-of-16`` where two threads are on a machine of 16 cores, or ``cuda-NVIDIA_H200``.
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
    #: Useful bytes a second of a read that takes four bytes of each 64, beyond the cache, GB/s.
    strided_gbs: float = 0.0
    #: Additions to random elements of a table beyond the cache, 10^9 a second; atomic on a GPU.
    atomic_gops: float = 0.0
    #: As above to the elements of a table of 1,024, so that many hit the same one.
    contended_gops: float = 0.0
    #: Rate of matrix multiplication of 16-bit values, GFLOP/s; a CPU without instructions for them
    #: takes a hundred times as long as in fp32. 0 where unknown.
    half_gfs: float = 0.0
    #: CPU: rate of fp32 matrix multiplication by oneDNN, GFLOP/s; ``flops_gfs`` is that of the BLAS
    #: that PyTorch is built with. 0 where unknown.
    onednn_gfs: float = 0.0
    #: CPU: bytes of the widest vector that one instruction takes; 0 where unknown.
    vector_width: int = 0
    #: CPU: what compiles its kernels, such as ``gcc 12``; "" where unknown.
    compiler: str = ""

    @property
    def multiplies_half_fast(self) -> bool:
        """Whether products of 16-bit values are at least as fast as in fp32, as far as is known."""
        return self.kind == "cuda" or self.half_gfs >= self.flops_gfs

    @property
    def half(self) -> float:
        """``half_gfs``; a documented multiple of ``flops_gfs`` on a GPU where it was not probed."""
        if self.half_gfs or self.kind == "cpu":
            return self.half_gfs
        return TENSOR_CORES * self.flops_gfs

    @property
    def vector_bytes(self) -> int:
        """``vector_width``; where unknown it is told from what a thread multiplies."""
        if self.vector_width or self.kind != "cpu":
            return self.vector_width
        return 64 if self.flops_gfs > _WIDE_GFLOPS * max(self.threads, 1) else 32

    @property
    def strided(self) -> float:
        """``strided_gbs``; an eighth of ``copy_gbs`` where it was not probed."""
        return self.strided_gbs or _STRIDED_OF_COPY * self.copy_gbs

    @property
    def atomic(self) -> float:
        """``atomic_gops``; half of the elements that ``gather_gbs`` reads where not probed."""
        return self.atomic_gops or _ATOMIC_OF_GATHERS * self.gather_gbs / _GATHERED_BYTES

    @property
    def contended(self) -> float:
        """``contended_gops``; where not probed :attr:`atomic`, on a CPU 25 times as much."""
        return self.contended_gops or _CONTENDED_OF_ATOMIC[self.kind] * self.atomic


def device_key(device: torch.device) -> str:
    """The key of ``device``, without measuring anything.

    Threads on some cores of a CPU are a device of their own: what they get of its memory, caches
    and clock is not what as many get on a machine of no more cores.

    Raises:
        UnsupportedError: the device is neither a CPU nor a CUDA device.
    """
    name = _identifier(_name(device))
    if _kind(device) == "cuda":
        return f"cuda-{name}"
    threads, cores = torch.get_num_threads(), _cores()
    return f"cpu-{name}-{threads}t" + (f"-of-{cores}" if threads != cores else "")


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
    # Where no folder can be made, that is told before seconds are spent on measuring.
    path.parent.mkdir(parents=True, exist_ok=True)
    profile = probe_device(device)
    scratch = _written(path, profile)
    try:
        # Whoever comes first wins, so that processes that start together agree afterwards.
        path.hardlink_to(scratch)
    except FileExistsError:
        return device_profile(device, home)
    finally:
        scratch.unlink()
    return profile


def renew_profile(device: torch.device, home: Path, *, seconds: float) -> DeviceProfile:
    """Probe ``device`` for so long, and keep the profile in place of the one there was.

    Whatever was predicted with the old one is predicted anew.

    Raises:
        UnsupportedError: see :func:`device_key`.
        ModelError: the folder cannot be written to.
    """
    path = home / "devices" / f"{device_key(device)}.json"
    profile = probe_device(device, seconds=seconds)
    try:
        _written(path, profile).replace(path)
    except OSError as error:
        raise ModelError(
            f"cannot be written: {error.strerror}",
            subject=str(path),
            remedy="choose a store in a folder that you may write to",
        ) from error
    return profile


def probe_device(device: torch.device, *, seconds: float = 0.0) -> DeviceProfile:
    """Measure ``device``; takes some three seconds, or ``seconds`` where that is longer.

    Needs some hundred megabytes of its memory. More time makes no rate better known than the
    quietest moment in it: it is worth something on a machine where others run.

    Raises:
        UnsupportedError: see :func:`device_key`.
    """
    kind = _kind(device)
    cache_bytes, cores, threads = _sizes(device)
    rates = probe(
        device,
        Extent(cache_bytes=cache_bytes, spread=1 if kind == "cuda" else min(threads, cores)),
        seconds=seconds,
    )
    return DeviceProfile(
        key=device_key(device),
        kind=kind,
        name=_name(device),
        threads=threads,
        cache_bytes=cache_bytes,
        cores=cores,
        vector_width=_VECTORS.get(torch.backends.cpu.get_cpu_capability(), 0)
        if kind == "cpu"
        else 0,
        compiler=_compiler() if kind == "cpu" else "",
        **rates,
    )


def _written(path: Path, profile: DeviceProfile) -> Path:
    """A file beside ``path`` with the profile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{time.time_ns()}.tmp")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(profile)))
    return scratch


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
    told = _told(_CPUINFO.read_text()) if _CPUINFO.is_file() else {}
    if "model name" not in told:
        return platform.processor() or platform.machine() or "unknown"
    name = told["model name"]
    if any(sign.isdigit() for sign in name) or "cpu family" not in told:
        return name
    # A virtual machine may say no more than the brand, which processors of one and of two times the
    # speed share.
    return f"{name} family {told['cpu family']} model {told.get('model', '?')}"


def _told(cpuinfo: str) -> dict[str, str]:
    """What the system says of the first processor."""
    first = cpuinfo.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


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
    return cache or _FALLBACK_CACHE, _cores(), torch.get_num_threads()


def _compiler() -> str:
    """What Inductor compiles C++ with, by the first number of its version."""
    command = [os.environ.get("CXX", "g++"), "--version"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        # None is needed where nothing is compiled.
        return ""
    first = told.partition("\n")[0]
    # Whoever packed it may have a version too, in parentheses.
    found = re.search(r"(\d+)\.\d+", re.sub(r"\(.*?\)", "", first))
    return f"{'clang' if 'clang' in first else 'gcc'} {found[1]}" if found else ""


def _cores() -> int:
    """Logical cores of this machine."""
    return os.cpu_count() or 1


def _cache_size(path: Path) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", path.read_text().strip())
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
