"""What the loops of a group's C++ kernel make a thread do: columns of the CPU alone.

One :class:`Work` serves one problem on one device. What an operation costs stands in a table of
``cpu_costs``. Nothing here knows bandwidths, nor what it costs to start threads.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

from fusewise.costmodel.cpu_costs import body_cost, rootless, table_of
from fusewise.costmodel.cpu_loops import Nest, NodeLoops, main_of, nest_of, node_loops
from fusewise.costmodel.cpu_tables import CLASSES, FREE, Cost
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.meeting import Met
from fusewise.costmodel.written_once import operations_of, taken, taken_part
from fusewise.schedule.problem import Access, Node, Problem

#: The columns, in the order of :meth:`Work.columns`.
WORK: Final = (
    "workers",
    "least_workers",
    "nests",
    "shared_nests",
    "lanes",
    "loop_turns",
    "instructions",
    "lane_by_lane",
    "scalar_work",
    "row_ends",
    "each_worker",
    "loop_starts",
    "partial_vectors",
    "borders",
    "unforeseen",
)


#: How the time of an instruction grows with the bytes that it takes, where no table has its width.
_WIDTH_EXPONENT: Final = 0.7
_FLOAT_BYTES, _LOW_BYTES, _LINE_BYTES = 4, 2, 64
#: Elements beyond which a sum of fp32 goes by ``CascadeSumHelper``.
_LONG_SUM: Final = 4096
#: How fast what is remembered passes over into what is not.
_SHARPNESS: Final = 3.0
#: Quotients in an index, and remainders: of what, and by what.
_QUOTIENTS: Final = re.compile(r"([^()]*)//(\d+)")
_REMAINDERS: Final = re.compile(r"ModularIndexing\(([^(),]*(?:\([^()]*\))?[^(),]*), (\d+), (\d+)\)")
#: Elements of the widest vectors of four bytes.
_VECTOR: Final = 16
#: Sizes of the loops in an index.
_SIZES: Final = re.compile(r" : (\d+(?:, \d+)*)$")
#: Names of flags that a graph gets: comparisons of another graph, but dropout's, which are mostly
#: true.
_COMPARED: Final = re.compile(r"(le|lt|ge)(_|$)")
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
    #: Whether its elements are of type bool and could be either as well.
    unforeseen: bool
    #: Quotients and remainders of the innermost loop in its index: no neighbours lie along that.
    winding: int
    #: Elements from one turn of each of the node's loops to the next; empty where unknown.
    steps: tuple[int, ...]


class Body(NamedTuple):
    """What the body of a node costs in a turn of its loops, its loads and stores left out."""

    cost: Cost
    #: The same in tiles that are transposed.
    in_tiles: Cost
    #: Whether it is done once a row, whatever its length.
    rests: bool

    def of(self, nest: Nest) -> Cost:
        """What it costs in ``nest``."""
        return self.in_tiles if len(nest.tiled) > 1 else self.cost


class InVectors(NamedTuple):
    """What an access costs in a nest with vectors, and how much of that a lane waits at branches."""

    cost: Cost
    unforeseen: float = 0.0


class Part(NamedTuple):
    """How much of what one node of a group does falls on the busiest thread."""

    node: int
    nest: Nest
    #: Turns of vectors, as many as 16 fp32 elements take; elements of vectors; elements that are
    #: taken one by one; rows whose vector is put together to one value.
    vectors: float
    lanes: float
    scalars: float
    ends: float


class Work:
    """Columns of ``WORK`` for groups of one problem's nodes, which are numbered as given."""

    def __init__(
        self,
        problem: Problem,
        profile: DeviceProfile,
        nodes: Sequence[Node],
    ) -> None:
        """``nodes`` in topological order."""
        self._threads = profile.threads
        self._vector_bytes = profile.vector_bytes
        self._table = table_of(profile)
        #: Time of an instruction over that of one of the table's width: wider ones do more.
        self._pace = (profile.vector_bytes / self._table.width) ** _WIDTH_EXPONENT
        self.loops = [node_loops(node, problem) for node in nodes]
        self._taken = [taken_part(node) for node in nodes]
        self._bodies = [
            self._body(node, loops, part, problem)
            for node, loops, part in zip(nodes, self.loops, self._taken, strict=True)
        ]
        bools = {buffer.name for buffer in problem.buffers if buffer.dtype == "torch.bool"}
        self._unforeseen = _unforeseen(bools, problem)
        self._moves = [
            {
                (a.buffer, a.index): self._move(a, written, a.buffer in bools, loops)
                for accesses, written in ((node.reads, False), (node.writes, True))
                for a in accesses
            }
            for node, loops in zip(nodes, self.loops, strict=True)
        ]

    def columns(self, ids: Sequence[int], met: Met, fresh: float) -> tuple[float, ...]:
        """The columns of one group.

        Args:
            ids: numbers of its nodes, ascending.
            met: what they make of each other.
            fresh: distinct bytes that it moves, those that are written over others counted once.
        """
        moved: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for i, key, *_ in met.moving:
            moved[i].append(key)
        turns = whole = lane_by_lane = scalar = ends = partial = 0.0
        borders = unforeseen = 0.0
        nests: dict[int, Nest] = {}
        for part in self.parts(ids, met.levels):
            body = self._bodies[part.node]
            vector, lane, one, end, *_ = body.of(part.nest)
            if body.rests and part.nest.loops == self.loops[part.node].loops:
                whole += one * self.loops[part.node].total / part.nest.loops[-1] / part.nest.workers
                vector = lane = one = 0.0
            if id(part.nest) not in nests:
                nests[id(part.nest)] = part.nest
                vector += self._table.turn.vector
                one += self._table.turn.scalar
            node = self.loops[part.node]
            for key in moved.get(part.node, ()):
                move = self._moves[part.node].get(key)
                if move is None:
                    continue
                if move.written and node.reduces:
                    # What is reduced is stored once a row.
                    whole += move.cost.scalar * node.rows / part.nest.workers
                    continue
                one += move.cost.scalar + move.looked_up.scalar
                one += self._table.winding.scalar * move.winding
                borders += _borders(move, part.nest, node)
                if part.vectors:
                    more = self._in_vectors(move, part.nest, node)
                    come = 1.0 if move.written else self._taken[part.node]
                    vector += more.cost.vector * come
                    lane += (more.cost.lane + more.unforeseen) * come
                    unforeseen += part.lanes * more.unforeseen * come
            turns += part.vectors + part.scalars
            lane_by_lane += part.lanes * lane
            scalar += part.scalars * one
            ends += part.ends * end
            partial += part.vectors * part.nest.partial
            whole += part.vectors * vector
        whole += lane_by_lane + scalar + ends
        starts = sum(nest.starts for nest in nests.values())
        whole += starts * self._table.start.vector + borders * self._table.border.vector
        workers = max(nest.workers for nest in nests.values())
        return (
            workers,
            min(nest.workers for nest in nests.values()),
            len(nests),
            sum(nest.shared for nest in nests.values()),
            max(nest.lanes for nest in nests.values()),
            turns,
            whole,
            lane_by_lane,
            scalar,
            ends,
            fresh / workers,
            starts,
            partial,
            borders,
            unforeseen,
        )

    def _body(self, node: Node, loops: NodeLoops, part: float, problem: Problem) -> Body:
        operations = operations_of(node)
        if part < 1.0:
            operations = taken(operations, dict(node.ops)["masked"], part)
        step = _step_of(node, problem)
        spared, across = _resting(node, loops)
        found = [
            body_cost(
                rootless(operations, of), step, table=self._table.name, still=loops.still
            )
            for of in (spared, across)
        ]
        return Body(found[0], found[1], _rests(node, loops))

    def _move(self, access: Access, written: bool, boolean: bool, loops: NodeLoops) -> Move:
        table = self._table
        costs = table.stores if written else table.loads
        more = table.gather if access.kind == "gather" else FREE
        if access.kind == "atomic":
            more = table.atomic_low if access.itemsize == _LOW_BYTES else table.atomic
            for add in self._spread(access, loops):
                more = more._replace(lane=more.lane + add.lane, scalar=more.scalar + add.scalar)
        return Move(
            costs.get(0 if boolean else access.itemsize, costs[8]),
            written,
            access.kind == "gather",
            access.kind == "atomic",
            more,
            access.itemsize,
            max(access.bytes // max(access.itemsize, 1), 1),
            access.buffer in self._unforeseen,
            winding(access, loops.loops),
            loops.steps.get((access.buffer, access.index), ()),
        )

    def _spread(self, access: Access, loops: NodeLoops) -> list[Cost]:
        """What atomic additions cost more, by the loops that tell their place beside the lookup."""
        named = _SIZES.search(access.index)
        known = [int(size) for size in named[1].split(",")] if named else []
        step = access.stride * access.itemsize
        if not loops.loops or not known or known[-1] == loops.loops[-1]:
            return [self._table.atomic_far] if step >= _LINE_BYTES else []
        # Only outer loops, which threads share: each has lines of its own, or none has.
        return [self._table.atomic_shared] if step < _LINE_BYTES and self._threads > 1 else []

    def _in_vectors(self, move: Move, nest: Nest, node: NodeLoops) -> InVectors:
        """By how it goes along the vectors."""
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
        if move.winding and (node.loops != nest.loops or nest.tiled[-1] == len(nest.loops) - 1):
            each = self._table.jump.lane + self._table.winding.lane * move.winding
            return InVectors(Cost(lane=move.cost.lane + each))
        if step == 0 and not move.written:
            return InVectors(self._table.stay)
        if step not in (0, 1) and not turned:
            return InVectors(Cost(lane=move.cost.lane + self._table.jump.lane))
        # Elements of two bytes beside wider ones fill half a vector.
        half = nest.lanes * _LOW_BYTES < self._vector_bytes and move.itemsize < _FLOAT_BYTES
        part = move.cost.part * nest.partial + move.cost.half * half
        if turned:
            low = move.itemsize == _LOW_BYTES
            part += (self._table.tile_low if low else self._table.tile).vector
        cost = move.cost._replace(vector=move.cost.vector + part)
        if not move.unforeseen:
            return InVectors(cost)
        # Each is a branch, which takes long where it goes the other way than was guessed.
        known = (self._table.remembered * nest.workers / move.elements) ** _SHARPNESS
        return InVectors(cost, self._table.unforeseen.lane / (1.0 + known))

    def parts(self, ids: Sequence[int], levels: Mapping[int, int]) -> list[Part]:
        """What the nodes of a group do, nest after nest."""
        found = []
        for under, after, nest in self._nests(ids, levels):
            for i in under:
                node = self.loops[i]
                if not nest.tiled:
                    found.append(Part(i, nest, 0.0, 0.0, node.total / nest.workers, 0.0))
                    continue
                steps = nest.steps / nest.workers
                rows = node.rows / nest.workers if node.reduces and nest.reduced else 0.0
                found.append(self._part(i, nest, steps, rows))
            for i in after:
                each = self.loops[i].total / nest.workers
                if nest.tiled and not nest.reduced:
                    found.append(self._part(i, nest, each / nest.lanes, 0.0))
                else:
                    found.append(Part(i, nest, 0.0, 0.0, each, 0.0))
        return found

    def _part(self, i: int, nest: Nest, steps: float, rows: float) -> Part:
        size = nest.lanes * _FLOAT_BYTES / self._vector_bytes
        vectors = steps * size * self._pace
        return Part(i, nest, vectors, steps * nest.lanes, 0.0, rows * self._pace)

    def _nests(
        self, ids: Sequence[int], levels: Mapping[int, int]
    ) -> list[tuple[list[int], list[int], Nest]]:
        """Loop nests: the nodes under all of their loops, those after a reduction, how written."""
        threads, width = self._threads, self._vector_bytes
        if len(ids) == 1:
            return [([ids[0]], [], nest_of((self.loops[ids[0]],), threads, width))]
        groups: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        rest: list[int] = []
        for i in ids:
            node = self.loops[i]
            if node.reduces:
                groups.setdefault((levels[i], node.total), ([], []))[0].append(i)
            else:
                rest.append(i)
        rows = {
            (level, self.loops[under[0]].rows): (level, total)
            for (level, total), (under, _) in groups.items()
        }
        for i in rest:
            key = levels[i], self.loops[i].total
            if key not in groups and key in rows:
                groups[rows[key]][1].append(i)
            else:
                groups.setdefault(key, ([], []))[0].append(i)
        most = None
        if len(groups) > 1:
            # Nests that share their outer loops are fused under these.
            mains = [main_of([self.loops[i] for i in under]) for under, _ in groups.values()]
            outer = [main.outer for main in mains if main.reduces]
            most = max(1, min(outer)) if outer else None
        return [
            (under, after, nest_of([self.loops[i] for i in under], threads, width, most))
            for under, after in groups.values()
        ]


def _step_of(node: Node, problem: Problem) -> str | None:
    """What a node does in a step of its reduction, by which that is known; None if it is none."""
    if node.kind != "reduction":
        return None
    if node.reduction_type == "sum" and node.rnumel > _LONG_SUM:
        buffers = (problem.buffer_by_name.get(write.buffer) for write in node.writes)
        if any(buffer is not None and buffer.dtype == "torch.float32" for buffer in buffers):
            return "cascade"
    return node.reduction_type


def _borders(move: Move, nest: Nest, node: NodeLoops) -> int:
    """Stretches of what is stored that threads part within a line.

    They do where the loop that they share goes along such a stretch, others go from one to the
    next, and these do not all begin at a line.
    """
    if not move.written or nest.cut < 0 or node.loops != nest.loops or not move.steps:
        return 0
    step = abs(move.steps[nest.cut])
    chunk = nest.lanes if nest.cut in nest.tiled else 1
    if nest.loops[nest.cut] <= chunk:
        return 0
    others = [
        (extent, abs(other))
        for extent, other in zip(nest.loops, move.steps, strict=True)
        if abs(other) > step
    ]
    within = 0 < step * move.itemsize < _LINE_BYTES
    if not within or all(other * move.itemsize % _LINE_BYTES == 0 for _, other in others):
        return 0
    return math.prod(extent for extent, _ in others)


def _unforeseen(flags: Set[str], problem: Problem) -> Set[str]:
    """Those of the buffers ``flags``, of type bool, whose elements could be either as well.

    As far as can be told these are comparisons of data. Of equalities, masks and dropout's flags
    most are alike.
    """
    found = {name for name in flags if _COMPARED.match(name)}
    drawn: set[str] = set()
    for node in problem.nodes:
        names = {name for name, _ in node.ops}
        written = {access.buffer for access in node.writes}
        if names & _RANDOM:
            drawn |= written
        elif names & _COMPARISONS and drawn.isdisjoint(access.buffer for access in node.reads):
            found |= flags & written
    return found


def winding(access: Access, loops: Sequence[int]) -> int:
    """Quotients and remainders of the innermost of ``loops`` in an index that no vector keeps to.

    Where whole vectors have one quotient their elements are neighbours to the compiler
    (``simplify_index_in_vec_range``).
    """
    text, _, sizes = access.index.partition(" : ")
    if not loops or ("(" not in text and "//" not in text):
        return 0
    if sizes.rpartition(",")[2].strip() != str(loops[-1]):
        return 0
    last = f"i{sizes.count(',')}"
    found = [(part, int(by)) for part, by in _QUOTIENTS.findall(text)]
    found += [
        (part, int(by) if by != "1" else int(of)) for part, by, of in _REMAINDERS.findall(text)
    ]
    return sum(last in part and by % _VECTOR != 0 for part, by in found)


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
