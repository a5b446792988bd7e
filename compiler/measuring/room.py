"""Whether a device has room for measuring a graph. Allocates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil
import torch

_GIB = 1 << 30


def lacks_room(inputs: Sequence[Any], device: torch.device, candidates: int) -> str | None:
    """Why a graph cannot be measured for its size; None where it can.

    The measuring process keeps its own inputs, runs a reference on them in high precision, and
    gives each program, Inductor's own and the candidates, a copy that it may overwrite. Outputs
    and what programs store in between come on top and are not counted.

    Args:
        inputs: of the graph, real or fake; sizes that are not known yet count as nothing.
        device: that it runs on.
        candidates: programs to be measured beside Inductor's own.
    """
    size = sum(_bytes(value) for value in inputs if isinstance(value, torch.Tensor))
    copies = candidates + 4
    free = free_bytes(device)
    if copies * size <= free:
        return None
    return (
        f"its inputs take {size / _GIB:.1f} GiB, measuring needs room for {copies} copies of them, "
        f"and {free / _GIB:.1f} GiB are free"
    )


def free_bytes(device: torch.device) -> int:
    """Memory of a device that another process could have now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _bytes(value: torch.Tensor) -> int:
    numel = value.numel()
    return numel * value.itemsize if isinstance(numel, int) else 0
