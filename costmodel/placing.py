"""Finding the place of a lookup in C++ loops: in each turn, or once a row of the innermost loop.

An interpolation looks neighbours up at places that it computes from its loops' positions, others at
indices that they load. Where values lie along the innermost loop and places are told by the outer
ones, a C++ compiler finds the places once a row, and vectors hold values alone. Told from a node's
counts and accesses: which of its operations are on places its problem does not say.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fusewise.costmodel.cpu_loops import NodeLoops
from fusewise.costmodel.cpu_tables import CLASSES
from fusewise.costmodel.geometry import looked_up_steps
from fusewise.costmodel.lookups import computes_places, loaded_indices
from fusewise.costmodel.written_once import Counts
from fusewise.schedule.problem import Node, Problem

#: Operations on places alone, those on computed ones but for a ``relu``; and those on places and on
#: values: these weigh what was looked up.
_ON_INDICES: Final = frozenset(
    " ".join(CLASSES[kind] for kind in ("remainder", "index", "lookup", "bounds")).split()
)
_ON_PLACES: Final = frozenset(
    " ".join(CLASSES[kind] for kind in ("extremum", "rounding")).split()
) - {"relu"}
_WEIGHING: Final = frozenset({"add", "sub", "mul"})
_LOW_BYTES: Final = 2


class Placed(NamedTuple):
    """The operations of a body, by how often they are done."""

    each_turn: Counts
    once_a_row: Counts


def placed(operations: Counts, node: Node, loops: NodeLoops, problem: Problem) -> Placed:
    """``operations`` of ``node``, those apart that find places which stay along the innermost loop.

    Values are weighed and added up once less than there are of them. What is on places is known of
    indices that are loaded less than of computed ones: remainders, and whether they are in bounds.
    """
    if not loops.loops or not any(access.looked_up for access in node.reads):
        return Placed(operations, ())
    computed = computes_places(node)
    left = _left(node, loops, problem) if computed else float(loops.sought[-1])
    values = float(len(node.reads) - 1)
    converted = sum(access.itemsize == _LOW_BYTES for access in (*node.reads, *node.writes))
    each: list[tuple[str, float]] = []
    once: list[tuple[str, float]] = []
    for name, count in operations:
        on_values = count
        if name in _ON_INDICES or (computed and name in _ON_PLACES):
            on_values = 0.0
        elif computed and name in _WEIGHING:
            on_values = min(count, values)
        elif computed and name == "to_dtype":
            on_values = min(count, float(converted))
        resting = (count - on_values) * (1.0 - left)
        each.append((name, count - resting))
        if resting:
            once.append((name, resting))
    return Placed(tuple(each), tuple(once))


def _left(node: Node, loops: NodeLoops, problem: Problem) -> float:
    """Part of the work on places that is done in each turn of the innermost loop.

    Where what is looked up does not lie along that loop one of its places goes along it.
    """
    found = [access for access in node.reads if access.looked_up]
    along = [loops.steps.get((a.buffer, a.index), ()) for a in found]
    loaded = [loops.steps.get((a.buffer, a.index), ()) for a in loaded_indices(node, problem)]
    if all(each and each[-1] for each in along) and not any(each and each[-1] for each in loaded):
        return 0.0
    return 1.0 / max(1, *(len(looked_up_steps(access.index)) for access in found))
