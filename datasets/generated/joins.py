"""Concatenations, stacks, splits and interleavings, with different work on the parts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.chains import BINARY, UNARY
from fusewise.datasets.generated.draw import Draw, Program


def concatenation(draw: Draw) -> Program:
    """Tensors of different extents joined along an axis, each with its own work before."""
    count = draw.between(2, 8)
    rank = draw.between(2, 3)
    shape = draw.shape(rank)
    axis = draw.choice((0, rank - 1))
    mean = shape[axis] / count
    extents = [max(1, int(mean * draw.random.uniform(0.3, 1.7))) for _ in range(count)]
    before = [draw.choice((*UNARY, None)) for _ in range(count)]
    after = draw.choice(("none", "norm", "act", "sum"))

    def run(*parts: Tensor) -> Tensor:
        done = [p if act is None else act(p) for p, act in zip(parts, before, strict=True)]
        h = torch.cat(done, axis)
        if after == "norm":
            return functional.layer_norm(h, h.shape[-1:])
        if after == "act":
            return functional.gelu(h)
        return h.sum(axis) if after == "sum" else h

    args = tuple(
        draw.tensor(tuple(n if i == axis else d for i, d in enumerate(shape))) for n in extents
    )
    return Program(run, args, draw.training)


def splits(draw: Draw) -> Program:
    """One tensor cut into chunks that are treated differently: fused projections, gates, states."""
    count = draw.choice((2, 3, 4, 6))
    rows, width = draw.shape(2)
    width = max(1, width // count) * count
    acts = [draw.choice(UNARY) for _ in range(count)]
    joins = [draw.choice(BINARY) for _ in range(count)]
    first_axis, separate = draw.chance(0.2), draw.chance(0.3)

    def run(x: Tensor, bias: Tensor) -> list[Tensor]:
        parts = (x + bias).chunk(count, 0 if first_axis else -1)
        done = [act(part) for part, act in zip(parts, acts, strict=False)]
        if separate:
            return [part.contiguous() for part in done]
        h = done[0]
        for part, join in zip(done[1:], joins, strict=False):
            h = join(h, part)
        return [h]

    rows = max(1, rows // count) * count if first_axis else rows
    return Program(run, (draw.tensor((rows, width)), draw.tensor((width,))), draw.training)


def stacked(draw: Draw) -> Program:
    """Tensors stacked on a new axis, reduced, ranked or interleaved over it."""
    count = draw.between(2, 8)
    rows, width = draw.shape(2)
    rows = max(1, rows // count)
    axis = draw.choice((0, 1, 2))
    kind = draw.choice(("weighted", "max", "interleave", "softmax"))

    def run(parts: list[Tensor], weight: Tensor) -> Tensor:
        h = torch.stack([torch.tanh(part) for part in parts], axis)
        if kind == "interleave":
            return h.flatten(0, 1) * 0.5 if axis < 2 else h.flatten(1) + 1  # noqa: PLR2004
        if kind == "max":
            return h.amax(axis)
        shaped = weight.view([count if i == axis else 1 for i in range(3)])
        if kind == "softmax":
            shaped = functional.softmax(h + shaped, axis)
        return (h * shaped).sum(axis)

    args = ([draw.tensor((rows, width)) for _ in range(count)], draw.tensor((count,)))
    return Program(run, args, draw.training)


def recurrent_cell(draw: Draw) -> Program:
    """The elementwise part of LSTM and GRU cells, unrolled for some steps."""
    gates = draw.choice((3, 4))
    width = draw.width(wide=False)
    steps = draw.choice((1, 1, 2, 4, 8))
    batch = max(1, draw.numel // (gates * width * steps))

    def run(projected: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        h, c = hidden, state
        for step in range(steps):
            parts = (projected[:, step] + h.repeat(1, gates)).chunk(gates, -1)
            if gates == 4:  # noqa: PLR2004
                c = torch.sigmoid(parts[1]) * c + torch.sigmoid(parts[0]) * torch.tanh(parts[2])
                h = torch.sigmoid(parts[3]) * torch.tanh(c)
            else:
                update = torch.sigmoid(parts[0])
                h = update * h + (1 - update) * torch.tanh(parts[1] + torch.sigmoid(parts[2]) * h)
        return h, c

    args = (
        draw.tensor((batch, steps, gates * width)),
        draw.tensor((batch, width)),
        draw.tensor((batch, width)),
    )
    return Program(run, args, draw.training)


#: Every family here.
FAMILIES = (concatenation, splits, stacked, recurrent_cell)
