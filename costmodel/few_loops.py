"""What nodes make of positions, or of values that stay as they are along some of their loops.

Two nodes of a kernel that read other tensors may still compute the same: the angles of a rotation,
the weights of a resizing. Such operations go along few of the loops, and are made of nothing but
loads that go along no others. Nothing here knows what an operation costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fusewise.costmodel.operations import CLASSES, operation_class
from fusewise.costmodel.written_once import Counts
from fusewise.schedule.problem import Node

#: Classes of what equal names say nothing of: positions, random numbers and reductions.
_APART: Final = frozenset({"indexing", "random", "reducing"})


class Narrow(NamedTuple):
    """Operations that go along the same few of a node's loops, and what they can be made of."""

    counts: Counts
    #: Loads that go along no other loops, as buffer and index.
    loads: frozenset[tuple[str, str]]


def tells_value(name: str) -> bool:
    """Whether operations of that name may compute the same where they are made of the same."""
    which = operation_class(name)
    return which >= 0 and CLASSES[which] not in _APART


def along_few_loops(node: Node) -> Mapping[int, Narrow]:
    """By the loops that they go along, operations of a node that do not go along all of them.

    Loops are bits as in :attr:`Access.along`. Empty where the node does not say what it computes,
    or which loops some load goes along.
    """
    every = (1 << sum(extent > 1 for extent in (*node.ranges[0], *node.ranges[1]))) - 1
    if not node.computed or any(access.along < 0 for access in node.reads if access.index != "*"):
        return {}
    counts: dict[int, dict[str, float]] = {}
    for each in node.computed:
        if tells_value(each.name) and each.along & every != every:
            of_these = counts.setdefault(each.along, {})
            of_these[each.name] = of_these.get(each.name, 0.0) + each.count
    return {
        along: Narrow(
            tuple(named.items()),
            frozenset((a.buffer, a.index) for a in node.reads if not a.along & ~along),
        )
        for along, named in counts.items()
    }


def made_alike(
    one: Mapping[int, Narrow], other: Mapping[int, Narrow]
) -> Iterator[tuple[int, Counts, Counts]]:
    """Loops, and what each of two nodes of equal loops computes along them of the same loads."""
    for along, narrow in one.items():
        beside = other.get(along)
        if beside is not None and beside.loads == narrow.loads:
            yield along, narrow.counts, beside.counts
