"""What a workload is: a named program that is built anew for each contestant, with equal values.

Builds and describes; compiling, running and timing are the business of whoever asked for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

T = TypeVar("T")
Kind = Literal["inference", "training"]

FP32 = torch.float32
BF16 = torch.bfloat16
NAMES = {FP32: "fp32", BF16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Program:
    """Something to compile, with what it is called on."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    #: Whether the result is a loss, and its backward is part of the step.
    backward: bool = False

    def parameters(self) -> list[Tensor]:
        """The tensors that a backward leaves gradients on."""
        own = self.function.parameters() if isinstance(self.function, nn.Module) else ()
        given = (v for v in pytree.tree_leaves(self.args) if isinstance(v, Tensor))
        return [tensor for tensor in (*own, *given) if tensor.requires_grad]

    def state(self) -> Iterator[Tensor]:
        """The tensors that a step may overwrite: arguments, and buffers such as running means."""
        if isinstance(self.function, nn.Module):
            yield from self.function.buffers()
        yield from (v for v in pytree.tree_leaves(self.args) if isinstance(v, Tensor))

    def widened(self) -> Program:
        """The program with the same values in fp32, wherever they are narrower."""
        function = self.function
        if isinstance(function, nn.Module):
            function = copy.deepcopy(function).float()
        return Program(function, pytree.tree_map_only(Tensor, _wide, self.args), self.backward)


def copied(tensor: Tensor) -> Tensor:
    """A tensor of the same values that is a leaf."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _wide(tensor: Tensor) -> Tensor:
    if tensor.dtype not in NAMES or tensor.dtype is FP32:
        return copied(tensor)
    return tensor.detach().float().requires_grad_(tensor.requires_grad)


@dataclass(frozen=True)
class Workload:
    """A named program in one or more dtypes."""

    name: str
    kind: Kind
    family: str
    build: Callable[[torch.device, torch.dtype], Program]
    dtypes: tuple[torch.dtype, ...] = (FP32, BF16)


@dataclass(frozen=True)
class Case:
    """A workload in one dtype: what is compared at a time."""

    #: It is drawn from none.
    corpus: ClassVar[None] = None

    workload: Workload
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """Such as ``bert_encoder-bf16``."""
        return f"{self.workload.name}-{NAMES[self.dtype]}"

    def described(self) -> dict[str, str]:
        """Name, kind, family and dtype, as they are told."""
        return {
            "name": self.name,
            "kind": self.workload.kind,
            "family": self.workload.family,
            "dtype": str(self.dtype).removeprefix("torch."),
        }

    def build(self, device: torch.device) -> Program:
        """The program on ``device``; the same values each time."""
        torch.manual_seed(0)
        return self.workload.build(device, self.dtype)


def by_device(device: torch.device, *, cpu: T, gpu: T) -> T:
    """The size for a device: some milliseconds on two cores, and a filled chip on a GPU."""
    return gpu if device.type == "cuda" else cpu


def normal(*shape: int, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal values, drawn on the CPU so that every device gets the same."""
    return (torch.randn(shape) * scale).to(device, dtype)


def integers(high: int, *shape: int, device: torch.device) -> Tensor:
    """Indices from 0 to ``high`` - 1."""
    return torch.randint(0, high, shape).to(device)


def placed(module: nn.Module, device: torch.device, dtype: torch.dtype, kind: Kind) -> nn.Module:
    """``module`` on its device, in its dtype and in the mode of its kind."""
    return module.to(device, dtype).train(kind == "training")
