"""Reductions that are long, whole, narrow or over unusual axes, and scans."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program

Reduce = Callable[[Tensor, int], Tensor]

#: Few normal values are larger, so that neither answer is the rule.
_FAR = 3

#: Reductions of one axis that have a gradient, all kept in range for normal values.
SMOOTH: dict[str, Reduce] = {
    "sum": lambda h, axis: h.sum(axis, keepdim=True, dtype=torch.float32),
    "mean": lambda h, axis: h.mean(axis, keepdim=True),
    "amax": lambda h, axis: h.amax(axis, keepdim=True),
    "amin": lambda h, axis: h.amin(axis, keepdim=True),
    "var": lambda h, axis: h.var(axis, keepdim=True, correction=0),
    "norm": lambda h, axis: (h.float().square().mean(axis, keepdim=True) + 1e-6).sqrt(),
    "logsumexp": lambda h, axis: torch.logsumexp(h.float(), axis, keepdim=True),
}
#: Those that have none.
DISCRETE: dict[str, Reduce] = {
    "argmax": lambda h, axis: h.argmax(axis, keepdim=True),
    "argmin": lambda h, axis: h.argmin(axis, keepdim=True),
    "any": lambda h, axis: (h > _FAR).any(axis, keepdim=True),
    "all": lambda h, axis: (h < _FAR).all(axis, keepdim=True),
    "count": lambda h, axis: (h > 0).sum(axis, keepdim=True),
    "prod": lambda h, axis: torch.cos(h.detach().float()).prod(axis, keepdim=True),
}


def distributions(draw: Draw) -> Program:
    """Distributions over long rows: of one tensor several, each scaled, shifted or capped."""
    width = draw.choice((1536, 2048, 4000, 6144, 8192, 10000, 16384, 30522))
    rows = max(2, draw.numel // width)
    changes = draw.random.sample(("as it is", "heated", "shifted", "capped"), draw.between(1, 3))
    ends = [draw.choice(("softmax", "log_softmax", "logsumexp", "entropy")) for _ in changes]

    def changed(x: Tensor, shift: Tensor, change: str) -> Tensor:
        if change == "heated":
            return x / 1.7
        if change == "shifted":
            return x + shift
        return 20 * torch.tanh(x / 20) if change == "capped" else x

    def run(x: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
        found = []
        for change, end in zip(changes, ends, strict=True):
            scores = changed(x.float(), shift, change)
            if end == "logsumexp":
                found.append(torch.logsumexp(scores, -1))
            elif end == "entropy":
                logs = functional.log_softmax(scores, -1)
                found.append(-(logs.exp() * logs).sum(-1))
            else:
                make = functional.softmax if end == "softmax" else functional.log_softmax
                found.append(make(scores, -1).to(x.dtype))
        return tuple(found)

    args = draw.tensor((rows, width)), draw.tensor((width,), grad=False)
    return Program(run, args, draw.training)


def _before(draw: Draw) -> Callable[[Tensor, Tensor], Tensor]:
    """What is fused into the reading of the reduced tensor."""
    return draw.choice(
        (
            lambda x, _: x,
            lambda x, y: x * y,
            lambda x, _: functional.silu(x),
            lambda x, y: (x - y).square(),
            lambda x, y: torch.where(y > 0, x, 0.0),
        )
    )


def _several(draw: Draw) -> list[Reduce]:
    """A reduction with a gradient and up to three others."""
    found = [draw.choice(list(SMOOTH.values()))]
    others = [*SMOOTH.values(), *DISCRETE.values()]
    return found + [draw.choice(others) for _ in range(draw.choice((0, 0, 1, 3)))]


def long_rows(draw: Draw) -> Program:
    """Few rows of up to 2^22 elements: vocabularies, flattened images, whole layers."""
    length = min(draw.numel, draw.log_between(2**12, 2**22))
    rows = max(1, draw.numel // length)
    before, kinds = _before(draw), _several(draw)
    used = draw.choice(("no", "normalise", "softmax"))

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        h = before(x, y)
        found = [kind(h, -1) for kind in kinds]
        if used == "normalise":
            found.append((h - found[0]) * 0.5)
        elif used == "softmax":
            found.append(functional.softmax(h, -1, dtype=torch.float32).to(x.dtype))
        return found

    other = (rows, length) if draw.chance(0.4) else (length,)
    return Program(run, (draw.tensor((rows, length)), draw.tensor(other)), draw.training)


def columns(draw: Draw) -> Program:
    """Sums down a very long first axis onto few columns: gradients of biases, batch statistics."""
    width = min(draw.numel, draw.choice((1, 2, 3, 8, 32, 64, 100, 256, 768, 1024)))
    rows = max(1, draw.numel // width)
    before, kinds = _before(draw), _several(draw)
    used = draw.chance(0.3)

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        h = before(x, y)
        found = [kind(h, 0) for kind in kinds]
        return [*found, h - found[0]] if used else found

    other = (rows, width) if draw.chance(0.5) else (width,)
    args = (draw.tensor((rows, width)), draw.tensor(other))
    return Program(run, args, draw.training)


def full_reduction(draw: Draw) -> Program:
    """Everything to one number: losses, norms of gradients, checks for infinities."""
    shape = draw.shape(draw.between(1, 4))
    before, kinds = _before(draw), _several(draw)
    clipped = draw.chance(0.3)

    def run(x: Tensor, y: Tensor) -> list[Tensor]:
        flat = before(x, y).flatten()
        found = [kind(flat, 0) for kind in kinds]
        if clipped:
            found.append(x * (1.0 / (found[0].float().abs() + 1.0)).clamp(max=1.0).to(x.dtype))
        return found

    return Program(run, (draw.tensor(shape), draw.tensor(shape)), draw.training)


def middle_axes(draw: Draw) -> Program:
    """Reductions over outer, middle or separate axes of a tensor of three to five."""
    rank = draw.between(3, 5)
    shape = draw.shape(rank, wide=False)
    axes = tuple(sorted(draw.random.sample(range(rank), draw.between(1, rank - 1))))
    keep = draw.chance(0.6)
    prepared = draw.choice((torch.relu, torch.square, torch.sigmoid))

    def run(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        h = prepared(x).float()
        mean = h.mean(axes, keepdim=True)
        var = (h - mean).square().mean(axes, keepdim=True)
        if keep:
            return ((h - mean) * torch.rsqrt(var + 1e-5)).to(x.dtype) * gain, mean
        return mean, h.sum(axes)

    return Program(run, (draw.tensor(shape), draw.tensor(shape[-1:])), draw.training)


def scan(draw: Draw) -> Program:
    """Running sums, products, maxima and log-sums along an axis, with work before and after."""
    if draw.chance(0.3):
        length = min(draw.numel, draw.log_between(2**10, 2**18))
        shape: tuple[int, ...] = (max(1, draw.numel // length), length)
    else:
        shape = draw.shape(draw.between(2, 3))
    axis = -1 if draw.chance(0.7) else 0
    kind = draw.choice(("sum", "sum", "logsum", "max", "product", "positions"))
    weighted = draw.chance(0.5)

    def run(x: Tensor, gain: Tensor) -> Tensor:
        h = torch.sigmoid(x).float()
        if kind == "sum":
            out = h.cumsum(axis) / h.shape[axis]
        elif kind == "logsum":
            out = torch.logcumsumexp(h, axis)
        elif kind == "max":
            out = torch.cummax(h, axis).values
        elif kind == "product":
            out = torch.cumsum(torch.log(0.9 + 0.1 * h), axis).exp()
        else:
            out = h * (x > 0).long().cumsum(axis)
        return out * gain if weighted else out

    return Program(run, (draw.tensor(shape), draw.tensor(shape[-1:])), draw.training)


def chosen(draw: Draw) -> Program:
    """Sorts, medians and largest few of short rows, and what is done with their places."""
    width = min(draw.numel, draw.choice((8, 16, 50, 128, 256, 1000)))
    rows = max(1, draw.numel // width)
    few = min(width, draw.choice((1, 2, 4, 8)))
    kind = draw.choice(("sort", "top", "rank"))

    def run(x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(x * gain)
        if kind == "sort":
            values, places = h.sort(-1)
            return values.cumsum(-1), places
        if kind == "top":
            values, places = h.topk(few, -1)
            return functional.softmax(values.float(), -1), places % 2
        places = h.argsort(-1).argsort(-1)
        return h * (places < few), places

    return Program(run, (draw.tensor((rows, width)), draw.tensor((width,))), draw.training)


#: Every family here.
FAMILIES = (long_rows, distributions, columns, full_reduction, middle_axes, scan, chosen)
