"""The device that is measured on: holding it alone, waiting for it, what state it is in.

Times nothing itself.
"""

from __future__ import annotations

import gc
import os
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path

import filelock
import psutil
import torch

from fusewise.costmodel.device import physical_name

#: Seconds for which load and clocks are taken to be what they were.
_RECENT_S = 10.0
#: Part of a device's memory that several processes may each keep without need.
_MUCH = 0.03


def device_lock(device: str) -> filelock.BaseFileLock:
    """Held by whoever times on a device of this machine: two at once would time each other."""
    path = Path(tempfile.gettempdir()) / f"fusewise-{physical_name(torch.device(device))}.lock"
    return filelock.FileLock(path, mode=0o666)


def synchronize(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def release(device: str) -> None:
    """Give memory that torch caches back to the device."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def release_much(device: str) -> None:
    """The same where it is much: allocating a little anew would only take time."""
    if torch.device(device).type != "cuda":
        return
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if cached > _MUCH * torch.cuda.get_device_properties().total_memory:
        release(device)


def is_lost(device: str) -> bool:
    """Whether the device can do nothing any more in this process, as after a bad access."""
    try:
        synchronize(device)
    except Exception:  # noqa: BLE001 - it has many ways of saying so
        return True
    return False


def conditions(device: str) -> dict[str, float]:
    """Load and clocks right before timing; asking for them takes longer than many a timing."""
    return _recent_conditions(device, int(time.monotonic() / _RECENT_S))


@lru_cache(maxsize=2)
def _recent_conditions(device: str, moment: int) -> dict[str, float]:
    """Load and clocks about now; ``moment`` counts spans of :data:`_RECENT_S`."""
    del moment
    found = {"load": os.getloadavg()[0]}
    frequency = psutil.cpu_freq()
    if frequency is not None:
        found["cpu_mhz"] = float(frequency.current)
    if torch.device(device).type == "cuda":
        # Not by index: a process may be shown a part of the devices, nvidia-smi is shown all.
        uuid = torch.cuda.get_device_properties(torch.device(device)).uuid
        asked = "--query-gpu=clocks.sm,clocks.mem,temperature.gpu"
        try:
            line = subprocess.run(
                ["nvidia-smi", f"--id=GPU-{uuid}", asked, "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                timeout=5,
                check=False,
            ).stdout
            values = [float(part) for part in line.split(",")]
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return found
        found |= dict(zip(("gpu_sm_mhz", "gpu_memory_mhz", "gpu_celsius"), values, strict=False))
    return found
