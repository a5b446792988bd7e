"""Operations that nodes of one Triton kernel have in common, which it does once for all of them.

The compiler inlines a cheap producer into each node that reads it, and each is told with what was
inlined. In a kernel of several, equal expressions of the same loops are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from fusewise.costmodel.few_loops import along_few_loops, made_alike, tells_value
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.operations import (
    CLASSES,
    operation_class,
    operation_weight,
    shared_by_angles,
)
from fusewise.costmodel.written_once import Counts, in_common, operations_of, read_alike
from fusewise.schedule.problem import Node

_TRANSCENDENTAL: Final = CLASSES.index("transcendental")
#: Part of a node's work that another has to do as well to be taken for what both inline.
_INLINED: Final = 0.8


class SharedWork:
    """What pairs of one problem's nodes share, each pair found once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Nodes are numbered as they are given."""
        self._iterations = [node.numel * node.rnumel for node in nodes]
        self._reads = [{(a.buffer, a.index) for a in node.reads} for node in nodes]
        self._operations = [_told_by_name(node) for node in nodes]
        self._ranges = [node.ranges for node in nodes]
        self._narrow = [along_few_loops(node) for node in nodes]
        self._found: dict[tuple[int, int], tuple[float, FloatArray]] = {}
        # Of each node the bitset of those that it was compared with, and of those in ``_found``.
        self._compared = [0] * len(nodes)
        self._sharing = [0] * len(nodes)

    def repeated(self, ids: Sequence[int]) -> FloatArray | None:
        """Work of nodes ``ids`` by class, as in ``CLASSES``, that one before has done; [C].

        Of several before it a node has the most in common with one. None where none has any.
        """
        total = None
        before = 0
        for position, i in enumerate(ids):
            if before & ~self._compared[i]:
                self._compare_all(i, ids[:position])
            sharing = before & self._sharing[i]
            if sharing:
                shared = [self._found[i, j] for j in ids[:position] if sharing >> j & 1]
                _, most = max(shared, key=itemgetter(0))
                total = most if total is None else total + most
            before |= 1 << i
        return total

    def _compare_all(self, i: int, others: Sequence[int]) -> None:
        for j in others:
            if not self._compared[i] >> j & 1:
                self._compared[i] |= 1 << j
                found = self._compare(i, j)
                if found is not None:
                    self._found[i, j] = float(found.sum()), found
                    self._sharing[i] |= 1 << j

    def _compare(self, i: int, j: int) -> FloatArray | None:
        """What nodes compute of the same values; None where nothing is known to be."""
        if self._iterations[i] != self._iterations[j]:
            return None
        found = [each for each in (self._whole(i, j), self._of_few_loops(i, j)) if each is not None]
        return max(found, key=np.sum, default=None)

    def _whole(self, i: int, j: int) -> FloatArray | None:
        """Nearly all that ``j`` computes, where one reads all that the other does."""
        if not read_alike(self._reads[i], self._reads[j]):
            return None
        common = self._work(j, in_common(self._operations[i], self._operations[j]))
        whole = self._work(j, self._operations[j]).sum()
        return common if whole and common.sum() >= _INLINED * whole else None

    def _of_few_loops(self, i: int, j: int) -> FloatArray | None:
        """What both make of positions, or of values that are the same along the other loops."""
        if self._ranges[i] != self._ranges[j]:
            return None
        found = np.zeros(len(CLASSES))
        for _, one, other in made_alike(self._narrow[i], self._narrow[j]):
            found += self._work(j, in_common(one, other))
            found[_TRANSCENDENTAL] += self._iterations[j] * _angles_of_both(one, other)
        return found if found.any() else None

    def _work(self, i: int, operations: Counts) -> FloatArray:
        """By class, over all iterations of node ``i``; [C]."""
        total = np.zeros(len(CLASSES))
        for name, count in operations:
            total[operation_class(name)] += count * operation_weight(name) * self._iterations[i]
        return total


def _told_by_name(node: Node) -> Counts:
    """The operations of a node of which equal names may tell equal values."""
    return tuple((name, count) for name, count in operations_of(node) if tells_value(name))


def _angles_of_both(one: Counts, other: Counts) -> float:
    """What sines of one node and cosines of another have in common, as in ``shared_by_angles``."""
    before, after = dict(one), dict(other)
    pairs = [
        {"sin": before.get(a, 0.0), "cos": after.get(b, 0.0)}
        for a, b in (("sin", "cos"), ("cos", "sin"))
        if a not in after and b not in before
    ]
    return sum(shared_by_angles(pair) for pair in pairs)
