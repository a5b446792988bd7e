"""What the loops of a group's C++ kernel make a thread do: columns of the CPU alone.

One :class:`Work` serves one problem on one device. What a node's body and its accesses cost in a
turn is ``cpu_bodies``' and ``cpu_accesses``'. Nothing here knows bandwidths, nor what it costs to
start threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.computed_once import ComputedOnce
from fusewise.costmodel.cpu_accesses import Accesses, borders
from fusewise.costmodel.cpu_bodies import body_of
from fusewise.costmodel.cpu_costs import slowness, table_of
from fusewise.costmodel.cpu_loops import Nest, NodeLoops, main_of, nest_of, node_loops
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.meeting import Met
from fusewise.schedule.problem import Node, Problem

#: The columns, in the order of :meth:`Work.columns`.
WORK: Final = (
    "workers",
    "least_workers",
    "nests",
    "shared_nests",
    "sent_off",
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
#: Bytes of what vectors are counted by.
_FLOAT_BYTES: Final = 4
#: Counts that reciprocals are kept ready of (the chunks of ``CppKernel._acc_helper_init``).
_KEPT: Final = 4096


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
        self._slowness = slowness(profile, self._table)
        #: Time of an instruction over that of one of the table's width: wider ones do more.
        self._pace = (profile.vector_bytes / self._table.width) ** _WIDTH_EXPONENT
        self.loops = [node_loops(node, problem) for node in nodes]
        self._bodies = [
            body_of(node, loops, problem, self._table.name)
            for node, loops in zip(nodes, self.loops, strict=True)
        ]
        self._once = ComputedOnce(nodes, self.loops, self._bodies, self._table.name)
        self._accesses = Accesses(
            problem, self._table, threads=self._threads, vector_bytes=self._vector_bytes
        )
        self._chooses = [self._accesses.chooses(node) for node in nodes]
        self._moves = [
            self._accesses.moves(node, loops) for node, loops in zip(nodes, self.loops, strict=True)
        ]

    def columns(
        self, ids: Sequence[int], met: Met, fresh: float, in_place: float
    ) -> tuple[float, ...]:
        """The columns of one group.

        Args:
            ids: numbers of its nodes, ascending.
            met: what they make of each other.
            fresh: distinct bytes that it moves, those that are written over others counted once.
            in_place: bytes that it writes over others.
        """
        moved: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for i, key, *_ in met.moving:
            moved[i].append(key)
        turns = whole = lane_by_lane = scalar = ends = partial = 0.0
        parted = unforeseen = stored = short = 0.0
        nests: dict[int, Nest] = {}
        under: dict[int, list[int]] = {}
        for part in self.parts(ids, met.levels):
            body, node = self._bodies[part.node], self.loops[part.node]
            vector, lane, one, waits, end, once = self._turn(
                part, under.setdefault(id(part.nest), [])
            )
            if node.loops and part.nest.loops == node.loops:
                row = one + once if body.rests else once
                whole += row * node.total / node.loops[-1] / part.nest.workers
                if body.rests:
                    vector = lane = one = 0.0
            unforeseen += part.scalars * waits
            if id(part.nest) not in nests:
                nests[id(part.nest)] = part.nest
                vector += self._table.turn.vector
                one += self._table.turn.scalar
            for key in moved.get(part.node, ()):
                move = self._moves[part.node].get(key)
                if move is None:
                    continue
                if move.written and node.reduces:
                    # What is reduced is stored once a row.
                    whole += move.cost.scalar * node.rows / part.nest.workers
                    continue
                one += move.cost.scalar + move.looked_up.scalar
                one += self._table.winding.scalar * move.along(-1).divided
                parted += borders(move, part.nest, node)
                if move.written:
                    stored += move.elements * move.itemsize
                    short += part.vectors * part.nest.partial
                if part.vectors:
                    more = self._accesses.in_vectors(move, part.nest, node)
                    come = 1.0 if move.written else body.taken * move.held
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
        whole += starts * self._table.start.vector + parted * self._table.border.vector
        if in_place:
            whole += short * min(in_place / max(stored, 1.0), 1.0) * self._table.overwritten.vector
        workers = max(nest.workers for nest in nests.values())
        slow = self._slowness
        return (
            workers,
            min(nest.workers for nest in nests.values()),
            len(nests),
            sum(nest.shared for nest in nests.values()),
            _sent_off(nests.values()),
            max(nest.lanes for nest in nests.values()),
            turns,
            slow * whole,
            slow * lane_by_lane,
            slow * scalar,
            slow * ends,
            fresh / workers,
            starts,
            partial,
            parted,
            slow * unforeseen,
        )

    def _turn(self, part: Part, before: list[int]) -> tuple[float, ...]:
        """What a node's body costs beside those ``before`` it under its nest, which it is added to.

        A turn of a vector, of an element of one and of one by itself, and how long that waits at
        the branch by which it is chosen; the end of a row; and what is done once a row.
        """
        body = self._bodies[part.node]
        whole, once = body.of(part.nest, self.loops[part.node])
        again = self._once.before(part.node, before)
        before.append(part.node)
        vector = max(whole.vector - again.vector, 0.0)
        if body.chained and part.vectors and vector:
            vector += self._chain(self.loops[part.node], part.nest)
        lane, one = max(whole.lane - again.lane, 0.0), max(whole.scalar - again.scalar, 0.0)
        waits = 0.0
        if part.scalars and self._chooses[part.node]:
            waits = self._accesses.choosing(part.nest, self.loops[part.node].total)
        return vector, lane, one + waits, waits, max(whole.end - again.end, 0.0), once

    def _chain(self, node: NodeLoops, nest: Nest) -> float:
        """What a step of Welford's costs more than the table says, which has one vector at a time.

        Each waits for the one before.
        """
        chain = self._table.chain
        step = waits = self._table.steps["welford"].vector
        one_loop = len(node.loops) - node.outer == 1
        if not nest.reduced:
            waits += chain.across
        elif one_loop and node.rows <= 1 and nest.workers > 1:
            waits += chain.parted
        elif one_loop and node.total > node.rows * nest.lanes * _KEPT:
            waits += chain.long
        # Vectors of narrow elements go two at a time, each with a chain of its own.
        abreast = max(nest.lanes * _FLOAT_BYTES / self._vector_bytes, 1.0)
        if abreast > 1.0:
            waits += chain.halves
        return waits / abreast - step

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
        lanes = min(steps * nest.lanes, self.loops[i].total / nest.workers)
        return Part(i, nest, vectors, lanes, 0.0, rows * self._pace)

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
        if len(groups) > 1 or any(after for _, after in groups.values()):
            # Nests that share their outer loops are fused under these, as is what comes after.
            mains = [main_of([self.loops[i] for i in under]) for under, _ in groups.values()]
            outer = [main.outer for main in mains if main.reduces]
            most = max(1, min(outer)) if outer else None
        return [
            (under, after, nest_of([self.loops[i] for i in under], threads, width, most))
            for under, after in groups.values()
        ]


def _sent_off(nests: Iterable[Nest]) -> float:
    """How often threads are sent off for nests: once for all that share their outermost loops."""
    shared = [nest.sent for nest in nests if nest.shared]
    return sum(sent for sent in shared if sent > 1.0) + any(sent == 1.0 for sent in shared)
