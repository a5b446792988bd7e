"""What the loops of a group's C++ kernel make a thread do: columns of the CPU alone.

One :class:`Work` serves one problem on one device. What an operation costs stands here as a table,
in nanoseconds of the Xeon that the x86 dataset was taken on, and fits the kernels of its training
families. Nothing here knows bandwidths, nor what it costs to start threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fusewise.costmodel.cpu_loops import Nest, main_of, nest_of, node_loops
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.meeting import Met
from fusewise.schedule.problem import Node, Problem

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
    "in_place",
    "each_worker",
)


class Cost(NamedTuple):
    """Nanoseconds of something on one thread."""

    #: For a vector of 16 fp32 elements.
    vector: float = 0.0
    #: For each element of a vector, where it is put together of single ones.
    lane: float = 0.0
    #: For one element in a loop that is not vectorised.
    scalar: float = 0.0
    #: For a vector that is put together to one value.
    end: float = 0.0
    #: More for a vector that is loaded or stored in part.
    part: float = 0.0


#: Bytes of the vectors of the table, and how the time of an instruction grows with them.
_TABLE_BYTES: Final = 64
_WIDTH_EXPONENT: Final = 0.7
_FLOAT_BYTES: Final = 4
_FREE: Final = Cost()
#: How much longer masks, and parts of vectors, take narrower instructions, which have none.
_NO_MASKS: Final = 3.3
#: A turn of the loops; an access that jumps along a vector; a row of a tile that is transposed.
_TURN: Final = Cost(0.55, scalar=0.06)
_JUMP: Final = Cost(lane=0.73)
_TILE: Final = Cost(4.2)
#: Operations by what they cost. A comparison costs little until its result is stored.
_OPERATIONS: Final = {
    "abs add sub mul neg fma square relu maximum minimum": Cost(0.11, scalar=0.08),
    "floor ceil round trunc sign floor_to_int ceil_to_int round_to_int trunc_to_int": Cost(
        2.3, scalar=0.5
    ),
    "truediv reciprocal sqrt rsqrt div_rn fmod mod remainder floordiv": Cost(1.66, scalar=0.72),
    "exp exp2 expm1": Cost(11.1, scalar=3.1),
    "log log2 log10 log1p": Cost(19.7, scalar=3.0),
    "tanh": Cost(42.9, scalar=8.0),
    "sigmoid": Cost(14.7, scalar=4.0),
    "erf erfc erfinv": Cost(20.0, scalar=6.0),
    "sin cos tan": Cost(5.3, scalar=5.8),
    "pow": Cost(29.6, scalar=10.0),
    "eq ne lt le gt ge and_ or_ xor logical_and logical_or logical_not logical_xor bitwise_and "
    "bitwise_or bitwise_not bitwise_xor isnan isinf": Cost(0.04, scalar=0.1),
    "where": Cost(0.46, scalar=0.1),
    "to_dtype": Cost(0.06, scalar=0.08),
    "index_expr indirect_indexing check_bounds": Cost(lane=0.03, scalar=0.11),
    "masked": Cost(lane=0.42, scalar=0.2),
    "rand randn randint64": Cost(lane=10.0, scalar=10.0),
}
_OPERATION: Final = {name: cost for names, cost in _OPERATIONS.items() for name in names.split()}
#: Operations that are not in the table.
_OTHER: Final = Cost(0.2, scalar=0.2)
#: What a loop body has that is no work, or is counted otherwise.
_UNCOUNTED: Final = frozenset(
    ["load", "store", "store_reduction", "output", "constant", "reduction", "get_index", "ops"]
)
#: A step of a reduction by the first word of its type.
_STEPS: Final = {
    "sum": Cost(0.05, scalar=0.07, end=1.6),
    "prod": Cost(0.05, scalar=0.07, end=1.6),
    "welford": Cost(8.5, scalar=2.0, end=51.0),
    "max": Cost(1.4, scalar=0.3, end=11.1),
    "min": Cost(1.4, scalar=0.3, end=11.1),
    "any": Cost(0.13, scalar=0.1, end=1.7),
}
_STEP: Final = Cost(5.0, scalar=1.0, end=20.0)
#: Loads and stores by bytes of an element; elements of type bool are their own.
_LOADS: Final = {
    0: Cost(lane=1.02, scalar=0.1),
    1: Cost(lane=0.9, scalar=0.1),
    2: Cost(0.53, scalar=0.55, part=1.36),
    4: Cost(0.07, scalar=0.06),
    8: Cost(lane=0.03, scalar=0.12),
}
_STORES: Final = {
    0: Cost(lane=11.9, scalar=0.1),
    1: Cost(lane=0.2, scalar=0.1),
    2: Cost(1.01, scalar=0.07, part=0.2),
    4: Cost(0.13, scalar=0.51),
    8: Cost(lane=1.34, scalar=0.12),
}
#: What accesses cost beside that which look their element up, or add to what others may add to;
#: the processor adds to no element of two bytes in one go.
_GATHER: Final = Cost(lane=0.03, scalar=0.5)
_ATOMIC, _ATOMIC_LOW = Cost(lane=2.2, scalar=2.2), Cost(lane=16.0, scalar=16.0)


@lru_cache(maxsize=1 << 14)
def _body_cost(ops: tuple[tuple[str, int], ...], reduction: str | None) -> Cost:
    """A turn of a node's loops, its loads and stores left out.

    Args:
        ops: of its body, with how often each occurs.
        reduction: type of the reduction that it is; None where it is none.
    """
    vector, lane, scalar, end, _ = _TURN
    step = _FREE if reduction is None else _STEPS.get(reduction.split("_")[0], _STEP)
    costs = [
        (_OPERATION.get(name, _OTHER), count)
        for name, count in ops
        if name not in _UNCOUNTED and not name.startswith("masked_subblock")
    ]
    for cost, count in (*costs, (step, 1)):
        vector += cost.vector * count
        lane += cost.lane * count
        scalar += cost.scalar * count
        end += cost.end * count
    return Cost(vector, lane, scalar, end)


@lru_cache(maxsize=256)
def _access_cost(kind: str, width: int, written: bool, masks: float) -> Cost:
    """An access to elements of so many bytes, 0 for those of type bool.

    ``masks`` is how much longer they take than on the processor of the table.
    """
    table = _STORES if written else _LOADS
    cost = table.get(width, table[8])
    lane = cost.lane * masks if width == 0 and not written else cost.lane
    more = _FREE
    if kind == "gather":
        more = _GATHER
    elif kind == "atomic":
        more = _ATOMIC_LOW if width == 2 else _ATOMIC  # noqa: PLR2004 - bytes
    return cost._replace(
        lane=lane + more.lane, scalar=cost.scalar + more.scalar, part=cost.part * masks
    )


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
        rank: Mapping[str, int],
    ) -> None:
        """``nodes`` in topological order; ``rank`` is the number of each by name."""
        self._threads = profile.threads
        self._vector_bytes = profile.vector_bytes
        #: Time of an instruction over that of one on 64 bytes: wider ones do more.
        self._pace = (profile.vector_bytes / _TABLE_BYTES) ** _WIDTH_EXPONENT
        masks = 1.0 if profile.vector_bytes >= _TABLE_BYTES else _NO_MASKS
        self.loops = [node_loops(node, problem) for node in nodes]
        self._costs = [
            _body_cost(node.ops, node.reduction_type if node.kind == "reduction" else None)
            for node in nodes
        ]
        bools = {buffer.name for buffer in problem.buffers if buffer.dtype == "torch.bool"}
        self._moves = [
            {
                (a.buffer, a.index): _access_cost(
                    a.kind, 0 if a.buffer in bools else a.itemsize, written, masks
                )
                for accesses, written in ((node.reads, False), (node.writes, True))
                for a in accesses
            }
            for node in nodes
        ]
        self._over = [_overwritten(node, problem, rank) for node in nodes]

    def columns(self, ids: Sequence[int], met: Met, distinct: float) -> tuple[float, ...]:
        """The columns of one group.

        Args:
            ids: numbers of its nodes, ascending.
            met: what they make of each other.
            distinct: bytes that it moves.
        """
        moved: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for i, key, *_ in met.moving:
            moved[i].append(key)
        turns = whole = lane_by_lane = scalar = ends = 0.0
        nests: dict[int, Nest] = {}
        for part in self.parts(ids, met.levels):
            nests[id(part.nest)] = part.nest
            vector, lane, one, end, _ = self._costs[part.node]
            # Elements of two bytes beside wider ones fill half a vector.
            halves = part.nest.lanes * 2 < self._vector_bytes
            for key in moved.get(part.node, ()):
                cost = self._moves[part.node].get(key, _FREE)
                vector += cost.vector + cost.part * halves
                lane += cost.lane
                one += cost.scalar
            if part.nest.tiled:
                node = self.loops[part.node]
                if len(part.nest.tiled) > 1:
                    vector += _TILE.vector
                elif node.loops == part.nest.loops:
                    lane += _JUMP.lane * node.jumps[part.nest.tiled[0]]
            turns += part.vectors + part.scalars
            lane_by_lane += part.lanes * lane
            scalar += part.scalars * one
            ends += part.ends * end
            whole += part.vectors * vector
        whole += lane_by_lane + scalar + ends
        workers = max(nest.workers for nest in nests.values())
        in_place = self._in_place(ids, met)
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
            in_place,
            max(distinct - in_place, 0.0) / workers,
        )

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

    def _in_place(self, ids: Sequence[int], met: Met) -> float:
        """Bytes that are written where they were read, since nobody reads them later."""
        if not any(self._over[i] for i in ids):
            return 0.0
        inside = 0
        for i in ids:
            inside |= 1 << i
        later = ~(inside | ((1 << ids[0]) - 1))
        moving = {key[0] for _, key, *_ in met.moving}
        found = 0.0
        for i in ids:
            for size, read, write, users in self._over[i]:
                if read in moving and write in moving and not users & later:
                    found += size
                    break
        return found


def _overwritten(
    node: Node, problem: Problem, rank: Mapping[str, int]
) -> list[tuple[int, str, str, int]]:
    """Reads that a node may write its result over (``SchedulerNode.can_inplace``).

    Of each the bytes, the buffer, that of the result, and the bitset of its readers.
    """
    if node.kind != "pointwise" or len(node.writes) != 1:
        return []
    write = node.writes[0]
    target = problem.buffer_by_name.get(write.buffer)
    if write.kind == "atomic" or target is None or target.aliases:
        return []
    found = []
    for read in node.reads:
        buffer = problem.buffer_by_name.get(read.buffer)
        if (
            read.index != write.index
            or read.itemsize != write.itemsize
            or buffer is None
            or buffer.is_input
            or buffer.is_output
            or buffer.aliases
        ):
            continue
        users = [rank.get(name) for name in buffer.users]
        if any(user is None for user in users):
            continue
        readers = sum(1 << user for user in set(users) if user is not None)
        found.append((read.bytes, read.buffer, write.buffer, readers))
    return found
