"""Programs of a user's, each with the tensors that it takes: small, and no two of a kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Make:
    """Makes the tensors of one program; the same each time."""

    device: str
    dtype: torch.dtype

    def tensor(self, *shape: int, grad: bool = False) -> torch.Tensor:
        generator = torch.Generator().manual_seed(len(shape) + sum(shape))
        value = torch.randn(shape, generator=generator).to(self.device, self.dtype)
        return value.requires_grad_(grad)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(high)
        return torch.randint(0, high, shape, generator=generator).to(self.device)


@dataclass(frozen=True)
class UserProgram:
    """A function with its arguments; a training one gives something to differentiate."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    training: bool = False


def layer_norm(make: Make) -> UserProgram:
    def f(x: Any, residual: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x + residual, (48,), w, b)

    return UserProgram(f, (make.tensor(24, 48),) * 2 + (make.tensor(48),) * 2)


def rms_norm(make: Make) -> UserProgram:
    def f(x: Any, w: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w

    return UserProgram(f, (make.tensor(16, 64, grad=True), make.tensor(64, grad=True)), True)


def softmax(make: Make) -> UserProgram:
    def f(x: Any, mask: Any) -> Any:
        return torch.softmax(torch.where(mask > 3, x, -1e4), -1), torch.log_softmax(x, -1)

    return UserProgram(f, (make.tensor(20, 40), make.integers(9, 20, 40)))


def attention(make: Make) -> UserProgram:
    """With capped scores, which Inductor has no kernel of its own for."""

    def f(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax((q @ k.transpose(-1, -2) * 0.25).tanh() * 5, -1)
        return (weights @ v).transpose(1, 2).reshape(2, 12, 32)

    return UserProgram(f, tuple(make.tensor(2, 2, 12, 16, grad=True) for _ in range(3)), True)


def gated_mlp(make: Make) -> UserProgram:
    def f(x: Any, up: Any, gate: Any, down: Any) -> Any:
        return x + (functional.silu(x @ gate) * (x @ up)) @ down

    tensors = [(16, 32), (32, 64), (32, 64), (64, 32)]
    return UserProgram(f, tuple(make.tensor(*t, grad=True) for t in tensors), True)


def cross_entropy(make: Make) -> UserProgram:
    def f(logits: Any, target: Any) -> Any:
        return functional.cross_entropy(logits.float(), target, label_smoothing=0.1)

    return UserProgram(f, (make.tensor(32, 50, grad=True), make.integers(50, 32)), True)


def adam_step(make: Make) -> UserProgram:
    def f(params: Any, grads: Any, firsts: Any, seconds: Any) -> None:
        for p, g, m, v in zip(params, grads, firsts, seconds, strict=True):
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            p.sub_(m / (v.sqrt() + 1e-3) * 0.1)

    shapes = [(8, 16), (16,)]
    tensors = [[make.tensor(*shape).abs() for shape in shapes] for _ in range(4)]
    return UserProgram(f, tuple(tensors))


def embedding(make: Make) -> UserProgram:
    def f(ids: Any, table: Any, sums: Any) -> Any:
        rows = functional.embedding(ids, table) * 2
        return rows.relu(), sums.index_add(0, ids, rows.float())

    sums = torch.zeros(20, 16, device=make.device)
    return UserProgram(f, (make.integers(20, 30), make.tensor(20, 16), sums))


def batch_norm(make: Make) -> UserProgram:
    def f(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
        return functional.relu(functional.batch_norm(x, mean, var, w, b, training=True))

    grown = (make.tensor(4, 6, 5, 5, grad=True), *(make.tensor(6, grad=True) for _ in range(2)))
    running = (torch.zeros(6, device=make.device), torch.ones(6, device=make.device))
    return UserProgram(f, (*grown, *running), True)


def layouts(make: Make) -> UserProgram:
    def f(x: Any, y: Any) -> Any:
        turned = (x.t() * 2).contiguous()
        joined = torch.cat([turned[:, :10], y[:, 2:].relu()], 1)
        return joined.view(2, -1).flip(1), joined.sum(0), torch.roll(y, 1, 0) + y

    return UserProgram(f, (make.tensor(18, 24), make.tensor(24, 18)))


def statistics(make: Make) -> UserProgram:
    def f(x: Any) -> Any:
        var, mean = torch.var_mean(x, 1)
        return var, mean, x.amax(0), x.abs().sum(), x.argmax(1)

    return UserProgram(f, (make.tensor(30, 44),))


def dropout(make: Make) -> UserProgram:
    def f(x: Any, y: Any) -> Any:
        return functional.gelu(functional.dropout(x, 0.3) + y)

    return UserProgram(f, (make.tensor(12, 32, grad=True), make.tensor(12, 32, grad=True)), True)


def integers(make: Make) -> UserProgram:
    def f(ids: Any, other: Any) -> Any:
        mixed = (ids ^ other) + (ids << 1)
        return mixed % 7, mixed.cumsum(1), (mixed > 9).sum(1), mixed.max(0).values.to(torch.int32)

    return UserProgram(f, (make.integers(30, 10, 16), make.integers(17, 10, 16)))


def mutation(make: Make) -> UserProgram:
    def f(x: Any, y: Any, w: Any) -> Any:
        before = x.sin()
        x.mul_(2).add_(y)
        y[:, :4] = 0
        y.copy_(y + x @ w)
        return before + x

    return UserProgram(f, (make.tensor(16, 16), make.tensor(16, 16) * 2, make.tensor(16, 16)))


def overwrite(make: Make) -> UserProgram:
    """The product reads what is overwritten afterwards: order without data."""

    def f(x: Any, w: Any) -> Any:
        product = x @ w
        x.add_(1)
        return product.relu(), x.sum(1)

    return UserProgram(f, (make.tensor(16, 16), make.tensor(16, 16)))


def dynamic(make: Make) -> UserProgram:
    def f(x: Any, w: Any) -> Any:
        return torch.softmax(x * w, -1).sum(0) / x.shape[0]

    x = make.tensor(22, 36)
    torch._dynamo.mark_dynamic(x, 0)
    return UserProgram(f, (x, make.tensor(36)))


PROGRAMS = (
    layer_norm,
    rms_norm,
    softmax,
    attention,
    gated_mlp,
    cross_entropy,
    adam_step,
    embedding,
    batch_norm,
    layouts,
    statistics,
    dropout,
    integers,
    mutation,
    overwrite,
    dynamic,
)
