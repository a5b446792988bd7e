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
from fusewise.costmodel.few_loops import along_few_loops, made_alike
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
        self._narrow = [along_few_loops(node) for node in nodes]
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
        common: dict[str, float] = {}
        if read_alike(self._reads[i], self._reads[j]):
            common.update(in_common(self._bodies[i].operations, self._bodies[j].operations))
        # What does not go along the innermost loop is done once a row of it anyway.
        innermost = 1 << max(len(self._loops[i].loops) - 1, 0)
        for along, one, other in made_alike(self._narrow[i], self._narrow[j]):
            if along & innermost:
                for name, count in in_common(one, other):
                    common[name] = max(common.get(name, 0.0), count)
        return body_cost(tuple(common.items()), None, table=self._table) if common else FREE

    def _same_reduction(self, i: int, j: int) -> bool:
        """Whether two nodes are results of one Welford reduction: a mean and what varies."""
        one, other = self._nodes[i], self._nodes[j]
        return (
            self._bodies[i].chained
            and one.reduction_type == other.reduction_type
            and one.ops == other.ops
            and self._reads[i] == self._reads[j]
        )
