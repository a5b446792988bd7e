"""Operations by themselves, each on a tensor of its own, so that each is a kernel.

A kernel of many operations does not tell what each of them costs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.elementwise import UNARY

Reduction = Callable[[Tensor, int], Tensor]

#: Reductions along an axis, with a gradient and without.
_SMOOTH: tuple[Reduction, ...] = (
    lambda x, axis: x.sum(axis),
    lambda x, axis: x.mean(axis),
    lambda x, axis: x.amax(axis),
    lambda x, axis: x.amin(axis),
    lambda x, axis: torch.tanh(x).prod(axis),
    lambda x, axis: x.var(axis, correction=0),
    torch.logsumexp,
    torch.softmax,
)
_STOPPING: tuple[Reduction, ...] = (
    lambda x, axis: (x > 1.0).any(axis),
    lambda x, axis: x.argmax(axis),
)
#: What random structures have none of.
_MORE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: torch.remainder(x, 0.7),
    torch.expm1,
    lambda x: torch.log1p(x.abs()),
)


def single_operations(draw: Draw) -> Program:
    """Operations on elements."""
    every = [function for _, function, _ in UNARY] + list(_MORE)
    chosen = draw.random.sample(every, draw.between(4, 8))

    def run(*tensors: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(chosen, tensors, strict=True)]

    return Program(run, _tensors(draw, len(chosen)), draw.training)


def single_reductions(draw: Draw) -> Program:
    """Reductions along rows or across them."""
    kinds = [
        _SMOOTH,
        *(draw.choice((_SMOOTH, _SMOOTH, _STOPPING)) for _ in range(draw.between(3, 7))),
    ]
    chosen = [(draw.choice(kind), draw.choice((0, 1))) for kind in kinds]

    def run(*tensors: Tensor) -> list[Tensor]:
        return [reduce(x, axis) for (reduce, axis), x in zip(chosen, tensors, strict=True)]

    return Program(run, _tensors(draw, len(chosen)), draw.training)


def _tensors(draw: Draw, count: int) -> tuple[Tensor, ...]:
    """So many matrices, none as long as another: equal loops would become one kernel."""
    last = draw.width()
    rows = max(1, draw.numel // (last * count))
    return tuple(draw.tensor((rows + i, last)) for i in range(count))


#: Every family here.
FAMILIES = (single_operations, single_reductions)
