"""Values overwritten against values made anew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.pairs.pair import CAT, Pair, matrix, two_matrices, values


def _mul_(x: Tensor, y: Tensor) -> Tensor:
    z = x + y
    z.mul_(2)
    return z.exp()


def _mul(x: Tensor, y: Tensor) -> Tensor:
    return ((x + y) * 2).exp()


def _add_alpha_(x: Tensor, y: Tensor) -> Tensor:
    z = x.tanh()
    z.add_(y, alpha=0.5)
    return z.sum(-1)


def _add_scaled(x: Tensor, y: Tensor) -> Tensor:
    return (x.tanh() + 0.5 * y).sum(-1)


def _relu_(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).relu_().mean(-1)


def _relu(x: Tensor, y: Tensor) -> Tensor:
    return functional.relu(x - y).mean(-1)


def _masked_fill_(x: Tensor, y: Tensor) -> Tensor:
    scores = x * y
    scores.masked_fill_(y > 0, -1e4)
    return scores.softmax(-1)


def _masked_fill(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).masked_fill(y > 0, -1e4).softmax(-1)


def _out(x: Tensor, y: Tensor) -> Tensor:
    result = torch.empty_like(x)
    torch.add(x, y, out=result)
    torch.sigmoid(result, out=result)
    return result * x


def _no_out(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x + y) * x


def _copied_into_view(x: Tensor, y: Tensor) -> Tensor:
    result = torch.zeros_like(x)
    result[:, :32].copy_(x[:, :32] * 2)
    result[:, 32:].copy_(y[:, 32:].exp())
    return result


def _concatenated(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:, :32] * 2, y[:, 32:].exp()], 1)


def _argument_overwritten(x: Tensor, y: Tensor) -> None:
    x.mul_(y).add_(1)


def _argument_copied_over(x: Tensor, y: Tensor) -> None:
    x.copy_(x * y + 1)


def _clamp_twice_(x: Tensor) -> Tensor:
    z = x.clone()
    z.clamp_(min=-1)
    z.clamp_(max=1)
    return z.square().sum(-1)


def _clamp(x: Tensor) -> Tensor:
    return x.clamp(-1, 1).square().sum(-1)


def _running_(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    batch_var, batch_mean = torch.var_mean(x, 0)
    mean.mul_(0.9).add_(batch_mean, alpha=0.1)
    var.mul_(0.9).add_(batch_var, alpha=0.1)
    return (x - batch_mean) * torch.rsqrt(batch_var + 1e-5)


def _running_copied(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    batch_var, batch_mean = torch.var_mean(x, 0)
    mean.copy_(torch.lerp(mean, batch_mean, 0.1))
    var.copy_(torch.lerp(var, batch_var, 0.1))
    return (x - batch_mean) * torch.rsqrt(batch_var + 1e-5)


def _batch(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, var, training=True, momentum=0.1)


def _batch_by_hand(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    batch_var, batch_mean = torch.var_mean(x, 0, correction=0)
    mean.mul_(0.9).add_(batch_mean, alpha=0.1)
    var.mul_(0.9).add_(batch_var * (32 / 31), alpha=0.1)
    return (x - batch_mean) * torch.rsqrt(batch_var + 1e-5)


def _statistics() -> tuple[Tensor, Tensor, Tensor]:
    return values(32, 64), values(64), values(64).abs()


def _adam_foreach(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    torch._foreach_mul_(m, 0.9)
    torch._foreach_add_(m, g, alpha=0.1)
    torch._foreach_add_(p, m, alpha=-0.01)


def _adam_single(p: list[Tensor], g: list[Tensor], m: list[Tensor]) -> None:
    for a, b, c in zip(p, g, m, strict=True):
        c.mul_(0.9).add_(b, alpha=0.1)
        a.add_(c, alpha=-0.01)


def _parameters() -> tuple[Any, ...]:
    return tuple([values(16, n) for n in (8, 24)] for _ in range(3))


def _momentum_(p: Tensor, m: Tensor, g: Tensor) -> None:
    m.mul_(0.9).add_(g)
    p.sub_(0.1 * m)


def _momentum_copied(p: Tensor, m: Tensor, g: Tensor) -> None:
    fresh = 0.9 * m + g
    m.copy_(fresh)
    p.copy_(p - 0.1 * fresh)


def _three() -> tuple[Tensor, Tensor, Tensor]:
    return values(32, 64), values(32, 64) * 0.5, values(32, 64) * 0.25


PAIRS: tuple[Pair, ...] = (
    Pair("mul_", ("z.mul_(2)", "z * 2"), _mul_, _mul, two_matrices),
    Pair(
        "add_ with alpha",
        ("z.add_(y, alpha=0.5)", "z + 0.5 * y"),
        _add_alpha_,
        _add_scaled,
        two_matrices,
    ),
    Pair("relu_", ("z.relu_()", "functional.relu(z)"), _relu_, _relu, two_matrices),
    Pair(
        "masked_fill_",
        ("z.masked_fill_(mask, v)", "z.masked_fill(mask, v)"),
        _masked_fill_,
        _masked_fill,
        two_matrices,
    ),
    Pair("out=", ("torch.add(x, y, out=z)", "z = x + y"), _out, _no_out, two_matrices),
    Pair(
        "copy_ into views",
        ("z[:, :n].copy_(a); z[:, n:].copy_(b)", "torch.cat([a, b], 1)"),
        _copied_into_view,
        _concatenated,
        two_matrices,
        differs=CAT,
        mended_by="cat_at_once",
    ),
    Pair(
        "argument overwritten",
        ("x.mul_(y).add_(1)", "x.copy_(x * y + 1)"),
        _argument_overwritten,
        _argument_copied_over,
        two_matrices,
    ),
    Pair(
        "clamp_", ("z.clamp_(min=a).clamp_(max=b)", "x.clamp(a, b)"), _clamp_twice_, _clamp, matrix
    ),
    Pair(
        "running statistics",
        ("mean.mul_(0.9).add_(m, alpha=0.1)", "mean.copy_(torch.lerp(mean, m, 0.1))"),
        _running_,
        _running_copied,
        _statistics,
    ),
    Pair(
        "batch norm",
        ("functional.batch_norm(x, mean, var)", "var_mean and mul_, add_"),
        _batch,
        _batch_by_hand,
        _statistics,
    ),
    Pair(
        "momentum step",
        ("m.mul_(b).add_(g); p.sub_(a * m)", "m.copy_(b * m + g); p.copy_(p - a * m)"),
        _momentum_,
        _momentum_copied,
        _three,
    ),
    Pair(
        "optimiser, foreach",
        ("torch._foreach_add_(p, m, alpha=-a)", "for each: p.add_(m, alpha=-a)"),
        _adam_foreach,
        _adam_single,
        _parameters,
    ),
)
