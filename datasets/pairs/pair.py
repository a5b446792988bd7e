"""What a pair is, and the tensors that pairs are called on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Why a concatenation is other kernels than the same written into slices.
CAT = "on the CPU each part of a concatenation is a kernel that writes into its place"


@dataclass(frozen=True)
class Pair:
    """Two functions with the same results, and the same values in overwritten arguments."""

    name: str
    #: The first form in a few words of code, and the second.
    forms: tuple[str, str]
    first: Callable[..., Any]
    second: Callable[..., Any]
    #: Makes the arguments, equal each time.
    args: Callable[[], tuple[Any, ...]]
    #: Why the compiler groups the two differently; "" where it gives the same groups.
    differs: str = ""
    #: The lowering or codegen choice under which the groups are the same; "" where there is none.
    mended_by: str = ""


def values(*shape: int) -> Tensor:
    """Normal values of a shape, equal each time."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator)


def integers(high: int, *shape: int) -> Tensor:
    """Indices from 0 to ``high`` - 1, equal each time and each once where they fit."""
    generator = torch.Generator().manual_seed(high)
    count = 1
    for n in shape:
        count *= n
    if count <= high:
        return torch.randperm(high, generator=generator)[:count].reshape(shape)
    return torch.randint(0, high, shape, generator=generator)


def two_matrices() -> tuple[Tensor, Tensor]:
    """Two tensors of shape [32, 64]."""
    return values(32, 64), values(32, 64) * 0.5


def matrix() -> tuple[Tensor]:
    """One tensor of shape [32, 64]."""
    return (values(32, 64),)
