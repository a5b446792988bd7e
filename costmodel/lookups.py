"""Where a node's lookups lead: anywhere, as loaded indices do, or on as its loops do.

Judges by the accesses and operations of one node alone; indices themselves are not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fusewise.schedule.problem import Access, Node, Problem

#: Dtypes of indices.
_INTEGER: Final = re.compile(r"int(16|32|64)$")


def loaded_indices(node: Node, problem: Problem) -> list[Access]:
    """Reads of a node that may be of indices: of integers, themselves not looked up."""
    found = []
    for access in node.reads:
        buffer = problem.buffer_by_name.get(access.buffer)
        if access.kind != "gather" and buffer is not None and _INTEGER.search(buffer.dtype):
            found.append(access)
    return found


def sought_along(
    node: Node,
    problem: Problem,
    steps: Mapping[tuple[str, str], tuple[int, ...]],
    loops: int,
) -> tuple[bool, ...]:
    """Along which of its loops a node may look up another place, as far as is known: else all.

    Args:
        node: of ``problem``.
        problem: its buffers tell what indices are.
        steps: of its accesses (buffer and index), elements from one turn of each loop to the next.
        loops: how many of them turn more than once.
    """
    unknown = (True,) * loops
    if any(name == "index_expr" for name, _ in node.ops):
        return unknown
    indices = [steps.get((a.buffer, a.index)) for a in loaded_indices(node, problem)]
    if not indices or None in indices:
        return unknown
    return tuple(any(each and each[i] for each in indices) for i in range(loops))


def follows_loops(node: Node, problem: Problem) -> bool:
    """Whether a node looks up where its loops say, one place after the other.

    It computes where, as interpolation does, or has a table with one place for each turn of a loop.
    Whoever loads an index of another kind may be sent anywhere.
    """
    if not any(a.looked_up for a in (*node.reads, *node.writes)):
        return False
    loops = (*node.ranges[0], *node.ranges[1])
    found = any(name == "index_expr" for name, _ in node.ops)
    for access in loaded_indices(node, problem):
        entries = access.bytes // max(access.itemsize, 1)
        if entries not in loops or entries == access.touched:
            return False
        found = True
    return found
