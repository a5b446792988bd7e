"""What C++ kernels do lane by lane, or line by line, and could do for several vectors at once.

Told from the problem, with how long single flags and random numbers were seen to take. Says nothing
of other operations, nor whether a kernel is vectorised at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusewise.schedule.problem import Problem

_FLAG: Final = "torch.bool"
#: Dtypes of kernels that vectors side by side are for, and columns of a thread that there have to
#: be: four vectors of 64 bytes.
_WIDE: Final = frozenset({_FLAG, "torch.float32"})
_COLUMNS: Final = 64
#: Rows for each step through columns up to which threads share the steps, of
#: ``torch._inductor.codegen.cpp.LoopNest.max_parallel_depth``.
_ROWS: Final = 300
#: Nanoseconds of a thread that are saved on each flag that is read or written with its vector, and
#: on each random number by its operation, on an AMD EPYC.
_READ, _WRITTEN = 0.3, 3.5
_DRAWN: Final = {"rand": 6.0, "randn": 24.0}


def saved_ns(problem: Problem, names: Sequence[str]) -> float:
    """Nanoseconds of all threads together that whole vectors save a kernel of these nodes.

    What the nodes pass to each other is neither read nor written.
    """
    nodes = [problem.node_by_name[name] for name in names]
    made = {access.buffer for node in nodes for access in node.writes}
    saved: dict[tuple[str, str], float] = {}
    drawn_ns = 0.0
    for node in nodes:
        elements = node.numel * node.rnumel
        drawn_ns += elements * sum(_DRAWN.get(op, 0.0) * count for op, count in node.ops)
        for access in (*node.reads, *node.writes):
            buffer = problem.buffer_by_name.get(access.buffer)
            if buffer is None or buffer.dtype != _FLAG or access.kind != "contiguous":
                continue
            inside = access.buffer in made
            if inside and not buffer.is_output and set(buffer.users) <= set(names):
                continue
            each = _WRITTEN if inside else _READ
            # What several nodes read is read once.
            saved[access.buffer, access.index] = each * elements
    return sum(saved.values()) + drawn_ns


def sums_columns(problem: Problem, names: Sequence[str], threads: int) -> bool:
    """Whether a kernel of these nodes reduces columns of fp32, enough for vectors side by side."""
    nodes = [problem.node_by_name[name] for name in names]
    buffers = (problem.buffer_by_name.get(a.buffer) for n in nodes for a in (*n.reads, *n.writes))
    if not {buffer.dtype for buffer in buffers if buffer is not None} <= _WIDE:
        return False
    return any(
        node.kind == "reduction"
        and node.numel >= _COLUMNS * threads
        and by_columns(node.numel // _COLUMNS, node.rnumel)
        and any(a.stride >= _COLUMNS and a.touched == node.numel * node.rnumel for a in node.reads)
        for node in nodes
    )


def by_columns(steps: int, rows: int) -> bool:
    """Whether Inductor's threads share the steps through columns, rather than the rows of each."""
    return steps * _ROWS >= rows
