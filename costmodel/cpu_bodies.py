"""What the body of a node costs in C++ loops: what of it is done in each turn, what once a row.

Told from what a node reads and how that moves along its loops. Loads and stores are
``cpu_accesses``'; what an operation costs stands in a table of ``cpu_tables``.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from fusewise.costmodel.cpu_costs import body_cost, rootless
from fusewise.costmodel.cpu_loops import Nest, NodeLoops
from fusewise.costmodel.cpu_tables import CLASSES, Cost
from fusewise.costmodel.written_once import operations_of, taken, taken_part
from fusewise.schedule.problem import Node, Problem

_INTEGERS: Final = frozenset(
    ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"]
)
_EIGHT_BYTES: Final = frozenset({"torch.int64", "torch.float64"})
_COMPARISONS: Final = frozenset(f"{CLASSES['order']} {CLASSES['equality']}".split())
#: Operations that take longer on elements of eight bytes.
_ON_EIGHT_BYTES: Final = frozenset(
    " ".join(
        CLASSES[kind] for kind in ("arithmetic", "extremum", "order", "equality", "where")
    ).split()
)
#: Elements beyond which a sum of fp32 goes by ``CascadeSumHelper``.
_LONG_SUM: Final = 4096


class Body(NamedTuple):
    """What the body of a node costs in a turn of its loops, its loads and stores left out."""

    cost: Cost
    #: The same in tiles that are transposed.
    in_tiles: Cost
    #: Whether it is done once a row, whatever its length.
    rests: bool
    #: Part of the node's masked loads that it comes to at a place.
    taken: float

    def of(self, nest: Nest) -> Cost:
        """What it costs in ``nest``."""
        return self.in_tiles if len(nest.tiled) > 1 else self.cost


def body_of(node: Node, loops: NodeLoops, problem: Problem, table: str) -> Body:
    """What the body of ``node`` costs.

    Args:
        node: of ``problem``.
        loops: its own.
        problem: tells what its results are.
        table: the name of the one that counts.
    """
    operations, part = operations_of(node), taken_part(node)
    if not any(access.looked_up for access in (*node.reads, *node.writes)):
        # Places in what has a single one there are not looked up.
        operations = tuple(each for each in operations if each[0] != "indirect_indexing")
    operations += _unwritten(node, problem)
    if part < 1.0:
        operations = taken(operations, dict(node.ops)["masked"], part)
    step = _step_of(node, problem)
    along, across = (
        body_cost(rootless(operations, spared), step, table=table, still=loops.still)
        for spared in _resting(node, loops)
    )
    return Body(along, across, _rests(node, loops), part)


def _unwritten(node: Node, problem: Problem) -> tuple[tuple[str, float], ...]:
    """Operations that a body does not name: indices computed from what was looked up, which are
    worked out element by element, positions that are compared, what is done with elements of eight
    bytes, and numbers that are chosen by comparing values, as those of a maximum's place are.
    """
    counts = dict(node.ops)
    positions = counts.get("index_expr", 0)
    found = []
    buffers = [problem.buffer_by_name.get(read.buffer) for read in node.reads]
    dtypes = [buffer.dtype for buffer in buffers if buffer is not None]
    looks_up = any(access.looked_up for access in (*node.reads, *node.writes))
    if "indirect_indexing" in counts and not looks_up:
        numbers = sum(dtype in _INTEGERS for dtype in dtypes)
        found.append(("placed", float(min(positions, numbers))))
    compared = sum(count for name, count in node.ops if name in _COMPARISONS)
    if positions and compared:
        found.append(("position", float(min(positions, compared))))
    wide = sum(dtype in _EIGHT_BYTES for dtype in dtypes)
    made = _makes_numbers(node, problem) and not any(dtype in _INTEGERS for dtype in dtypes)
    if wide or (made and not dtypes):
        done = sum(count for name, count in node.ops if name in _ON_EIGHT_BYTES)
        found.append(("eight_bytes", done * wide / len(dtypes) if dtypes else float(done)))
    if made and dtypes:
        # Of what is chosen half are the values that the numbers are told by.
        found.append(("numbered", counts.get("where", 0) / 2.0))
    return tuple(found)


def _makes_numbers(node: Node, problem: Problem) -> bool:
    """Whether a node stores integers."""
    stored = (problem.buffer_by_name.get(write.buffer) for write in node.writes)
    return any(buffer is not None and buffer.dtype in _INTEGERS for buffer in stored)


def _step_of(node: Node, problem: Problem) -> str | None:
    """What a node does in a step of its reduction, by which that is known; None if it is none."""
    if node.kind != "reduction":
        return None
    if node.reduction_type == "sum" and node.rnumel > _LONG_SUM:
        buffers = (problem.buffer_by_name.get(write.buffer) for write in node.writes)
        if any(buffer is not None and buffer.dtype == "torch.float32" for buffer in buffers):
            return "cascade"
    return node.reduction_type


def _resting(node: Node, loops: NodeLoops) -> tuple[float, float]:
    """How many of a node's roots are found once a row, and once a tile that is transposed.

    Those of what stays as it is along the innermost loop, or along the loops around it: which of
    its values a node takes the root of is not known, so where anything stays it is that. What
    never moves is one value, of which one root is taken.
    """
    steps = [loops.steps.get((a.buffer, a.index), ()) for a in node.reads if a.kind != "gather"]
    alone = sum(bool(each) and not any(each) for each in steps)
    moving = [each for each in steps if any(each)]
    along = math.inf if any(not each[-1] for each in moving) else float(alone)
    across = math.inf if any(not all(each[:-1]) for each in moving) else along
    return along, max(along, across)


def _rests(node: Node, loops: NodeLoops) -> bool:
    """Whether a node does all but store once a row: nothing that it reads moves along one.

    What is looked up by an index that is found once a row may move, then it is all that is done
    with it.
    """
    if node.kind != "pointwise" or not node.reads or not loops.loops:
        return False
    for access in node.reads:
        steps = loops.steps.get((access.buffer, access.index), ())
        if access.kind == "gather":
            if loops.sought[-1]:
                return False
        elif not steps or steps[-1]:
            return False
    positions = any(name == "index_expr" for name, _ in node.ops)
    return not positions or any(access.kind == "gather" for access in node.reads)
