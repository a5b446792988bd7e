"""Slices and indices assigned, against values put together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.pairs.pair import CAT, Pair, integers, matrix, two_matrices, values


def _slice_assigned(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    z[:, 16:48] = y[:, 16:48] * 2
    return z


def _slices_concatenated(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[:, :16].exp(), y[:, 16:48] * 2, x[:, 48:].exp()], 1)


def _slice_where(x: Tensor, y: Tensor) -> Tensor:
    first, last = 16, 48
    column = torch.arange(64)
    return torch.where((column >= first) & (column < last), y * 2, x.exp())


def _rows_assigned(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    z[0] = 0
    return z.sum(-1)


def _rows_masked(x: Tensor, y: Tensor) -> Tensor:
    first = torch.arange(32)[:, None] == 0
    return torch.where(first, 0.0, x * y).sum(-1)


def _index_put_(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    z = x.tanh()
    z.index_put_((rows,), y)
    return z * 2


def _index_copy(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    return x.tanh().index_copy(0, rows, y) * 2


def _index_add_(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z.index_add_(0, rows, y * 2)
    return z


def _index_put_accumulated(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    return x.index_put((rows,), y * 2, accumulate=True)


def _some_rows() -> tuple[Tensor, Tensor, Tensor]:
    return values(32, 64), integers(32, 8), values(8, 64)


def _cache_in_place(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache[:, at] = new
    return (cache * 0.5).sum(1)


def _cache_index_copy(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, new)
    return (cache * 0.5).sum(1)


def _cache() -> tuple[Tensor, Tensor, Tensor]:
    return values(4, 32, 16), values(4, 1, 16), torch.tensor([7])


def _cache_slice(cache: Tensor, new: Tensor) -> Tensor:
    cache[:, 7:8] = new * 2
    return cache.sum(1)


def _cache_copied(cache: Tensor, new: Tensor) -> Tensor:
    cache.copy_(torch.cat([cache[:, :7], new * 2, cache[:, 8:]], 1))
    return cache.sum(1)


def _cache_and_new() -> tuple[Tensor, Tensor]:
    return values(4, 32, 16), values(4, 1, 16)


def _gathered(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    return x[rows] * y


def _selected(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    return torch.index_select(x, 0, rows) * y


def _embedded(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    return functional.embedding(rows, x) * y


def _padded(x: Tensor) -> Tensor:
    return functional.pad(x.exp(), (1, 2)) * 2


def _padded_by_cat(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(32, 1), x.exp(), x.new_zeros(32, 2)], 1) * 2


def _one_hot(x: Tensor, classes: Tensor) -> Tensor:
    return (x * functional.one_hot(classes, 64)).sum(-1)


def _taken(x: Tensor, classes: Tensor) -> Tensor:
    return x.gather(-1, classes[:, None]).squeeze(-1)


def _classes() -> tuple[Tensor, Tensor]:
    return values(32, 64), integers(64, 32)


PAIRS: tuple[Pair, ...] = (
    Pair(
        "slice assigned, cat",
        ("z[:, a:b] = y", "torch.cat([x[:, :a], y, x[:, b:]], 1)"),
        _slice_assigned,
        _slices_concatenated,
        two_matrices,
        differs=CAT,
        mended_by="cat_at_once",
    ),
    Pair(
        "slice assigned, where",
        ("z[:, a:b] = y", "torch.where((a <= i) & (i < b), y, z)"),
        _slice_assigned,
        _slice_where,
        two_matrices,
    ),
    Pair(
        "row assigned",
        ("z[0] = 0", "torch.where(i == 0, 0, z)"),
        _rows_assigned,
        _rows_masked,
        two_matrices,
    ),
    Pair(
        "index_put_",
        ("z.index_put_((rows,), y)", "z.index_copy(0, rows, y)"),
        _index_put_,
        _index_copy,
        _some_rows,
    ),
    Pair(
        "index_add_",
        ("z.index_add_(0, rows, y)", "x.index_put((rows,), y, accumulate=True)"),
        _index_add_,
        _index_put_accumulated,
        _some_rows,
    ),
    Pair(
        "key cache, one position",
        ("cache[:, at] = new", "cache.index_copy_(1, at, new)"),
        _cache_in_place,
        _cache_index_copy,
        _cache,
    ),
    Pair(
        "key cache, made anew",
        ("cache[:, 7:8] = new", "cache.copy_(torch.cat([...]))"),
        _cache_slice,
        _cache_copied,
        _cache_and_new,
        differs="what is made anew of the old values is written aside first, and then copied over "
        "them whole; the slice alone is written in place",
    ),
    Pair(
        "rows looked up",
        ("x[rows]", "torch.index_select(x, 0, rows)"),
        _gathered,
        _selected,
        _some_rows,
    ),
    Pair(
        "embedding",
        ("x[rows]", "functional.embedding(rows, x)"),
        _gathered,
        _embedded,
        _some_rows,
    ),
    Pair(
        "padding",
        ("functional.pad(x, (1, 2))", "torch.cat([zeros, x, zeros], 1)"),
        _padded,
        _padded_by_cat,
        matrix,
        differs=CAT,
        mended_by="cat_at_once",
    ),
    Pair(
        "class picked",
        ("(x * functional.one_hot(c)).sum(-1)", "x.gather(-1, c)"),
        _one_hot,
        _taken,
        _classes,
        differs="one_hot checks that each class is in range: reductions and assertions of its own",
    ),
)
