"""Optimiser updates in place, over lists of parameters as the foreach implementations do."""

from __future__ import annotations

import torch
from torch import Tensor

from fusewise.datasets.generated.draw import Draw, Program


def _parameters(draw: Draw) -> list[tuple[int, ...]]:
    """Shapes of a few layers: weights and biases."""
    shapes: list[tuple[int, ...]] = []
    for _ in range(draw.between(1, 6)):
        width = draw.width(wide=False)
        shapes += [(max(1, draw.numel // (width * 4)), width), (width,)]
    return shapes[: draw.between(1, len(shapes))]


def adam(draw: Draw) -> Program:
    """Adam or AdamW on each parameter, written out or by the foreach functions."""
    shapes = _parameters(draw)
    decay = draw.choice((0.0, 0.01))
    foreach = draw.chance(0.5)
    clipped = draw.chance(0.3)
    b1, b2, lr, eps = 0.9, 0.999, 1e-3, 1e-8

    def each(
        params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor]
    ) -> None:
        for p, g, m, v in zip(params, grads, first, second, strict=True):
            if decay:
                p.mul_(1 - lr * decay)
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            p.addcdiv_(m, v.sqrt().add_(eps), value=-lr)

    def together(
        params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor]
    ) -> None:
        if decay:
            torch._foreach_mul_(params, 1 - lr * decay)
        torch._foreach_lerp_(first, grads, 1 - b1)
        torch._foreach_mul_(second, b2)
        torch._foreach_addcmul_(second, grads, grads, 1 - b2)
        roots = torch._foreach_sqrt(second)
        torch._foreach_add_(roots, eps)
        torch._foreach_addcdiv_(params, first, roots, -lr)

    def run(
        params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor]
    ) -> list[Tensor]:
        if clipped:
            squares = torch.stack([g.float().square().sum() for g in grads])
            factor = (1.0 / (squares.sum().sqrt() + 1e-6)).clamp(max=1.0)
            grads = [(g * factor).to(g.dtype) for g in grads]
        (together if foreach else each)(params, grads, first, second)
        return params

    args = (
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False, positive=True) for s in shapes],
    )
    return Program(run, args)


def sgd(draw: Draw) -> Program:
    """SGD with momentum, Nesterov's or Lion's variant, and an optional moving average."""
    shapes = _parameters(draw)
    kind = draw.choice(("momentum", "nesterov", "lion"))
    averaged, lr = draw.chance(0.4), 0.01

    def run(
        params: list[Tensor], grads: list[Tensor], moments: list[Tensor], means: list[Tensor]
    ) -> list[Tensor]:
        for p, g, m, a in zip(params, grads, moments, means, strict=True):
            if kind == "lion":
                p.add_(torch.sign(m * 0.9 + g * 0.1), alpha=-lr)
                m.lerp_(g, 0.01)
            else:
                m.mul_(0.9).add_(g)
                p.add_(g + 0.9 * m if kind == "nesterov" else m, alpha=-lr)
            if averaged:
                a.lerp_(p, 0.001)
        return params

    args = tuple([draw.tensor(s, grad=False) for s in shapes] for _ in range(4))
    return Program(run, args)
