"""Pieces of attention: softmax with its masks, scores with small products, rotary embeddings."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def softmax(draw: Draw) -> Program:
    """Softmax over scores: scaled, masked, biased, capped, logarithmic, over another axis."""
    shape = draw.shape(draw.between(2, 4))
    scale = draw.choice((None, 0.125, 0.0884))
    capped, masked, log = draw.chance(0.2), draw.chance(0.5), draw.chance(0.2)
    axis = -1 if draw.chance(0.85) else -2
    in_fp32 = draw.chance(0.4)

    def run(scores: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        s = scores if scale is None else scores * scale
        if capped:
            s = 30.0 * torch.tanh(s / 30.0)
        s = s.masked_fill(mask, torch.finfo(s.dtype).min) if masked else s + bias
        dtype = torch.float32 if in_fp32 else None
        probabilities = (functional.log_softmax if log else functional.softmax)(
            s, axis, dtype=dtype
        )
        return probabilities.to(scores.dtype)

    row = (1,) * (len(shape) - 1) + shape[-1:]
    args = (draw.tensor(shape), draw.mask(row, 0.2), draw.tensor(row))
    return Program(run, args, draw.training)


def attention(draw: Draw) -> Program:
    """Attention written out: two small products with masking and softmax between."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((16, 32, 64))
    lengths = (8, 16, 17, 32, 49, 64, 128, 197, 256, 512, 1024, 2048)
    length = draw.choice([n for n in lengths if heads * n * max(n, width) <= draw.numel] or [8])
    batch = min(256, max(1, draw.numel // (heads * length * max(length, width))))
    causal, relative = draw.chance(0.5), draw.chance(0.3)
    shape = (batch, heads, length, width)

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / width**0.5
        if relative:
            scores = scores + bias
        if causal:
            seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        mixed = functional.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v
        return mixed.transpose(1, 2).reshape(batch, length, heads * width)

    args = (
        draw.tensor(shape),
        draw.tensor(shape),
        draw.tensor(shape),
        draw.tensor((heads, length, length)),
    )
    return Program(run, args, draw.training)


def rope(draw: Draw) -> Program:
    """Rotary position embedding of queries and keys, halves or interleaved, tables given or not."""
    heads, width = draw.choice((1, 2, 4, 8)), draw.choice((16, 32, 64, 128))
    length = draw.choice((16, 33, 64, 128, 256, 1024, 4096))
    length = min(length, max(4, draw.numel // (heads * width)))
    batch = max(1, draw.numel // (heads * length * width))
    interleaved, computed = draw.chance(0.4), draw.chance(0.5)
    shape = (batch, heads, length, width)

    def rotate(x: Tensor) -> Tensor:
        if interleaved:
            pairs = torch.stack((-x[..., 1::2], x[..., ::2]), -1)
            return pairs.flatten(-2)
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    def run(q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        if computed:
            inverse = 10000.0 ** (-torch.arange(0, width, 2, device=q.device).float() / width)
            places = torch.arange(length, device=q.device).float()
            half = torch.outer(places, inverse)
            table = half.repeat_interleave(2, -1) if interleaved else torch.cat((half, half), -1)
        else:
            table = angles
        cos, sin = table.cos().to(q.dtype), table.sin().to(q.dtype)
        return q * cos + rotate(q) * sin, k * cos + rotate(k) * sin

    angles = draw.tensor((length, width), dtype=torch.float32, grad=False)
    return Program(run, (draw.tensor(shape), draw.tensor(shape), angles), draw.training)


#: Every family here.
FAMILIES = (softmax, attention, rope)
