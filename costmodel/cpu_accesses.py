"""What loads and stores of nodes cost in C++ loops, by how they go along vectors and threads.

One :class:`Accesses` serves one problem on one device. What an access costs by itself stands in a
table of ``cpu_tables``. Nothing here knows bandwidths, or what is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.cpu_loops import CHUNK, Nest, NodeLoops
from fusewise.costmodel.cpu_tables import CLASSES, FREE, Cost, Table
from fusewise.costmodel.geometry import looked_up_steps
from fusewise.costmodel.lookups import follows_loops
from fusewise.costmodel.windings import STRAIGHT, Winding, windings_of
from fusewise.schedule.problem import Access, Node, Problem

_FLOAT_BYTES, _LOW_BYTES, _LINE_BYTES = 4, 2, 64
#: Rows nearer to each other than this are one stream, whose lines are fetched ahead.
_STREAM_BYTES: Final = 3 * _LINE_BYTES
#: How fast waits fall with the distance of rows.
_NEARNESS: Final = 3.0
#: Lines this far apart want the same places in a first cache.
_PAGE_BYTES: Final = 4096
#: Lines of a buffer up to which threads that add anywhere in it always wait for each other; how
#: fast that falls with the number of lines, and with the additions to one line in a row.
_FEW_LINES: Final = 7.2
_FEWNESS: Final = 0.7
_STAYING: Final = 0.5
#: How fast what is remembered passes over into what is not.
_SHARPNESS: Final = 3.0
#: Names of flags that a graph gets: comparisons of another graph.
_COMPARED: Final = re.compile(r"(le|lt|ge|gt)(_|$)")
_COMPARISONS: Final = frozenset({"le", "lt", "ge", "gt"})
_RANDOM: Final = frozenset(CLASSES["random"].split())


class Move(NamedTuple):
    """An access of a node."""

    cost: Cost
    written: bool
    #: Whether its place is looked up, and whether others may add to it at the same time; what
    #: that costs beside.
    gather: bool
    atomic: bool
    looked_up: Cost
    #: Bytes of an element, and how many elements there are.
    itemsize: int
    elements: int
    #: Part of its loads that a mask lets through or not.
    masked: float
    #: Whether its elements are of type bool and could be either as well.
    unforeseen: bool
    #: Along each of the node's loops; empty where none is divided in its index.
    windings: tuple[Winding, ...]
    #: Elements from one turn of each of the node's loops to the next; empty where unknown.
    steps: tuple[int, ...]
    #: Part of the turns in which a mask by positions lets it be.
    held: float

    def along(self, loop: int) -> Winding:
        """How its index winds along a loop; -1 is the innermost."""
        return self.windings[loop] if self.windings else STRAIGHT


class InVectors(NamedTuple):
    """What an access costs in a nest with vectors, and how long each lane waits at its branch."""

    cost: Cost
    unforeseen: float = 0.0


class Accesses:
    """Loads and stores of one problem's nodes."""

    def __init__(self, problem: Problem, table: Table, *, threads: int, vector_bytes: int) -> None:
        """``table`` is of the processor; ``vector_bytes`` are what an instruction takes there."""
        self._problem = problem
        self._table = table
        self._threads = threads
        self._vector_bytes = vector_bytes
        self._flags = _flags(problem)
        self._unforeseen = unforeseen_flags(problem)

    def moves(self, node: Node, loops: NodeLoops) -> Mapping[tuple[str, str], Move]:
        """The accesses of a node, by buffer and index."""
        counts = dict(node.ops)
        looked_up = self._table.near if follows_loops(node, self._problem) else self._table.gather
        masked = min(counts.get("masked", 0) / max(counts.get("load", 0), 1), 1.0)
        return {
            (access.buffer, access.index): self._move(access, written, loops, masked, looked_up)
            for accesses, written in ((node.reads, False), (node.writes, True))
            for access in accesses
        }

    def _move(
        self, access: Access, written: bool, loops: NodeLoops, masked: float, looked_up: Cost
    ) -> Move:
        table = self._table
        costs = table.stores if written else table.loads
        more = looked_up if access.kind == "gather" else FREE
        if access.kind == "atomic":
            more = table.atomic_low if access.itemsize == _LOW_BYTES else table.atomic
            for add in self._spread(access, loops):
                more = more._replace(lane=more.lane + add.lane, scalar=more.scalar + add.scalar)
        return Move(
            costs.get(0 if access.buffer in self._flags else access.itemsize, costs[8]),
            written,
            access.kind == "gather",
            access.kind == "atomic",
            more,
            access.itemsize,
            max(access.bytes // max(access.itemsize, 1), 1),
            0.0 if written else masked,
            access.buffer in self._unforeseen,
            windings_of(access, loops.loops),
            loops.steps.get((access.buffer, access.index), ()),
            access.held,
        )

    def _spread(self, access: Access, loops: NodeLoops) -> list[Cost]:
        """What atomic additions cost more, by the loops that tell their place beside the lookup."""
        buffer = self._problem.buffer_by_name.get(access.buffer)
        steps = loops.steps.get((access.buffer, access.index), ())
        if buffer is None or not steps:
            return []
        found = []
        if abs(steps[-1]) * access.itemsize >= _LINE_BYTES:
            found.append(self._table.atomic_far)
        size = buffer.bytes / max(access.itemsize, 1)
        shared = self._threads > 1 and loops.total >= self._threads * CHUNK
        if shared and not _apart(access, steps, loops.loops, size):
            met = _meeting(steps, loops.loops, access.itemsize, buffer.bytes)
            waits = self._table.atomic_shared
            found.append(Cost(lane=waits.lane * met, scalar=waits.scalar * met))
        return found

    def in_vectors(self, move: Move, nest: Nest, node: NodeLoops) -> InVectors:
        """What an access costs in a nest with vectors, by how it goes along these."""
        step, turned, sought = 1, False, True
        if move.steps:
            at = nest.tiled[-1]
            if node.loops == nest.loops:
                step, sought = move.steps[at], node.sought[at]
                turned = len(nest.tiled) > 1 and step > 1 and move.steps[nest.tiled[0]] == 1
            elif at == len(nest.loops) - 1:
                step, sought = move.steps[-1], node.sought[-1]
        if move.gather and step == 0 and not sought:
            # What is looked up once a row.
            return InVectors(self._table.stay)
        # One thread adds without locks, and what it adds to neighbours are vectors.
        if (move.atomic and self._threads > 1) or (move.gather and step != 1):
            return InVectors(Cost(lane=move.cost.lane + move.looked_up.lane))
        along = move.along(nest.tiled[-1] if node.loops == nest.loops else -1)
        if along.breaks(nest.lanes):
            each = self._table.jump.lane + self._table.winding.lane * along.divided
            return InVectors(Cost(lane=move.cost.lane + each))
        if step == 0 and not move.written:
            return InVectors(self._table.stay)
        if step not in (0, 1) and not turned:
            return InVectors(Cost(lane=move.cost.lane + self._table.jump.lane))
        # Elements of two bytes beside wider ones fill half a vector.
        half = nest.lanes * _LOW_BYTES < self._vector_bytes and move.itemsize < _FLOAT_BYTES
        part = move.cost.part * nest.partial + move.cost.half * half
        if half and move.itemsize == _LOW_BYTES:
            part += self._table.masked_half.vector * move.masked
        if len(nest.tiled) > 1:
            part += self._in_tile(move, nest, turned)
        cost = move.cost._replace(vector=move.cost.vector + part)
        if not move.unforeseen:
            return InVectors(cost)
        waits = self._table.unforeseen_stored if move.written else self._table.unforeseen
        return InVectors(cost, self._waits(waits, nest, move.elements))

    def chooses(self, node: Node) -> bool:
        """Whether a node chooses by what could be either as well: flags, or comparisons of data."""
        names = {name for name, _ in node.ops}
        if "where" not in names:
            return False
        if any(access.buffer in self._unforeseen for access in node.reads):
            return True
        by_data = bool(node.reads) and "index_expr" not in names
        return by_data and not names.isdisjoint(_COMPARISONS)

    def choosing(self, nest: Nest, elements: int) -> float:
        """How long each of so many elements waits that is chosen by a branch of its own.

        Where a node chooses several, most are the same once more or go the way of the one before.
        """
        return self._waits(self._table.unforeseen, nest, elements)

    def _waits(self, branch: Cost, nest: Nest, elements: int) -> float:
        """A branch takes long where it goes the other way than was guessed, or is remembered."""
        known: float = (self._table.remembered * nest.workers / elements) ** _SHARPNESS
        return branch.lane / (1.0 + known)

    def _in_tile(self, move: Move, nest: Nest, turned: bool) -> float:
        """What a vector costs more in a tile that is transposed, ``turned`` if it lies across."""
        table, more = self._table, 0.0
        if turned:
            low = move.itemsize == _LOW_BYTES
            more += (table.tile_low if low else table.tile).vector
        if move.written:
            more += table.tile_part.vector * (nest.across if turned else nest.partial)
        side = nest.tiled[-1] if turned else nest.tiled[0]
        pitch = move.steps[side] * move.itemsize if len(move.steps) > side else 0
        return more + table.tile_far.vector * (pitch != 0 and pitch % _PAGE_BYTES == 0)


def _apart(access: Access, steps: Sequence[int], loops: Sequence[int], elements: float) -> bool:
    """Whether threads, which share the outermost loop, add to parts of a buffer of their own.

    They do where that loop goes through all of it, or where no place is looked up.
    """
    if not looked_up_steps(access.index):
        return steps[0] != 0
    return abs(steps[0]) * loops[0] >= elements / 2.0


def _meeting(steps: Sequence[int], loops: Sequence[int], itemsize: int, size: int) -> float:
    """How much threads wait for each other's lines when they add anywhere in ``size`` bytes.

    1 where there are few lines; the less, the more there are, and the longer each thread stays in
    one.
    """
    row = 1
    for step, extent in zip(reversed(steps), reversed(loops), strict=True):
        if abs(step) != row:
            break
        row *= extent
    row = min(row, _LINE_BYTES // max(itemsize, 1))
    few = min(_FEW_LINES * _LINE_BYTES / max(size, 1), 1.0)
    return float(few**_FEWNESS / row**_STAYING)


def borders(move: Move, nest: Nest, node: NodeLoops) -> float:
    """Stretches of what is stored that threads part within a line, near ones counting less.

    They do where the loop that they share goes along such a stretch, others go from one to the
    next, and these do not all begin at a line.
    """
    if not move.written or nest.cut < 0 or node.loops != nest.loops or not move.steps:
        return 0.0
    step = abs(move.steps[nest.cut])
    chunk = nest.lanes if nest.cut in nest.tiled else 1
    if nest.loops[nest.cut] <= chunk:
        return 0.0
    others = [
        (extent, abs(other))
        for extent, other in zip(nest.loops, move.steps, strict=True)
        if abs(other) > step
    ]
    within = 0 < step * move.itemsize < _LINE_BYTES
    if not within or all(other * move.itemsize % _LINE_BYTES == 0 for _, other in others):
        return 0.0
    pitch = min((other * move.itemsize for _, other in others), default=_STREAM_BYTES)
    near: float = min(pitch / _STREAM_BYTES, 1.0) ** _NEARNESS
    return near * math.prod(extent for extent, _ in others)


def _flags(problem: Problem) -> set[str]:
    """Names of the buffers of type bool."""
    return {each.name for each in problem.buffers if each.dtype == "torch.bool"}


def unforeseen_flags(problem: Problem) -> frozenset[str]:
    """Names of the buffers of type bool whose elements could be either as well.

    As far as can be told these are comparisons of data by which something is chosen. Of equalities,
    masks and dropout's flags, which are multiplied with, most are alike; those of positions, which
    read nothing, go over from one to the other now and then.
    """
    flags = _flags(problem)
    found: set[str] = set()
    compared = {name for name in flags if _COMPARED.match(name)}
    drawn: set[str] = set()
    multiplied: set[str] = set()
    for node in problem.nodes:
        names = {name for name, _ in node.ops}
        written = {access.buffer for access in node.writes}
        read = {access.buffer for access in node.reads} & compared
        if "where" in names:
            found |= read
        else:
            multiplied |= read
        if names & _RANDOM:
            drawn |= written
        elif names & _COMPARISONS and node.reads and drawn.isdisjoint(a.buffer for a in node.reads):
            found |= flags & written
    return frozenset(found - multiplied)
