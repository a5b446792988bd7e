"""Training steps: a forward to a loss and its backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.attention import Block, RMSNorm
from workloads.program import FP32, Program, Workload, by_device, integers, normal, placed


class _GatedMlp(nn.Module):
    """RMSNorm, gated MLP and LayerNorm before a classification."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(width), nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.head = nn.Linear(2 * width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, width], target [n]; the loss."""
        y = self.before(x)
        y = self.down(functional.silu(self.gate(y)) * self.up(y))
        return functional.cross_entropy(self.head(self.after(x + y)).float(), target)


def _gated_mlp(device: torch.device, dtype: torch.dtype) -> Program:
    n, width, classes = by_device(device, cpu=(512, 128, 1024), gpu=(4096, 1024, 8192))
    x = normal(n, width, device=device, dtype=dtype)
    step = placed(_GatedMlp(width, classes), device, dtype, "training")
    return Program(step, (x, integers(classes, n, device=device)), backward=True)


class _Transformer(nn.Module):
    """One causal layer and a head over a vocabulary."""

    def __init__(self, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.block = Block(width, heads, causal=True, before=True, gelu="tanh")
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        """ids, target [batch, length]; the loss."""
        logits = self.head(self.norm(self.block(self.tokens(ids))))
        return functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())


def _transformer(device: torch.device, dtype: torch.dtype) -> Program:
    width, heads, vocabulary, batch, length = by_device(
        device, cpu=(128, 4, 1024, 2, 128), gpu=(512, 8, 8192, 8, 256)
    )
    ids, target = (integers(vocabulary, batch, length, device=device) for _ in range(2))
    step = placed(_Transformer(width, heads, vocabulary), device, dtype, "training")
    return Program(step, (ids, target), backward=True)


class _Binary(nn.Module):
    """A deep narrow MLP, normalised between layers, with binary cross entropy."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, width], target [n, 1]; the loss."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(norm(layer(x)))
        return functional.binary_cross_entropy_with_logits(self.head(x).float(), target)


def _binary(device: torch.device, dtype: torch.dtype) -> Program:
    n, width = by_device(device, cpu=(2048, 64), gpu=(8192, 256))
    x = normal(n, width, device=device, dtype=dtype)
    target = integers(2, n, 1, device=device).to(FP32)
    return Program(placed(_Binary(width, 4), device, dtype, "training"), (x, target), backward=True)


class _Convolutions(nn.Module):
    """Convolutions with batch normalisation, ReLU and a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """x [n, 3, height, width], target [n]; the loss."""
        x = functional.relu(self.norms[0](self.stem(x)))
        y = functional.relu(self.norms[1](self.convolutions[0](x)))
        x = functional.relu(x + self.norms[2](self.convolutions[1](y)))
        return functional.cross_entropy(self.head(x.mean((2, 3))).float(), target)


def _convolutions(device: torch.device, dtype: torch.dtype) -> Program:
    n, channels, side = by_device(device, cpu=(8, 16, 32), gpu=(64, 64, 56))
    x = normal(n, 3, side, side, device=device, dtype=dtype)
    step = placed(_Convolutions(channels), device, dtype, "training")
    return Program(step, (x, integers(10, n, device=device)), backward=True)


WORKLOADS = (
    Workload("gated_mlp_step", "training", "mlp", _gated_mlp),
    Workload("transformer_step", "training", "transformer", _transformer),
    Workload("binary_mlp_step", "training", "mlp", _binary),
    Workload("batch_norm_step", "training", "vision", _convolutions, (FP32,)),
)
