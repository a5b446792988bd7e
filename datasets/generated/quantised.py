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


def eight_bit_floats(draw: Draw) -> Program:
    """To 8-bit floats and back: scaled by row or whole, clamped to what they hold."""
    shape = draw.shape(2)
    dtype = draw.choice((torch.float8_e4m3fn, torch.float8_e5m2))
    by_row, kept, returned = draw.chance(0.5), draw.chance(0.5), draw.chance(0.4)
    largest = torch.finfo(dtype).max

    def run(x: Tensor, gain: Tensor) -> tuple[Tensor, ...]:
        h = (x * gain).float()
        size = h.abs().amax(-1, keepdim=True) if by_row else h.abs().amax()
        scale = (size / largest).clamp(min=1e-8)
        q = (h / scale).clamp(-largest, largest).to(dtype)
        if kept:
            # Bytes, as few functions take the type itself.
            return q.view(torch.uint8), scale
        back = (q.float() * scale).to(x.dtype)
        return (back, scale) if returned else (torch.relu(back) + x,)

    return Program(run, (draw.tensor(shape, grad=False), draw.tensor(shape[-1:], grad=False)))


def integer_residual(draw: Draw) -> Program:
    """Layers of quantised networks: 8-bit integers added, rescaled to others, activated."""
    shape = draw.shape(draw.between(2, 4), wide=False)
    channels = draw.chance(0.5)
    act = draw.choice(("relu", "table", "none"))

    def run(a: Tensor, b: Tensor, scale: Tensor, table: Tensor) -> Tensor:
        h = a.float() * 0.02 + b.float() * 0.03
        h = torch.round(h / scale).clamp(0 if act == "relu" else -128, 127)
        q = h.to(torch.int8)
        return table[q.long() + 128] if act == "table" else q

    args = (
        draw.tensor(shape, dtype=torch.int8),
        draw.tensor(shape, dtype=torch.int8),
        draw.tensor(shape[-1:] if channels else (1,), dtype=torch.float32, positive=True)
        .detach()
        .mul(0.05),
        draw.tensor((256,), dtype=torch.int8),
    )
    return Program(run, args)


def accumulated(draw: Draw) -> Program:
    """32-bit sums of a product turned to 8 bits or to numbers: bias, scales, activation."""
    rows, width = draw.shape(2)
    dtype, to_bytes = draw.dtype, draw.chance(0.5)

    def run(total: Tensor, row: Tensor, column: Tensor, bias: Tensor) -> Tensor:
        h = total.float() * row * column + bias
        h = h * torch.sigmoid(1.702 * h)
        return torch.round(h * 16).clamp(-128, 127).to(torch.int8) if to_bytes else h.to(dtype)

    args = (
        draw.tensor((rows, width), dtype=torch.int32),
        draw.tensor((rows, 1), dtype=torch.float32, grad=False, positive=True),
        draw.tensor((width,), dtype=torch.float32, grad=False, positive=True),
        draw.tensor((width,), grad=False),
    )
    return Program(run, args)


#: Every family here.
FAMILIES = (quantise, dequantise, fake_quantise, eight_bit_floats, integer_residual, accumulated)
