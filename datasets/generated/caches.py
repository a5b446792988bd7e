"""Caches and buffers that are written in place: keys and values, rings, replay, parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program


def key_cache(draw: Draw) -> Program:
    """New keys and values written to a cache at some positions, rotated or scaled before."""
    heads, width = draw.choice((1, 2, 8, 16)), draw.choice((32, 64, 128))
    fresh = draw.choice((1, 1, 4, 32))
    batch = draw.choice((1, 2, 8, 32))
    length = max(fresh, min(8192, draw.numel // (batch * heads * width)))
    form = draw.choice(("index_copy", "slice", "index_put"))
    rotated, read = draw.chance(0.5), draw.chance(0.4)
    start = draw.between(0, length - fresh)

    def written(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
        if form == "index_copy":
            return cache.index_copy_(2, at, new)
        if form == "slice":
            cache[:, :, start : start + fresh] = new
            return cache
        cache[:, :, at] = new
        return cache

    def run(
        keys: Tensor, values: Tensor, k: Tensor, v: Tensor, angle: Tensor, at: Tensor
    ) -> tuple[Tensor, ...]:
        if rotated:
            first, second = k.chunk(2, -1)
            k = k * angle.cos() + torch.cat((-second, first), -1) * angle.sin()
        keys, values = written(keys, k, at), written(values, v, at)
        if read:
            return (keys.float().mean(2), values.amax(2))
        return (k.sum(-1), v.sum(-1))

    cache, new = (batch, heads, length, width), (batch, heads, fresh, width)
    args = (
        draw.tensor(cache, grad=False),
        draw.tensor(cache, grad=False),
        draw.tensor(new, grad=False),
        draw.tensor(new, grad=False),
        draw.tensor((fresh, width), grad=False),
        torch.arange(start, start + fresh),
    )
    return Program(run, args)


def decode_step(draw: Draw) -> Program:
    """Attention of one new token over a cache, by products and sums that fuse."""
    heads, width = draw.choice((1, 2, 8, 16)), draw.choice((32, 64, 128))
    batch = draw.choice((1, 2, 8, 32))
    length = max(4, min(16384, draw.numel // (batch * heads * width)))
    shared = draw.choice((1, 1, 2, 4))
    valid = draw.between(1, length)

    def run(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        k = keys.repeat_interleave(shared, 1) if shared > 1 else keys
        v = values.repeat_interleave(shared, 1) if shared > 1 else values
        scores = (query[:, :, None] * k).sum(-1).float() / width**0.5
        at = torch.arange(length, device=query.device)
        weight = functional.softmax(scores.masked_fill(at >= valid, float("-inf")), -1)
        return (weight.to(v.dtype)[..., None] * v).sum(2)

    cache = (batch, heads, length, width)
    args = (
        draw.tensor((batch, heads * shared, width), grad=False),
        draw.tensor(cache, grad=False),
        draw.tensor(cache, grad=False),
    )
    return Program(run, args)


def ring(draw: Draw) -> Program:
    """A buffer of the last so many rows: shifted, one replaced, and summed up."""
    slots = draw.choice((2, 4, 8, 16, 64))
    width = max(1, draw.numel // slots)
    kind = draw.choice(("shift", "replace", "convolve"))
    at = draw.between(0, slots - 1)

    def run(buffer: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        if kind == "replace":
            buffer[at] = x
        else:
            buffer.copy_(torch.roll(buffer, -1, 0))
            buffer[-1] = x
        if kind == "convolve":
            return functional.silu((buffer * weight[:, None]).sum(0))
        return (x - buffer.mean(0)) * 0.5

    args = (
        draw.tensor((slots, width), grad=False),
        draw.tensor((width,), grad=False),
        draw.tensor((slots,), grad=False),
    )
    return Program(run, args)


def slices(draw: Draw) -> Program:
    """Parts of a tensor assigned, scaled and masked in place, with steps and at both ends."""
    shape = draw.shape(draw.between(2, 3))
    width, rows = shape[-1], shape[0]
    steps = []
    for _ in range(draw.between(1, 5)):
        low = draw.between(0, max(0, width // 2))
        steps.append((draw.choice(("set", "add", "rows", "mask")), low, draw.choice((1, 1, 2))))

    def run(state: Tensor, x: Tensor, keep: Tensor) -> Tensor:
        for kind, low, step in steps:
            if kind == "set":
                state[..., low::step] = torch.tanh(x[..., low::step])
            elif kind == "add":
                state[..., low::step].add_(x[..., low::step], alpha=0.5)
            elif kind == "rows":
                state[: rows // 2 + 1].mul_(0.5)
            else:
                state.masked_fill_(keep, 0.0)
        return state * 0.5

    args = (draw.tensor(shape, grad=False), draw.tensor(shape, grad=False), draw.mask(shape, 0.2))
    return Program(run, args)


#: Every family here.
FAMILIES = (key_cache, decode_step, ring, slices)
