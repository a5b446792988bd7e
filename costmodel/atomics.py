"""Atomic stores as they run: one update for each turn of their node's loops.

The dependency that the compiler tells has only the loops that are in the index, where those that
choose the looked-up place update as well. Knows nothing of other accesses.
"""

from __future__ import annotations

import msgspec

from fusewise.schedule.problem import Access, Node, Problem


def updates_counted(node: Node, problem: Problem) -> Node:
    """``node`` with each atomic store touching an element a turn, and no more than the buffer."""
    turns = node.numel * node.rnumel

    def counted(access: Access) -> Access:
        if access.kind != "atomic" or access.touched >= turns:
            return access
        size = turns * access.itemsize
        buffer = problem.buffer_by_name.get(access.buffer)
        if buffer is not None and buffer.bytes > 0:
            size = min(size, buffer.bytes)
        return msgspec.structs.replace(access, touched=turns, bytes=max(size, access.bytes))

    writes = tuple(counted(access) for access in node.writes)
    return node if writes == node.writes else msgspec.structs.replace(node, writes=writes)
