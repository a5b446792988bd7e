"""Kernels of 1 to 4096 elements: scalars, parameters of channels, counters, schedules."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.chains import BINARY, UNARY
from fusewise.datasets.generated.draw import Draw, Program


def scalars(draw: Draw) -> Program:
    """Losses weighed and added, learning rates, running means: work on single numbers."""
    count = draw.between(2, 12)
    steps = [(draw.choice(BINARY), draw.choice(UNARY)) for _ in range(count)]
    averaged = draw.chance(0.5)

    def run(parts: list[Tensor], mean: Tensor) -> tuple[Tensor, Tensor]:
        total = parts[0]
        for part, (join, change) in zip(parts, steps, strict=True):
            total = join(total, change(part))
        return total, mean * 0.99 + total * 0.01 if averaged else torch.stack(parts).mean()

    shape = draw.choice(((), (), (1,)))
    args = (
        [draw.tensor(shape, dtype=torch.float32) for _ in range(count)],
        draw.tensor(shape, dtype=torch.float32, grad=False),
    )
    return Program(run, args, draw.training)


def channel_parameters(draw: Draw) -> Program:
    """Batch norm folded into scale and shift, weight norm, running statistics of channels."""
    channels = draw.log_between(1, 4096)
    kind = draw.choice(("fold", "update", "chain"))
    steps = [draw.choice(UNARY) for _ in range(draw.between(2, 8))]

    def run(weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        if kind == "fold":
            scale = weight * torch.rsqrt(var + 1e-5)
            return scale, bias - mean * scale
        if kind == "update":
            fresh = 0.9 * mean + 0.1 * weight.detach()
            return weight - fresh, 0.9 * var + 0.1 * (bias - fresh).square()
        h = weight
        for step in steps:
            h = step(h) + bias
        return h, functional.softmax(h, -1)

    args = (
        draw.tensor((channels,)),
        draw.tensor((channels,)),
        draw.tensor((channels,), grad=False),
        draw.tensor((channels,), grad=False, positive=True),
    )
    return Program(run, args, draw.training)


def counters(draw: Draw) -> Program:
    """Positions, lengths and step counts: integers made, compared, added and changed in place."""
    length, batch = draw.log_between(1, 2048), draw.choice((1, 2, 4, 16))
    kind = draw.choice(("positions", "lengths", "steps", "buckets"))
    places = max(1, length // draw.choice((1, 2, 4)))

    def run(tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if kind == "positions":
            kept = (tokens != 0).long()
            return kept.cumsum(-1) * kept, kept.sum(-1)
        if kind == "lengths":
            ends = (tokens > 50).long().argmax(-1)  # noqa: PLR2004
            at = torch.arange(tokens.shape[-1], device=tokens.device)
            return (at < ends[:, None]).long(), ends
        if kind == "steps":
            state.add_(1)
            return state % places, torch.where(state > places, state, 0)
        far = (tokens[:, :1] - tokens).abs()
        near = (far.float() + 1).log().mul(8).long().clamp(max=31)
        return torch.where(far < 16, far, near), far.amax(-1)  # noqa: PLR2004

    args = (draw.indices((batch, length), 100), draw.indices((batch,), 1000))
    return Program(run, args)


def small_tensors(draw: Draw) -> Program:
    """A short chain with a norm or a softmax on at most 4096 elements, as single tokens are."""
    numel = draw.log_between(1, 4096)
    width = draw.log_between(1, numel)
    shape = (max(1, numel // width), width)
    steps = [draw.choice(UNARY) for _ in range(draw.between(1, 6))]
    final = draw.choice(("norm", "softmax", "sum", "none"))

    def run(x: Tensor, gain: Tensor) -> Tensor:
        h = x * gain
        for step in steps:
            h = step(h)
        if final == "norm":
            return h * torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-6).to(h.dtype)
        if final == "softmax":
            return functional.softmax(h, -1)
        return h.sum() if final == "sum" else h

    return Program(run, (draw.tensor(shape), draw.tensor((width,))), draw.training)


#: Every family here.
FAMILIES = (scalars, channel_parameters, counters, small_tensors)
