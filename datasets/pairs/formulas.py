"""The same mathematics in other operators, other types on the way, and other views."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.pairs.pair import CAT, Pair, matrix, two_matrices, values


def _to_after(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).to(torch.float64).sum(-1)


def _to_in_sum(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).sum(-1, dtype=torch.float64)


def _to_method(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).to(torch.bfloat16).relu()


def _to_before(x: Tensor, y: Tensor) -> Tensor:
    return (x + y).relu().bfloat16()


def _addcmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x, x, y, value=0.5).exp()


def _mul_add(x: Tensor, y: Tensor) -> Tensor:
    return (x + 0.5 * x * y).exp()


def _where(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y > 0, x * 2, 0.0).sum(-1)


def _masked_product(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2 * (y > 0)).sum(-1)


def _einsum(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("bi,oi->bo", x, w).relu()


def _matmul(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w.t()).relu()


def _product() -> tuple[Tensor, Tensor]:
    return values(32, 64), values(48, 64)


def _batched_einsum(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)


def _batched_matmul(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1)


def _heads() -> tuple[Tensor, Tensor]:
    return values(2, 4, 16, 8), values(2, 4, 12, 8)


def _linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.linear(x, w, b).tanh()


def _linear_by_hand(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x @ w.t() + b).tanh()


def _layer() -> tuple[Tensor, Tensor, Tensor]:
    return values(32, 64), values(48, 64), values(48)


def _chunked(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def _sliced(x: Tensor) -> Tensor:
    return functional.silu(x[:, :32]) * x[:, 32:]


def _split(x: Tensor) -> Tensor:
    gate, up = torch.split(x, [32, 32], -1)
    return functional.silu(gate) * up


def _unbound(x: Tensor) -> Tensor:
    first, second = x.view(2, 16, 64).unbind(0)
    return first * second.sigmoid()


def _indexed(x: Tensor) -> Tensor:
    return x[:16] * x[16:].sigmoid()


def _contiguous(x: Tensor) -> Tensor:
    return (x.exp().t().contiguous() + 1).sum(0)


def _transposed(x: Tensor) -> Tensor:
    return (x.exp().t() + 1).sum(0)


def _reshaped(x: Tensor) -> Tensor:
    return (x.tanh().reshape(8, 4, 64) * 2).sum(-1)


def _viewed(x: Tensor) -> Tensor:
    return (x.view(8, 4, 64).tanh() * 2).sum(-1)


def _flattened(x: Tensor) -> Tensor:
    return x.flatten().square().sum()


def _summed_over_both(x: Tensor) -> Tensor:
    return x.pow(2).sum((0, 1))


def _repeated(x: Tensor) -> Tensor:
    return x[:, None].repeat(1, 3, 1).exp()


def _expanded(x: Tensor) -> Tensor:
    return x[:, None].expand(32, 3, 64).exp()


def _softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def _softmax_by_hand(x: Tensor) -> Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (64,))


def _norm_by_hand(x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    centred = x - mean
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def _norm_by_var_mean(x: Tensor) -> Tensor:
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5)


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x) + 1


def _gelu_by_hand(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476)) + 1


def _stacked(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x, y]).sum(0)


def _added(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def _loop(x: Tensor, y: Tensor) -> Tensor:
    rows = [x[i] * y[i] for i in range(4)]
    return torch.stack(rows)


def _batch(x: Tensor, y: Tensor) -> Tensor:
    return x[:4] * y[:4]


PAIRS: tuple[Pair, ...] = (
    Pair(
        "to after arithmetic",
        ("z.to(torch.float64).sum(-1)", "z.sum(-1, dtype=torch.float64)"),
        _to_after,
        _to_in_sum,
        two_matrices,
    ),
    Pair(
        "to before or after",
        ("z.to(torch.bfloat16).relu()", "z.relu().bfloat16()"),
        _to_method,
        _to_before,
        two_matrices,
    ),
    Pair(
        "addcmul",
        ("torch.addcmul(x, x, y, value=a)", "x + a * x * y"),
        _addcmul,
        _mul_add,
        two_matrices,
    ),
    Pair(
        "where, masked product",
        ("torch.where(y > 0, x, 0)", "x * (y > 0)"),
        _where,
        _masked_product,
        two_matrices,
    ),
    Pair("einsum", ('torch.einsum("bi,oi->bo", x, w)', "x @ w.t()"), _einsum, _matmul, _product),
    Pair(
        "einsum of attention",
        ('torch.einsum("bhqd,bhkd->bhqk", q, k)', "q @ k.transpose(-1, -2)"),
        _batched_einsum,
        _batched_matmul,
        _heads,
    ),
    Pair(
        "linear",
        ("functional.linear(x, w, b)", "x @ w.t() + b"),
        _linear,
        _linear_by_hand,
        _layer,
    ),
    Pair("chunk", ("x.chunk(2, -1)", "x[:, :n], x[:, n:]"), _chunked, _sliced, matrix),
    Pair("split", ("torch.split(x, [n, n], -1)", "x[:, :n], x[:, n:]"), _split, _sliced, matrix),
    Pair("unbind", ("x.view(2, n, m).unbind(0)", "x[:n], x[n:]"), _unbound, _indexed, matrix),
    Pair("contiguous", ("z.t().contiguous()", "z.t()"), _contiguous, _transposed, matrix),
    Pair("reshape", ("x.tanh().reshape(...)", "x.view(...).tanh()"), _reshaped, _viewed, matrix),
    Pair("flatten", ("x.flatten().sum()", "x.sum((0, 1))"), _flattened, _summed_over_both, matrix),
    Pair("repeat", ("x.repeat(1, 3, 1)", "x.expand(n, 3, m)"), _repeated, _expanded, matrix),
    Pair(
        "softmax",
        ("functional.softmax(x, -1)", "amax, exp, sum, division"),
        _softmax,
        _softmax_by_hand,
        matrix,
    ),
    Pair(
        "layer norm, var_mean",
        ("functional.layer_norm(x, (n,))", "torch.var_mean(x, -1)"),
        _norm,
        _norm_by_var_mean,
        matrix,
    ),
    Pair(
        "layer norm, two means",
        ("functional.layer_norm(x, (n,))", "mean, and mean of squares"),
        _norm,
        _norm_by_hand,
        matrix,
    ),
    Pair("gelu", ("functional.gelu(x)", "x / 2 * (1 + erf(x / √2))"), _gelu, _gelu_by_hand, matrix),
    Pair(
        "stack",
        ("torch.stack([x, y]).sum(0)", "x + y"),
        _stacked,
        _added,
        two_matrices,
        differs=CAT,
        mended_by="cat_at_once",
    ),
    Pair(
        "loop over rows",
        ("torch.stack([f(x[i]), ...])", "f(x)"),
        _loop,
        _batch,
        two_matrices,
        differs=CAT,
        mended_by="cat_at_once",
    ),
)
