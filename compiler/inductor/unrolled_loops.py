"""Loops over rows that take several turns at once, so that what these load is on its way together.

A block that does not hold its rows goes through them in a loop. NVIDIA's compiler unrolls such a
loop where all of it stays short, and seldom where each turn has to look where the rows end;
elsewhere each turn waits for its own loads before the next ones are even asked for, which is most
of the time of a kernel that has few blocks. Here Triton is told to put four turns in one. They are
taken in the same order; results agree to the last digits. Nothing here decides where that is worth
it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

from fusewise.compiler.inductor.replacing import once, switched

#: Turns in one.
TURNS_AT_ONCE: Final = 4
#: The head of a loop over a reduction, as ``TritonKernel.codegen_body`` writes it; those with
#: further arguments are pipelined or shared out otherwise.
_HEAD: Final = re.compile(r"(\s*for r\d_offset in tl\.range\([^()]*, R\d_BLOCK)(\):)")
_active: ContextVar[bool] = ContextVar("fusewise_unrolled_loops", default=False)


def unrolled_loops(wanted: bool) -> AbstractContextManager[None]:
    """Have loops over rows take several turns at once in this context, if that is wanted."""
    return switched(_active, wanted, _install)


def unrolled(lines: Sequence[Any]) -> list[Any]:
    """Lines of a kernel's body, those that head an innermost loop with the turns it takes at once.

    ``lines``: as Inductor's ``IndentedBuffer`` keeps them; those that are not text stay.
    """
    found = []
    for at, line in enumerate(lines):
        head = _HEAD.fullmatch(line) if isinstance(line, str) else None
        if head is None or _has_loop(line, lines[at + 1 :]):
            found.append(line)
        else:
            found.append(f"{head[1]}, loop_unroll_factor={TURNS_AT_ONCE}{head[2]}")
    return found


def _has_loop(head: str, following: Sequence[Any]) -> bool:
    """Whether another loop begins within that of ``head``."""
    for line in following:
        if not isinstance(line, str) or not line.strip():
            continue
        if _depth(line) <= _depth(head):
            return False
        if line.lstrip().startswith("for "):
            return True
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


@once
def _install() -> None:
    from torch._inductor.codegen.triton import TritonKernel

    kernel: Any = TritonKernel
    original = kernel.codegen_body

    @functools.wraps(original)
    def codegen_body(self: Any) -> Any:
        result = original(self)
        if _active.get():
            # A kernel of several loops comes here for each; what is unrolled already has no such
            # head any more.
            self.body._lines = unrolled(self.body._lines)
        return result

    kernel.codegen_body = codegen_body
