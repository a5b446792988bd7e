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
from fusewise.costmodel.written_once import operations_of
from fusewise.schedule.problem import Node

#: Classes of what equal names say nothing of: positions, random numbers and reductions.
_APART: Final = frozenset({"indexing", "random", "reducing"})
#: Part of a node's work that another has to do as well to be taken for what both inline.
_INLINED: Final = 0.8


class SharedWork:
    """What pairs of one problem's nodes share, each pair found once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Nodes are numbered as they are given."""
        self._nodes = nodes
        self._reads = [{(a.buffer, a.index) for a in node.reads} for node in nodes]
        self._work = [_work(node) for node in nodes]
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
        """What nodes compute of the same values: nearly all of ``j``, where one reads as much.

        Which values an operation is on is not known.
        """
        if (i, j) not in self._found:
            self._found[i, j] = self._compare(i, j)
        return self._found[i, j]

    def _compare(self, i: int, j: int) -> FloatArray | None:
        one, other = self._nodes[i], self._nodes[j]
        if one.numel * one.rnumel != other.numel * other.rnumel:
            return None
        mine, others = self._reads[i], self._reads[j]
        if not others or not (others <= mine or mine <= others):
            return None
        common = np.zeros(len(CLASSES))
        done = self._work[j]
        for name, (which, work) in self._work[i].items():
            if name in done:
                common[which] += min(work, done[name][1])
        whole = sum(work for _, work in done.values())
        return common if whole and common.sum() >= _INLINED * whole else None


def _work(node: Node) -> dict[str, tuple[int, float]]:
    """Class of each operation of a node, and the work that it is over all iterations."""
    iterations = float(node.numel * node.rnumel)
    found = {}
    for name, count in operations_of(node):
        which = operation_class(name)
        if which >= 0 and CLASSES[which] not in _APART:
            found[name] = which, count * operation_weight(name) * iterations
    return found
