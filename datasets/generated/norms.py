"""Normalisations: layer, RMS, batch and group, as called and as written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def layer_norm(draw: Draw) -> Program:
    """Layer norm over the last one or two dimensions, often with what stands around it."""
    shape = draw.shape(draw.between(2, 4))
    # Never all of the dimensions: that would be a single row.
    dims = shape[1:][-2:] if draw.chance(0.2) else shape[-1:]
    by_hand, residual = draw.chance(0.4), draw.chance(0.5)
    act = draw.choice((None, functional.gelu, functional.silu, torch.tanh))
    eps = draw.choice((1e-5, 1e-6, 1e-12))

    def run(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h = x + other if residual else x
        if by_hand:
            axes = tuple(range(-len(dims), 0))
            h32 = h.float()
            mean = h32.mean(axes, keepdim=True)
            var = (h32 - mean).pow(2).mean(axes, keepdim=True)
            y = ((h32 - mean) * torch.rsqrt(var + eps)).to(x.dtype) * weight + bias
        else:
            y = functional.layer_norm(h, dims, weight, bias, eps)
        return act(y) if act is not None else y

    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor(dims), draw.tensor(dims))
    return Program(run, args, draw.training)


def rms_norm(draw: Draw) -> Program:
    """RMS norm as Llama writes it, with an optional residual that is returned too."""
    shape = draw.shape(draw.between(2, 3))
    residual, gemma, squared = draw.chance(0.6), draw.chance(0.3), draw.chance(0.2)

    def run(x: Tensor, other: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        h = x + other if residual else x
        h32 = h.float()
        y = h32 * torch.rsqrt(h32.pow(2).mean(-1, keepdim=True) + 1e-6)
        scaled = (y * (1.0 + weight.float())).to(x.dtype) if gemma else weight * y.to(x.dtype)
        return (functional.relu(scaled).square() if squared else scaled), h

    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor(shape[-1:]))
    return Program(run, args, draw.training)


class _BatchNorm(nn.Module):
    def __init__(self, norm: nn.Module, act: Callable[[Tensor], Tensor], residual: bool) -> None:
        super().__init__()
        self.norm = norm
        self.act = act
        self.residual = residual

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = self.norm(x)
        return self.act(y + other if self.residual else y)


def batch_norm(draw: Draw) -> Program:
    """Batch norm of images, training (statistics and their update) or with kept statistics."""
    channels = draw.choice((3, 8, 16, 24, 32, 64, 96))
    side = draw.choice((5, 7, 8, 14, 16, 28, 32, 56))
    batch = max(2, draw.numel // (channels * side * side))
    shape = (batch, channels, side, side)
    act = draw.choice((functional.relu, functional.hardswish, functional.silu, functional.relu6))
    residual = draw.chance(0.5)
    module = draw.module(lambda: _BatchNorm(nn.BatchNorm2d(channels), act, residual))
    turned = draw.chance(0.3)
    args = tuple(draw.image(shape, turned=turned) for _ in range(2))
    return Program(module, args, draw.training)


def group_norm(draw: Draw) -> Program:
    """Group norm of images with an activation and a per-channel shift, as diffusion models do."""
    groups = draw.choice((1, 2, 4, 8))
    channels = groups * draw.choice((4, 8, 10, 16))
    side = draw.choice((4, 7, 8, 16, 28, 32, 64))
    batch = max(1, draw.numel // (channels * side * side))
    shape = (batch, channels, side, side)
    shifted = draw.chance(0.5)

    def run(x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        y = functional.group_norm(x, groups, weight, bias)
        if shifted:
            y = y * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        return functional.silu(y)

    per_channel = (batch, channels)
    args = (
        draw.tensor(shape),
        draw.tensor((channels,)),
        draw.tensor((channels,)),
        draw.tensor(per_channel),
        draw.tensor(per_channel),
    )
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (layer_norm, rms_norm, batch_norm, group_norm)
