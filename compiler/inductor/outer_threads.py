"""Reductions of few columns whose rows threads share, as they share those of many.

Inductor's C++ has threads share what is reduced, in each turn of the loops around it, where these
turn far less often. It counts a loop of columns in whole vectors, so that one shorter than a vector
turns not at all, and however many rows there are threads are sent off for each of them: a thousand
of 16 by 4 elements take a millisecond. Here a vector that is not full counts as one. Each result is
then summed up by one thread, in the order of its elements. Nothing here decides where that is worth
it.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import sympy
from torch._inductor.codegen import cpp

from fusewise.compiler.inductor.replacing import once, switched
from fusewise.search.lanes import by_columns

_active: ContextVar[bool] = ContextVar("fusewise_outer_threads", default=False)


def outer_threads(wanted: bool) -> AbstractContextManager[None]:
    """Have threads share the loops around a reduction in this context, if that is wanted."""
    return switched(_active, wanted, _install)


@once
def _install() -> None:
    nest: Any = cpp.LoopNest
    original = nest.max_parallel_depth

    @functools.wraps(original)
    def max_parallel_depth(self: Any) -> Any:
        depth = original(self)
        if _active.get() and depth.start_depth and _turns_enough(self.loops, depth.start_depth):
            return cpp.ParallelDepth(parallel_depth=depth.start_depth, start_depth=0)
        return depth

    nest.max_parallel_depth = max_parallel_depth


def _turns_enough(loops: Any, outer: int) -> bool:
    """Whether the ``outer`` loops turn often enough, the last vector of each counted in full."""
    sizes = [loop.size for loop in loops[: outer + 1]]
    if not all(isinstance(size, sympy.Integer) for size in sizes):
        return False
    turns = [-(-int(size) // int(loop.steps)) for size, loop in zip(sizes, loops, strict=False)]
    return by_columns(math.prod(turns[:outer]), int(sizes[outer]) // int(loops[outer].steps))
