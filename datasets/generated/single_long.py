"""Reductions of long rows and tall columns, and transposes, by themselves, each with its own sizes.

What a loop over rows takes depends on how many there are, on what each of its turns loads and on
what it computes of that; each of these is drawn by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.single_indexed import Part, together

#: Elements of the smallest tensor at any scale, and of the largest at scale 1.
_LEAST, _MOST = 2**12, 2**21
#: What is reduced, of so many tensors.
_Value = Callable[..., Tensor]

_OF_ONE: tuple[_Value, ...] = (
    lambda x: x,
    lambda x: x * x,
    lambda x: x.abs(),
    functional.softplus,
    lambda x: torch.tanh(x * 0.5) * x,
    lambda x: functional.gelu(x + 1.0),
    lambda x: torch.where(x > 0, x, x * x),
)
_OF_TWO: tuple[_Value, ...] = (
    lambda x, y: x * y,
    lambda x, y: (x - y) ** 2,
    lambda x, y: torch.where((x - y).abs() < 1.0, 0.5 * (x - y) ** 2, (x - y).abs() - 0.5),
    lambda x, y: y.exp() * (y - x),
    lambda x, y: x.clamp_min(0.0) - x * y + torch.log1p(torch.exp(-x.abs())),
    lambda x, y: torch.where(y > 0, x, 0.0),
)
_OF_THREE: tuple[_Value, ...] = (
    lambda x, y, z: x * y * z,
    lambda x, y, z: z * (x - y) ** 2,
    lambda x, y, z: torch.sigmoid(z) * x + y,
    lambda x, y, z: torch.where(z > 0, x, y).abs(),
)
_VALUES = ((1, _OF_ONE), (1, _OF_ONE), (2, _OF_TWO), (2, _OF_TWO), (3, _OF_THREE))
#: What comes of them, along an axis.
_RESULTS: tuple[Callable[[Tensor, int], tuple[Tensor, ...]], ...] = (
    lambda v, axis: (v.sum(axis),),
    lambda v, axis: (v.float().mean(axis),),
    lambda v, axis: (v.amax(axis),),
    lambda v, axis: (v.sum(axis), (v * v).sum(axis)),
    lambda v, axis: torch.var_mean(v, axis, correction=0),
    lambda v, axis: (torch.logsumexp(v, axis),),
    lambda v, axis: (torch.linalg.vector_norm(v, dim=axis),),
    lambda v, axis: (v * torch.rsqrt((v * v).mean(axis, keepdim=True) + 1e-6),),
    lambda v, axis: (torch.softmax(v, axis),),
    lambda v, axis: ((v - v.mean(axis, keepdim=True)) * 0.1,),
)
#: Extents of what is turned round: powers of two and not.
_EXTENTS = (3, 4, 7, 8, 12, 14, 16, 28, 32, 48, 49, 64, 77, 96, 128, 196, 197, 256, 384, 512, 1024)


def long_rows(draw: Draw) -> Program:
    """Reductions of rows, few or many."""
    return together(draw, [lambda d, _: _reduced(d, 1)] * draw.between(3, 6))


def tall_columns(draw: Draw) -> Program:
    """Reductions of columns, few or many."""
    return together(draw, [lambda d, _: _reduced(d, 0)] * draw.between(3, 6))


def single_transposes(draw: Draw) -> Program:
    """Tensors whose dimensions change places, alone or added to one whose do not."""
    return together(draw, [lambda d, _: _turned(d)] * draw.between(3, 6))


def _elements(draw: Draw) -> int:
    """Of one tensor: of every order of magnitude, the larger ones more often."""
    most = max(64.0, _MOST * draw.scale)
    least = min(_LEAST, most / 4)
    return int(least * (most / least) ** draw.random.triangular(0, 1, 0.8))


def _reduced(draw: Draw, axis: int) -> Part:
    numel = _elements(draw)
    length = draw.log_between(min(64, numel), numel)
    shape = [max(1, numel // length), length]
    count, values = draw.choice(_VALUES)
    value, result = draw.choice(values), draw.choice(_RESULTS)
    tensors = [draw.tensor(shape if axis else shape[::-1], grad=False) for _ in range(count)]
    if count > 1 and draw.chance(0.25):
        # One is the same for all rows, or for all of a row.
        kept = draw.choice((0, 1))
        tensors[-1] = tensors[-1].narrow(kept, 0, 1).clone()
    return lambda *given: result(value(*given), axis), tuple(tensors)


def _turned(draw: Draw) -> Part:
    rank = draw.between(2, 4)
    shape = [draw.choice(_EXTENTS) for _ in range(rank - 1)]
    shape.insert(draw.between(0, rank - 1), 1)
    at = shape.index(1)
    shape[at] = max(2, _elements(draw) // torch.Size(shape).numel())
    order = list(range(rank))
    while order == sorted(order):
        draw.random.shuffle(order)
    x = draw.tensor(shape, grad=False)
    if draw.chance(0.4):
        return lambda x: x.permute(order).contiguous(), (x,)
    other = draw.tensor([shape[i] for i in order], grad=False)
    scale = draw.choice((0.5, 1.0))
    return lambda x, other: x.permute(order) * scale + other, (x, other)


#: Every family here.
FAMILIES = (long_rows, tall_columns, single_transposes)
