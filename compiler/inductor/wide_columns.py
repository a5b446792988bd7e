"""Reductions of columns that go through the rows with several vectors side by side.

Where the rows of a matrix are reduced to one, Inductor's C++ takes a vector of columns through all
of them and then the next: each row is one line of a cache, on another page than the last, and each
step waits for the one before. Here kernels of fp32 go through with four vectors at once. Each
column is still put together in the same order, so that no result differs. Where so few steps are
left that threads would share the rows instead, Inductor's columns stay: that order is another, and
the rows are gone through by all threads once for each step. Elements of other sizes are left as
they are: ATen converts more than two vectors of them one by one. Nothing here decides where that is
worth it.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch._inductor.codegen import cpp
from torch._inductor.codegen.cpp_utils import _get_dtype_from_loopbodies, _get_loop_body
from torch._inductor.utils import parallel_num_threads
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.replacing import once, switched
from fusewise.search.lanes import by_columns

#: Vectors side by side.
VECTORS_ABREAST: Final = 4
#: Of the elements that are loaded and computed with.
_DTYPES: Final = frozenset({torch.float32, torch.bool})
_active: ContextVar[bool] = ContextVar("fusewise_wide_columns", default=False)


def wide_columns(wanted: bool) -> AbstractContextManager[None]:
    """Have columns reduced with several vectors in this context, if that is wanted."""
    return switched(_active, wanted, _install)


@once
def _install() -> None:
    tiling: Any = cpp.TilingSelect
    original = tiling.select_tiling

    @functools.wraps(original)
    def select_tiling(self: Any, fn_list: Any, var_sizes_list: Any) -> Any:
        factors, indices, stats = original(self, fn_list, var_sizes_list)
        if _active.get() and len(indices) == 1 and _all_wide(fn_list):
            factors = [_factor(factors[0], indices[0], var_sizes_list)]
        return factors, indices, stats

    tiling.select_tiling = select_tiling


def _all_wide(fn_list: Any) -> bool:
    found = set(_get_dtype_from_loopbodies(_get_loop_body(fn_list)))
    return torch.float32 in found and found <= _DTYPES


def _factor(factor: int, index: int, var_sizes_list: Any) -> int:
    """How many columns to take at once where Inductor takes ``factor``."""
    kept, reduced = max(var_sizes_list, key=lambda sizes: len(sizes[1]))
    at = index if index >= 0 else index + len(kept) + len(reduced)
    if not reduced or at >= len(kept):
        return factor
    wide = factor * VECTORS_ABREAST
    sizes = [V.graph.sizevars.optimization_hint(size, fallback=0) for size in kept]
    rows = V.graph.sizevars.optimization_hint(reduced[0], fallback=0)
    # All threads are to have some.
    enough = math.prod(sizes) >= wide * parallel_num_threads()
    steps = math.prod(sizes[:at]) * (sizes[at] // wide) * math.prod(sizes[at + 1 :])
    return wide if enough and sizes[at] >= wide and by_columns(steps, rows) else factor
