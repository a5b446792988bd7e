"""Quantising and dequantising: integer weights and activations, and training through rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewise.datasets.generated.draw import Draw, Program


def quantise(draw: Draw) -> Program:
    """Dynamic quantisation by the largest value of each row, column, block or the whole."""
    shape = draw.shape(2)
    axis = draw.choice((-1, -1, 0, None))
    signed, affine = draw.chance(0.7), draw.chance(0.3)
    low, high = (-128, 127) if signed else (0, 255)
    dtype = torch.int8 if signed else torch.uint8

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        x32 = x.float()
        if affine:
            top = x32.amax() if axis is None else x32.amax(axis, keepdim=True)
            bottom = x32.amin() if axis is None else x32.amin(axis, keepdim=True)
            scale = ((top - bottom) / (high - low)).clamp(min=1e-8)
            zero = torch.round(low - bottom / scale)
        else:
            size = x32.abs()
            top = size.amax() if axis is None else size.amax(axis, keepdim=True)
            scale, zero = (top / high).clamp(min=1e-8), torch.zeros_like(top)
        return torch.clamp(torch.round(x32 / scale) + zero, low, high).to(dtype), scale

    return Program(run, (draw.tensor(shape, grad=False),))


def dequantise(draw: Draw) -> Program:
    """Integers back to numbers, by row or by block, packed in halves of bytes or not, then used."""
    rows, width = draw.shape(2)
    block = draw.choice((8, 16))
    width = max(block, width // block * block)
    packed, blocked, used = draw.chance(0.4), draw.chance(0.5), draw.chance(0.5)
    dtype = draw.dtype

    def run(q: Tensor, scale: Tensor, zero: Tensor, x: Tensor) -> Tensor:
        if packed:
            q = torch.stack((q & 15, (q >> 4) & 15), -1).flatten(-2) - 8
        w = q.to(dtype).view(q.shape[0], -1, block) if blocked else q.to(dtype)[..., None]
        w = ((w - zero[..., None]) * scale[..., None]).flatten(1)
        return torch.relu(w + x) if used else w

    stored = draw.tensor((rows, width // 2 if packed else width), dtype=torch.int8)
    per = (rows, width // block) if blocked else (rows, 1)
    args = (
        stored,
        draw.tensor(per, grad=False, positive=True),
        draw.tensor(per, grad=False),
        draw.tensor((rows, width), grad=False),
    )
    return Program(run, args)


def fake_quantise(draw: Draw) -> Program:
    """Quantise and dequantise with the gradient passed straight through the rounding."""
    shape = draw.shape(2)
    levels = draw.choice((7, 127))

    def run(x: Tensor, step: Tensor) -> Tensor:
        y = x / step
        rounded = y + (torch.round(y) - y).detach()
        return rounded.clamp(-levels - 1, levels) * step

    args = (draw.tensor(shape), draw.tensor((shape[0], 1), positive=True, grad=False))
    return Program(run, args, draw.training)
