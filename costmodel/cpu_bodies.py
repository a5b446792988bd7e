"""What the body of a node costs in C++ loops: what of it is done in each turn, what once a row.

Told from what a node reads and how that moves along its loops. Loads and stores are
``cpu_accesses``'; what an operation costs stands in a table of ``cpu_tables``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

from fusewise.costmodel.cpu_costs import body_cost, rootless
from fusewise.costmodel.cpu_hoisting import parted
from fusewise.costmodel.cpu_loops import COMPARISONS, Nest, NodeLoops
from fusewise.costmodel.cpu_tables import CLASSES, Cost
from fusewise.costmodel.placing import placed
from fusewise.costmodel.windings import windings_of
from fusewise.costmodel.written_once import Counts, operations_of, taken, taken_part
from fusewise.schedule.problem import Access, Node, Problem

_INTEGERS: Final = frozenset(
    ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"]
)
_FLOAT_BYTES: Final = 4
_HALF_BYTES: Final = 2
_EIGHT_BYTES: Final = frozenset({"torch.int64", "torch.float64"})
#: Operations that take longer on elements of eight bytes.
_ON_EIGHT_BYTES: Final = frozenset(
    " ".join(
        CLASSES[kind] for kind in ("arithmetic", "extremum", "order", "equality", "where")
    ).split()
)
#: Elements beyond which a sum of fp32 goes by ``CascadeSumHelper``.
_LONG_SUM: Final = 4096
#: Elements that the vector costs of tables are of.
_COUNTED_LANES: Final = 16


class Body(NamedTuple):
    """What the body of a node costs in a turn of its loops, its loads and stores left out."""

    cost: Cost
    #: The same in tiles that are transposed.
    in_tiles: Cost
    #: Whether it is done once a row, whatever its length.
    rests: bool
    #: Part of the node's masked loads that it comes to at a place.
    taken: float
    #: Nanoseconds of what is done once a row beside that.
    once: float
    #: Its operations in a turn, with how often each is computed.
    operations: Counts
    #: Of a Welford reduction: whether each of its steps waits for the one before.
    chained: bool
    #: Its cost, and what is done once a row, by the loops that are vectorised, where its node says
    #: along which loops it computes what.
    told: Callable[[tuple[int, ...]], tuple[Cost, float]] | None = None

    def of(self, nest: Nest, node: NodeLoops) -> tuple[Cost, float]:
        """What it costs in a turn of ``nest``, and nanoseconds of what is done once a row of it."""
        if self.told is None:
            return self.in_tiles if len(nest.tiled) > 1 else self.cost, self.once
        if nest.loops == node.loops:
            return self.told(nest.tiled)
        return self.told((len(node.loops) - 1,) if nest.tiled and node.loops else ())


def body_of(node: Node, loops: NodeLoops, problem: Problem, table: str) -> Body:
    """What the body of ``node`` costs.

    Args:
        node: of ``problem``.
        loops: its own.
        problem: tells what its results are.
        table: the name of the one that counts.
    """
    if node.computed:
        return _told(node, loops, problem, table)
    operations, part = _operations(node, problem, operations_of(node)), taken_part(node)
    if part < 1.0:
        operations = taken(operations, dict(node.ops)["masked"], part)
    operations, once = placed(operations, node, loops, problem)
    step = _step_of(node, problem)
    along, across = (rootless(operations, spared) for spared in _resting(node, loops))
    return Body(
        body_cost(along, step, table=table, still=loops.still),
        body_cost(across, step, table=table, still=loops.still),
        _rests(node, loops),
        part,
        body_cost(once, None, table=table).scalar,
        along,
        node.reduction_type.startswith("welford"),
    )


def _told(node: Node, loops: NodeLoops, problem: Problem, table: str) -> Body:
    """The same where the node says what it computes along which of its loops."""
    step, count = _step_of(node, problem), len(loops.loops)

    @cache
    def done(tiled: tuple[int, ...]) -> tuple[Counts, ...]:
        places = parted(node.computed, tiled, count)
        return tuple(_operations(node, problem, counts) for counts in places)

    @cache
    def told(tiled: tuple[int, ...]) -> tuple[Cost, float]:
        turn, row, rows = done(tiled)
        # Of what vectors lie along a row of one element has its part.
        once = body_cost(row, None, table=table).scalar
        once += body_cost(rows, None, table=table).vector / _COUNTED_LANES
        return body_cost(turn, step, table=table), once

    innermost = (count - 1,) if count else ()
    cost, once = told(innermost)
    return Body(
        cost=cost,
        in_tiles=cost,
        rests=False,
        taken=1.0,
        once=once,
        operations=done(innermost)[0],
        chained=node.reduction_type.startswith("welford"),
        told=told,
    )


def _operations(node: Node, problem: Problem, named: Counts) -> Counts:
    """What a node computes by ``named`` operations, with what its body does not name.

    That is indices computed from what was looked up, which are worked out element by element,
    positions that are compared, what is done with elements of eight bytes, and numbers that are
    chosen by comparing values, as those of a maximum's place are.
    """
    counts = dict(named) if node.computed else dict(node.ops)
    positions = counts.get("index_expr", 0)
    dtypes, written = _dtypes(node.reads, problem), _dtypes(node.writes, problem)
    numbers = sum(dtype in _INTEGERS for dtype in dtypes)
    found = []
    looks_up = any(access.looked_up for access in (*node.reads, *node.writes))
    if not looks_up:
        # Places in what has a single one there are not looked up.
        named = tuple(each for each in named if each[0] != "indirect_indexing")
        # Where they are not stored either nobody asks for them.
        if "indirect_indexing" in counts and not _INTEGERS.isdisjoint(written):
            found.append(("placed", float(min(positions, numbers))))
    compared = sum(counts.get(name, 0) for name in COMPARISONS)
    if positions and compared:
        found.append(("position", float(min(positions, compared))))
    if "check_bounds" in counts and not looks_up and _by_positions(node):
        found += _checked(node)
    wide = sum(dtype in _EIGHT_BYTES for dtype in dtypes)
    made = not numbers and not _INTEGERS.isdisjoint(written)
    if wide or (made and not dtypes):
        done = sum(count for name, count in counts.items() if name in _ON_EIGHT_BYTES)
        found.append(("eight_bytes", done * wide / len(dtypes) if dtypes else float(done)))
    if made and dtypes:
        # Of what is chosen half are the values that the numbers are told by.
        found.append(("numbered", counts.get("where", 0) / 2.0))
    if node.reduction_type == "any":
        # Flags that are no flags of the compiler's own go through integers on their way.
        narrow = any(access.itemsize < _FLOAT_BYTES for access in node.reads)
        widened = counts.get("load", 0) if narrow else 0
        found.append(("flag", float(counts.get("to_dtype", 0) > widened)))
    return named + tuple(found)


def _by_positions(node: Node) -> bool:
    """Whether a body, but for masked ones, compares positions."""
    names = {name for name, _ in node.ops}
    return "index_expr" in names and "masked" not in names and not names.isdisjoint(COMPARISONS)


def _checked(node: Node) -> list[tuple[str, float]]:
    """Flags by positions that are kept within bounds, as masks of attention are.

    They are compared as numbers of eight bytes, and made into flags of what is chosen by them; of
    two bytes that takes another step. In a masked body that is part of the mask.
    """
    narrow = any(access.itemsize == _HALF_BYTES for access in (*node.reads, *node.writes))
    return [("checked", 1.0), ("checked_half", float(narrow))]


def _dtypes(accesses: Sequence[Access], problem: Problem) -> list[str]:
    """Those of what accesses go to, as far as it is known."""
    buffers = (problem.buffer_by_name.get(access.buffer) for access in accesses)
    return [buffer.dtype for buffer in buffers if buffer is not None]


def _step_of(node: Node, problem: Problem) -> str | None:
    """What a node does in a step of its reduction, by which that is known; None if it is none."""
    if node.kind != "reduction":
        return None
    long = node.reduction_type == "sum" and node.rnumel > _LONG_SUM
    cascades = long and "torch.float32" in _dtypes(node.writes, problem)
    return "cascade" if cascades else node.reduction_type


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
        elif not steps or steps[-1] or _winds(access, loops):
            return False
    positions = any(name == "index_expr" for name, _ in node.ops)
    return not positions or any(access.kind == "gather" for access in node.reads)


def _winds(access: Access, loops: NodeLoops) -> bool:
    """Whether an index that has no step along a row goes along it by a quotient."""
    windings = windings_of(access, loops.loops)
    return bool(windings) and windings[-1].divided > 0
