"""Operations on elements, as tables for programs of random structure.

Each is defined for all finite values and leaves them finite. Beside it stands what bounds its
result, so that long chains stay within fp16.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

#: Name, function, bound of the result from that of the operand.
Unary = tuple[str, Callable[[Tensor], Tensor], Callable[[float], float]]
#: The same of two operands, and of three.
Binary = tuple[str, Callable[[Tensor, Tensor], Tensor], Callable[[float, float], float]]
Ternary = tuple[
    str, Callable[[Tensor, Tensor, Tensor], Tensor], Callable[[float, float, float], float]
]


def softened(x: Tensor) -> Tensor:
    """``x`` between -1 and 1, in the order that it had."""
    return x / (1.0 + x.abs())


def _one(_: float) -> float:
    return 1.0


def _same(x: float) -> float:
    return x


def _int8(x: Tensor) -> Tensor:
    return (x * 16.0).round().clamp(-128, 127).to(torch.int8)


def _uint8(x: Tensor) -> Tensor:
    return (x * 16.0 + 128.0).round().clamp(0, 255).to(torch.uint8)


UNARY: tuple[Unary, ...] = (
    ("sigmoid", torch.sigmoid, _one),
    ("tanh", torch.tanh, _one),
    ("sin", torch.sin, _one),
    ("cos", torch.cos, _one),
    ("erf", torch.erf, _one),
    ("relu", torch.relu, _same),
    ("abs", torch.abs, _same),
    ("neg", torch.neg, _same),
    ("round", torch.round, lambda x: x + 1),
    ("floor", torch.floor, lambda x: x + 1),
    ("silu", functional.silu, _same),
    ("gelu", functional.gelu, _same),
    ("softplus", functional.softplus, lambda x: x + 1),
    ("leaky_relu", functional.leaky_relu, _same),
    ("exp", lambda x: torch.exp(torch.tanh(x)), lambda _: 3.0),
    ("bell", lambda x: torch.exp(-x.square()), _one),
    ("log", lambda x: torch.log(x.abs() + 1.0), _same),
    ("log2", lambda x: torch.log2(x.abs() + 0.5), lambda x: x + 1),
    ("sqrt", lambda x: torch.sqrt(x.abs() + 1.0), lambda x: x + 1),
    ("rsqrt", lambda x: torch.rsqrt(x.abs() + 1.0), _one),
    ("reciprocal", lambda x: 1.0 / (x.abs() + 1.0), _one),
    ("square", torch.square, lambda x: x * x),
    ("cube", lambda x: x.clamp(-3.0, 3.0) ** 3, lambda _: 27.0),
    ("power", lambda x: (x.abs() + 0.1) ** 1.5, lambda x: (x + 0.1) ** 1.5),
    ("root", lambda x: (x.abs() + 0.5) ** -0.75, lambda _: 2.0),
    ("clamp", lambda x: x.clamp(-2.0, 2.0), lambda x: min(x, 2.0)),
    ("floored", lambda x: x.clamp(min=0.1), _same),
    ("affine", lambda x: x * 0.7 + 0.1, lambda x: 0.7 * x + 0.1),
    ("halved", lambda x: x * 0.5, lambda x: x / 2),
    ("fp32", lambda x: x.float(), _same),
    ("band", lambda x: torch.where(x.abs() < 1.0, x, 0.1 * x), _same),
    ("positive", lambda x: x * (x > 0.0), _same),
    ("through", lambda x: x + (_int8(x).to(x.dtype) / 16.0 - x).detach(), lambda x: x + 1),
)

#: Those that stop the gradient, most of them through a dtype without one.
STOPPING: tuple[Unary, ...] = (
    ("int8", lambda x: _int8(x).to(x.dtype) / 16.0, lambda x: min(x, 8.0)),
    ("uint8", lambda x: _uint8(x).to(x.dtype) / 16.0, lambda _: 16.0),
    ("int64", lambda x: (x * 4.0).long().to(x.dtype) * 0.25, _same),
    ("parity", lambda x: ((x * 8.0).to(torch.int32) & 1).to(x.dtype), _one),
    ("above", lambda x: (x > 1.0).to(x.dtype), _one),
    ("outside", lambda x: ((x < 0.0) | (x > 1.0)).to(x.dtype), _one),
)

#: What a result is stored as now and then; none but the first has a gradient.
STORED: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("as fp32", lambda x: x.float() * 2.0),
    ("as int8", _int8),
    ("as uint8", _uint8),
    ("as mask", lambda x: x > 0.0),
    ("as int64", lambda x: x.round().long()),
)

BINARY: tuple[Binary, ...] = (
    ("add", torch.add, operator.add),
    ("sub", torch.sub, operator.add),
    ("mul", torch.mul, operator.mul),
    ("mul", torch.mul, operator.mul),
    ("div", lambda x, y: x / (1.0 + y.abs()), lambda x, _: x),
    ("maximum", torch.maximum, max),
    ("minimum", torch.minimum, max),
    ("gate", lambda x, y: x * torch.sigmoid(y), lambda x, _: x),
    ("glu", lambda x, y: functional.silu(x) * y, operator.mul),
    ("greater", lambda x, y: torch.where(x > y, x, 0.5 * y), max),
    ("masked", lambda x, y: x.masked_fill(y > 1.0, -1.0), lambda x, _: x + 1),
    ("kept", lambda x, y: x * (y <= 0.0), lambda x, _: x),
    ("lerp", lambda x, y: x + 0.25 * (y - x), max),
    ("distance", lambda x, y: (x - y).square(), lambda x, y: (x + y) ** 2),
    ("decay", lambda x, y: x * torch.exp(-y.abs()), lambda x, _: x),
)

TERNARY: tuple[Ternary, ...] = (
    ("addcmul", lambda x, y, z: x + y * z, lambda x, y, z: x + y * z),
    ("where", lambda x, y, z: torch.where(x > 0.0, y, z), lambda _, y, z: max(y, z)),
    ("between", lambda x, y, z: torch.maximum(torch.minimum(x, y), z), max),
    ("mix", lambda x, y, z: y + torch.sigmoid(x) * (z - y), lambda _, y, z: max(y, z)),
    ("fma", lambda x, y, z: x * 0.9 + y * 0.1 - z / (y.abs() + 1.0), lambda x, y, z: x + y + z),
)

#: The operand that is only compared in some of these, so that no gradient flows back to it.
COMPARED: dict[str, int] = {"masked": 1, "kept": 1, "where": 0}
