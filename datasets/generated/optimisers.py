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


def many_small(draw: Draw) -> Program:
    """A step on 10 to 60 small tensors: biases, norms and small layers, by foreach functions."""
    count = draw.between(10, 60)
    shapes = [
        (draw.log_between(1, 4096),) if draw.chance(0.6) else (draw.between(1, 64),) * 2
        for _ in range(count)
    ]
    kind = draw.choice(("sgd", "adam", "average", "clip"))

    def run(params: list[Tensor], grads: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        if kind == "sgd":
            torch._foreach_mul_(state, 0.9)
            torch._foreach_add_(state, grads)
            torch._foreach_add_(params, state, alpha=-0.01)
        elif kind == "adam":
            torch._foreach_mul_(state, 0.99)
            torch._foreach_addcmul_(state, grads, grads, 0.01)
            roots = torch._foreach_sqrt(state)
            torch._foreach_add_(roots, 1e-8)
            torch._foreach_addcdiv_(params, grads, roots, -0.001)
        elif kind == "average":
            torch._foreach_lerp_(state, params, 0.001)
        else:
            norms = torch._foreach_norm(grads)
            factor = (1.0 / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(grads, factor)
            torch._foreach_add_(params, grads, alpha=-0.01)
        return params

    args = (
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False, positive=True) for s in shapes],
    )
    return Program(run, args)


def factored(draw: Draw) -> Program:
    """Updates with statistics of rows and columns or of whole layers: Adafactor, LAMB, Muon."""
    shapes = _parameters(draw)[:3]
    kind = draw.choice(("adafactor", "lamb", "rmsprop", "normalised"))

    def run(params: list[Tensor], grads: list[Tensor], state: list[Tensor]) -> list[Tensor]:
        for p, g, v in zip(params, grads, state, strict=True):
            g32 = g.float()
            if kind == "adafactor" and p.ndim > 1:
                square = g32.square() + 1e-30
                row, column = square.mean(-1, keepdim=True), square.mean(-2, keepdim=True)
                update = g32 * torch.rsqrt(row * column / row.mean(-2, keepdim=True))
                update = update / (update.square().mean().sqrt()).clamp(min=1.0)
            elif kind == "lamb":
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                update = g32 / (v.float().sqrt() + 1e-6) + 0.01 * p.float()
                update = update * (p.float().norm() / (update.norm() + 1e-6)).clamp(max=10.0)
            elif kind == "normalised":
                update = g32 / (g32.norm(dim=-1, keepdim=True) + 1e-6)
            else:
                v.mul_(0.99).addcmul_(g, g, value=0.01)
                update = g32 * torch.rsqrt(v.float() + 1e-8)
            p.sub_((0.001 * update).to(p.dtype))
        return params

    args = (
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False) for s in shapes],
        [draw.tensor(s, grad=False, positive=True) for s in shapes],
    )
    return Program(run, args)


#: Every family here.
FAMILIES = (adam, sgd, many_small, factored)
