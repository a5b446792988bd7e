"""Reductions in shorter pieces, which Inductor may turn to, compiled by its pool ahead of that.

Where a loaded reduction needs so many registers that too few of its blocks run side by side,
Inductor compiles it again with pieces of half the length, in the process that loads it and one
kernel after the other: a third of a second each, for whoever is first to run the program. How many
registers there are is known where there is a device only, so the pool compiles all that may be
wanted; who loads a kernel then finds it on disk. Loads no compiled kernel.
"""

from __future__ import annotations

import functools
import time
from concurrent.futures import Future
from typing import Any, Final

from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.block_sizes import cache_places, compile_shorter

#: What stands in the source of a reduction that goes through its rows in pieces.
_LOOPED: Final = "@triton_heuristics.reduction("
#: Seconds after which no process begins with one.
_COMPILING_S: Final = 6.0
#: Kernels that are remembered to have been asked for.
_REMEMBERED: Final = 256


def ask_for_shorter(name: str, code: str) -> Future[int] | None:
    """Have the pool, which has started, compile a kernel with shorter pieces.

    Args:
        name: of the kernel.
        code: its source.

    Returns:
        How many were compiled, once they are; None where Inductor wants none of this kernel.
    """
    if _LOOPED not in code:
        return None
    _, path = PyCodeCache.write(code)
    return _submitted(path, name)


@functools.lru_cache(_REMEMBERED)
def _submitted(path: str, name: str) -> Future[int]:
    pool: Any = AsyncCompile.process_pool()
    until = time.time() + _COMPILING_S
    submitted: Future[int] = pool.submit(compile_shorter, path, name, cache_places(), until)
    return submitted
