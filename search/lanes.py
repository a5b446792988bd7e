"""What C++ kernels do lane by lane and could do for whole vectors: how much that would save.

An estimate from the problem, of how long single flags and random numbers were seen to take. Says
nothing of other operations, nor whether a kernel is vectorised at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusewise.schedule.problem import Problem

_FLAG: Final = "torch.bool"
#: Nanoseconds of a thread that are saved on each flag that is read or written with its vector, and
#: on each random number, on an AMD EPYC.
_READ, _WRITTEN, _DRAWN = 0.3, 3.5, 6.0


def saved_ns(problem: Problem, names: Sequence[str]) -> float:
    """Nanoseconds of all threads together that whole vectors save a kernel of these nodes.

    What the nodes pass to each other is neither read nor written.
    """
    nodes = [problem.node_by_name[name] for name in names]
    made = {access.buffer for node in nodes for access in node.writes}
    flags = {b.name: b for b in problem.buffers if b.dtype == _FLAG}
    saved: dict[tuple[str, str], float] = {}
    drawn = 0.0
    for node in nodes:
        elements = node.numel * node.rnumel
        drawn += elements * sum(count for op, count in node.ops if op == "rand")
        for access in (*node.reads, *node.writes):
            buffer = flags.get(access.buffer)
            if buffer is None or access.kind != "contiguous":
                continue
            inside = access.buffer in made
            if inside and not buffer.is_output and set(buffer.users) <= set(names):
                continue
            each = _WRITTEN if inside else _READ
            # What several nodes read is read once.
            saved[access.buffer, access.index] = each * elements
    return sum(saved.values()) + _DRAWN * drawn
