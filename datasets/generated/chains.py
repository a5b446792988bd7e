"""Elementwise programs: long chains, values with many users, dropout, updates in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

# All are defined and smooth enough for any finite input, so that chains of them stay finite.
UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.sigmoid,
    torch.tanh,
    torch.sin,
    torch.cos,
    torch.relu,
    torch.abs,
    torch.neg,
    functional.silu,
    functional.gelu,
    functional.softplus,
    functional.leaky_relu,
    torch.erf,
    lambda x: torch.exp(-x.abs()),
    lambda x: torch.log1p(x.abs()),
    lambda x: torch.rsqrt(x.square() + 1.0),
    lambda x: x.clamp(-2.0, 2.0),
    lambda x: x * 0.7 + 0.1,
)
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.maximum,
    torch.minimum,
    lambda x, y: torch.tanh(x) * y,
    lambda x, y: torch.where(x > y, x, 0.5 * y),
    lambda x, y: torch.lerp(x, y, 0.25),
    lambda x, y: x / (1.0 + y.abs()),
)


def pointwise_chain(draw: Draw) -> Program:
    """A long chain of elementwise steps over a few inputs, some of them rows or columns."""
    shape = draw.shape(draw.between(1, 3))
    inputs = draw.between(1, 4)
    steps: list[tuple[Callable[..., Tensor], int]] = []
    for _ in range(draw.between(3, 24)):
        if draw.chance(0.35):
            steps.append((draw.choice(BINARY), draw.between(0, inputs - 1)))
        else:
            steps.append((draw.choice(UNARY), -1))

    def run(*given: Tensor) -> Tensor:
        h = given[0] * 1.0
        for step, other in steps:
            h = step(h) if other < 0 else step(h, given[other])
        return h

    whole, row = shape, (1,) * (len(shape) - 1) + shape[-1:]
    args = tuple(draw.tensor(whole if i == 0 or draw.chance(0.7) else row) for i in range(inputs))
    return Program(run, args, draw.training)


def many_users(draw: Draw) -> Program:
    """A web of elementwise values that several others use, with a few results."""
    shape = draw.shape(2)
    inputs, size = draw.between(1, 3), draw.between(6, 24)
    steps: list[tuple[Callable[..., Tensor], int, int]] = []
    for i in range(size):
        # Early values are favoured, so that they get many users.
        first = min(draw.between(0, inputs + i - 1), draw.between(0, inputs + i - 1))
        if draw.chance(0.5):
            steps.append((draw.choice(BINARY), first, draw.between(0, inputs + i - 1)))
        else:
            steps.append((draw.choice(UNARY), first, -1))
    results = sorted({draw.between(inputs, inputs + size - 1) for _ in range(draw.between(1, 4))})
    summed = draw.chance(0.3)

    def run(*given: Tensor) -> list[Tensor]:
        values = list(given)
        for step, first, second in steps:
            one = values[first]
            values.append(step(one) if second < 0 else step(one, values[second]))
        found = [values[i] for i in results]
        return [found[0].sum(-1), *found[1:]] if summed else found

    return Program(run, tuple(draw.tensor(shape) for _ in range(inputs)), draw.training)


def dropout(draw: Draw) -> Program:
    """Dropout of a biased activation onto a residual, whole, by channel or by sample."""
    shape = draw.shape(3)
    rate = draw.choice((0.1, 0.5))
    kind = draw.choice(("elements", "rows", "samples"))
    normed, twice = draw.chance(0.4), draw.chance(0.3)

    def drop(h: Tensor) -> Tensor:
        if kind == "elements":
            return functional.dropout(h, rate, training=True)
        extent = (h.shape[0], 1, h.shape[2]) if kind == "rows" else (h.shape[0], 1, 1)
        kept = torch.rand(extent, device=h.device) >= rate
        return h * kept.to(h.dtype) / (1 - rate)

    def run(x: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
        h = drop(functional.gelu(x + bias))
        if twice:
            h = drop(h * 0.5)
        h = h + residual
        return functional.layer_norm(h, h.shape[-1:]) if normed else h

    args = (draw.tensor(shape), draw.tensor(shape), draw.tensor(shape[-1:]))
    return Program(run, args, draw.training)


def in_place(draw: Draw) -> Program:
    """Buffers that are changed as they are used: caches, running statistics, masked writes."""
    rows, width = draw.shape(2)
    kind = draw.choice(("cache", "statistics", "masked", "accumulate"))
    half = max(1, rows // 2)

    def run(state: Tensor, x: Tensor, keep: Tensor) -> Tensor:
        if kind == "cache":
            state[:half].copy_(x[:half] * 0.5)
            return torch.softmax(state, -1)
        if kind == "statistics":
            state.mul_(0.9).add_(x.mean(0, keepdim=True), alpha=0.1)
            return (x - state) * 0.5
        if kind == "masked":
            state.masked_fill_(keep, 0.0).add_(x)
            return state.tanh()
        state.add_(x * x).clamp_(max=10.0)
        return x * torch.rsqrt(state + 1.0)

    args = (
        draw.tensor((rows, width), grad=False, positive=True),
        draw.tensor((rows, width), grad=False),
        draw.mask((rows, width), 0.3),
    )
    return Program(run, args)


#: Every family here.
FAMILIES = (pointwise_chain, many_users, dropout, in_place)
