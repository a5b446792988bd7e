"""What nodes of one C++ kernel have in common: values that it computes once for all of them.

The compiler inlines a cheap producer into each node that reads it, and each is told with what was
inlined. In a kernel of several, equal expressions of the same loops are one.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusewise.costmodel.cpu_bodies import Body
from fusewise.costmodel.cpu_costs import body_cost
from fusewise.costmodel.cpu_loops import NodeLoops
from fusewise.costmodel.cpu_tables import FREE, Cost
from fusewise.costmodel.written_once import in_common, read_alike
from fusewise.schedule.problem import Node


class ComputedOnce:
    """What pairs of one problem's nodes share, each pair found once."""

    def __init__(
        self, nodes: Sequence[Node], loops: Sequence[NodeLoops], bodies: Sequence[Body], table: str
    ) -> None:
        """``loops`` and ``bodies`` are those of ``nodes``; ``table`` is the name of theirs."""
        self._nodes = nodes
        self._loops = loops
        self._bodies = bodies
        self._table = table
        self._reads = [{(a.buffer, a.index) for a in node.reads} for node in nodes]
        self._found: dict[tuple[int, int], Cost] = {}

    def before(self, i: int, others: Sequence[int]) -> Cost:
        """What of the body of node ``i`` the one of ``others`` has computed that has most of it."""
        found = FREE
        for j in others:
            if (i, j) not in self._found:
                self._found[i, j] = self._of_both(i, j)
            found = max(found, self._found[i, j], key=lambda cost: cost.vector)
        return found

    def _of_both(self, i: int, j: int) -> Cost:
        """What two nodes compute of the same values."""
        if self._loops[i].loops != self._loops[j].loops:
            return FREE
        if self._same_reduction(i, j):
            return self._bodies[i].cost
        if not read_alike(self._reads[i], self._reads[j]):
            return FREE
        common = in_common(self._bodies[i].operations, self._bodies[j].operations)
        return body_cost(common, None, table=self._table)

    def _same_reduction(self, i: int, j: int) -> bool:
        """Whether two nodes are results of one Welford reduction: a mean and what varies."""
        one, other = self._nodes[i], self._nodes[j]
        return (
            self._bodies[i].chained
            and one.reduction_type == other.reduction_type
            and one.ops == other.ops
            and self._reads[i] == self._reads[j]
        )
