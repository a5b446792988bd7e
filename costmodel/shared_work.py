"""Operations that nodes of one Triton kernel have in common, which it does once for all of them.

The compiler inlines a cheap producer into each node that reads it, and each is told with what was
inlined. In a kernel of several, equal expressions of the same loops are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.operations import CLASSES, operation_class, operation_weight
from fusewise.costmodel.written_once import Counts, in_common, operations_of, read_alike
from fusewise.schedule.problem import Node

#: Classes of what equal names say nothing of: positions, random numbers and reductions.
_APART: Final = frozenset({"indexing", "random", "reducing"})
#: Part of a node's work that another has to do as well to be taken for what both inline.
_INLINED: Final = 0.8


class SharedWork:
    """What pairs of one problem's nodes share, each pair found once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Nodes are numbered as they are given."""
        self._iterations = [node.numel * node.rnumel for node in nodes]
        self._reads = [{(a.buffer, a.index) for a in node.reads} for node in nodes]
        self._operations = [_told_by_name(node) for node in nodes]
        self._found: dict[tuple[int, int], FloatArray | None] = {}

    def repeated(self, ids: Sequence[int]) -> FloatArray:
        """Work of nodes ``ids`` by class, as in ``CLASSES``, that one before has done; [C].

        Of several before it a node has the most in common with one.
        """
        total = np.zeros(len(CLASSES))
        for position, i in enumerate(ids):
            shared = [found for j in ids[:position] if (found := self._of_both(i, j)) is not None]
            if shared:
                total += max(shared, key=np.sum)
        return total

    def _of_both(self, i: int, j: int) -> FloatArray | None:
        """What nodes compute of the same values: nearly all of ``j``, where one reads as much."""
        if (i, j) not in self._found:
            self._found[i, j] = self._compare(i, j)
        return self._found[i, j]

    def _compare(self, i: int, j: int) -> FloatArray | None:
        if self._iterations[i] != self._iterations[j]:
            return None
        if not read_alike(self._reads[i], self._reads[j]):
            return None
        common = self._work(j, in_common(self._operations[i], self._operations[j]))
        whole = self._work(j, self._operations[j]).sum()
        return common if whole and common.sum() >= _INLINED * whole else None

    def _work(self, i: int, operations: Counts) -> FloatArray:
        """By class, over all iterations of node ``i``; [C]."""
        total = np.zeros(len(CLASSES))
        for name, count in operations:
            total[operation_class(name)] += count * operation_weight(name) * self._iterations[i]
        return total


def _told_by_name(node: Node) -> Counts:
    """The operations of a node of which equal names may tell equal values."""
    classes = ((name, operation_class(name), count) for name, count in operations_of(node))
    return tuple(
        (name, count)
        for name, which, count in classes
        if which >= 0 and CLASSES[which] not in _APART
    )
