"""Wide fusions: many tensors in, many out, and many values that share their inputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.chains import BINARY, UNARY
from fusewise.datasets.generated.draw import Draw, Program


def many_inputs(draw: Draw) -> Program:
    """A weighted mixture of 8 to 30 tensors, some of them rows, some of another dtype."""
    count = draw.between(8, 30)
    shape = _of(draw, max(64, draw.numel // count), draw.between(1, 3))
    steps = [draw.choice(BINARY) for _ in range(count)]
    outputs, reduced = draw.choice((1, 2, 3)), draw.chance(0.3)

    def run(*given: Tensor) -> list[Tensor]:
        found, h = [], given[0]
        for number, (step, other) in enumerate(zip(steps[1:], given[1:], strict=True)):
            h = step(h, other.to(h.dtype))
            if number % (count // outputs) == 0:
                found.append(h)
        return [*found, h.sum(-1) if reduced else h]

    args = []
    for number in range(count):
        whole = number == 0 or draw.chance(0.7)
        dtype = draw.choice((None, None, None, torch.float32))
        args.append(draw.tensor(shape if whole else shape[-1:], dtype=dtype))
    return Program(run, tuple(args), draw.training)


def many_outputs(draw: Draw) -> Program:
    """One or two tensors from which 8 to 30 are made, each its own way, some reduced."""
    count = draw.between(8, 30)
    shape = _of(draw, max(64, draw.numel // count), 2)
    first = [draw.choice(UNARY) for _ in range(count)]
    second = [draw.choice(BINARY) for _ in range(count)]
    chained, summed = draw.chance(0.4), draw.chance(0.4)

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        h = x
        for number in range(count):
            value = second[number](first[number](h), y)
            h = value if chained else x
            found.append(value.sum(-1) if summed and number % 4 == 3 else value)  # noqa: PLR2004
        return found

    return Program(run, (draw.tensor(shape), draw.tensor(shape)), draw.training)


def branches(draw: Draw) -> Program:
    """Branches of one input, each normalised or activated apart, joined by products and sums."""
    count = draw.between(4, 12)
    shape = _of(draw, max(64, draw.numel // 4), 2)
    kinds = [draw.choice(("norm", "softmax", "act", "scale", "centre")) for _ in range(count)]
    acts = [draw.choice(UNARY) for _ in range(count)]
    multiplied = [draw.chance(0.4) for _ in range(count)]

    def run(x: Tensor, gains: list[Tensor]) -> tuple[Tensor, Tensor]:
        total = x
        for kind, act, gain, product in zip(kinds, acts, gains, multiplied, strict=True):
            if kind == "norm":
                h = functional.layer_norm(x, x.shape[-1:], gain)
            elif kind == "softmax":
                h = functional.softmax(x * gain, -1)
            elif kind == "act":
                h = act(x + gain)
            elif kind == "scale":
                h = x * gain
            else:
                h = x - x.mean(-1, keepdim=True)
            total = total * torch.sigmoid(h) if product else total + h
        return total, total.amax(-1)

    args = (draw.tensor(shape), [draw.tensor(shape[-1:]) for _ in range(count)])
    return Program(run, args, draw.training)


def side_by_side(draw: Draw) -> Program:
    """Independent work of the same kind on many tensors of differing small sizes."""
    count = draw.between(4, 24)
    act, reduce = draw.choice(UNARY), draw.chance(0.3)
    shapes = [
        _of(draw, max(16, int(draw.numel / count * draw.random.uniform(0.2, 1.5))), 2)
        for _ in range(count)
    ]

    def run(given: list[Tensor], gains: list[Tensor]) -> list[Tensor]:
        found = [act(x * gain) for x, gain in zip(given, gains, strict=True)]
        return [h.sum(0) for h in found] if reduce else found

    args = ([draw.tensor(s) for s in shapes], [draw.tensor(s[-1:]) for s in shapes])
    return Program(run, args, draw.training)


def _of(draw: Draw, numel: int, rank: int) -> tuple[int, ...]:
    """A shape of about ``numel`` elements, of which the program has many tensors."""
    width = min(numel, draw.width())
    rows = max(1, numel // width)
    if rank == 1:
        return (rows * width,)
    if rank == 2:  # noqa: PLR2004
        return (rows, width)
    batch = min(rows, draw.choice((1, 2, 4, 8)))
    return (batch, max(1, rows // batch), width)


#: Every family here.
FAMILIES = (many_inputs, many_outputs, branches, side_by_side)
