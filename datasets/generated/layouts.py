"""Shapes and orders: broadcasts, reductions over several axes, transposes, joins and cuts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def broadcast(draw: Draw) -> Program:
    """Rows against columns against wholes: pair distances, kernels, additive attention."""
    rank = draw.between(2, 4)
    shape = draw.shape(rank)
    parts = []
    for _ in range(draw.between(2, 5)):
        kept = [d if draw.chance(0.5) else 1 for d in shape]
        parts.append(tuple(kept))
    steps = [draw.choice(("add", "mul", "sub", "max", "where")) for _ in parts]
    final = draw.choice(("exp", "tanh", "sum", "none"))

    def run(x: Tensor, *others: Tensor) -> Tensor:
        h = x
        for step, other in zip(steps, others, strict=True):
            if step == "add":
                h = h + other
            elif step == "mul":
                h = h * other
            elif step == "sub":
                h = h - other
            elif step == "max":
                h = torch.maximum(h, other)
            else:
                h = torch.where(other > 0, h, other)
        if final == "exp":
            return torch.exp(-h.square())
        if final == "tanh":
            return torch.tanh(h)
        return h.sum(-1) if final == "sum" else h

    args = (draw.tensor(shape), *(draw.tensor(part) for part in parts))
    return Program(run, args, draw.training)


def reduction(draw: Draw) -> Program:
    """Several reductions of one tensor over various axes: statistics, pooling, norms."""
    rank = draw.between(2, 4)
    shape = draw.shape(rank)
    kinds = ("sum", "mean", "amax", "var", "norm", "logsumexp")
    wanted = []
    for _ in range(draw.between(1, 4)):
        axes = tuple(sorted(draw.random.sample(range(rank), draw.between(1, rank))))
        wanted.append((draw.choice(kinds), axes))
    prepared = draw.choice(("none", "square", "sigmoid", "shift"))

    def run(x: Tensor, bias: Tensor) -> list[Tensor]:
        h = x
        if prepared == "square":
            h = x * x
        elif prepared == "sigmoid":
            h = torch.sigmoid(x)
        elif prepared == "shift":
            h = x + bias
        results: list[Tensor] = []
        for kind, axes in wanted:
            if kind == "sum":
                results.append(h.sum(axes))
            elif kind == "mean":
                results.append(h.mean(axes))
            elif kind == "amax":
                results.append(h.amax(axes))
            elif kind == "var":
                results.append(h.var(axes, correction=0))
            elif kind == "norm":
                results.append((h.float().square().sum(axes) + 1e-6).sqrt())
            else:
                results.append(torch.logsumexp(h, axes))
        return results

    return Program(run, (draw.tensor(shape), draw.tensor(shape[-1:])), draw.training)


def transpose(draw: Draw) -> Program:
    """Elementwise work between two orders of the same data, and cuts and joins along axes."""
    rank = draw.between(2, 4)
    shape = draw.shape(rank, wide=False)
    order = tuple(draw.random.sample(range(rank), rank))
    joined, stored = draw.chance(0.3), draw.chance(0.5)
    reduced = draw.chance(0.3)

    def run(x: Tensor, y: Tensor, bias: Tensor) -> Tensor:
        h = functional.silu(x + bias).permute(order)
        if stored:
            h = h.contiguous()
        h = h * 0.5 + y
        if joined:
            h = torch.cat((h, torch.tanh(y)), -1)
        return h.sum(0) if reduced else h

    turned = tuple(shape[i] for i in order)
    args = (draw.tensor(shape), draw.tensor(turned), draw.tensor(shape[-1:]))
    return Program(run, args, draw.training)


def patches(draw: Draw) -> Program:
    """Images to patches and back, padded, shifted or rolled, as vision transformers do."""
    side, patch = draw.choice((16, 28, 32)), draw.choice((2, 4))
    channels = draw.choice((3, 8, 16))
    batch = max(1, draw.numel // (side * side * channels))
    rolled, padded = draw.chance(0.5), draw.chance(0.3)
    shift = patch // 2

    def run(x: Tensor, gain: Tensor) -> Tensor:
        h = torch.roll(x, (-shift, -shift), (1, 2)) if rolled else x
        if padded:
            h = functional.pad(h, (0, 0, 0, patch, 0, patch))
        count = h.shape[1] // patch
        h = h.view(h.shape[0], count, patch, count, patch, channels)
        h = h.permute(0, 1, 3, 2, 4, 5).reshape(h.shape[0], count * count, -1)
        h = functional.layer_norm(h, h.shape[-1:]) * gain
        return functional.gelu(h)

    args = (
        draw.tensor((batch, side, side, channels)),
        draw.tensor((patch * patch * channels,)),
    )
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (broadcast, reduction, transpose, patches)
