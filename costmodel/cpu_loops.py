"""How Inductor writes the loops of nodes in C++: which are vectorised, and what threads share.

The rules are those of ``TilingSelect``, ``LoopNest.max_parallel_depth`` and
``CppKernel.decide_parallel_depth`` in torch/_inductor/codegen/cpp.py, told from loops and accesses
alone. Nothing here is of a GPU, and nothing here knows what an operation costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.layout import layout_of
from fusewise.costmodel.lookups import sought_along
from fusewise.costmodel.windings import Winding, windings_of
from fusewise.schedule.problem import HALVES, Node, Problem

#: Iterations for each thread from which Inductor runs a loop nest on several
#: (``config.cpp.min_chunk_size``).
CHUNK: Final = 512
#: Turns of a reduction, for each turn of the loops around it, beyond which it is shared instead.
_LONG: Final = 300
#: Accesses that jump, and their part of the operations, from which nothing is vectorised.
_MANY_JUMPS, _JUMP_SHARE = 35, 0.12
#: Operations from which a loop is vectorised although it is shorter than a quarter of a vector.
_WORTH: Final = 10
#: Dtypes that loops are vectorised for.
_VECTORISED: Final = HALVES | {
    "torch.float64",
    "torch.float32",
    "torch.bool",
    "torch.uint8",
    "torch.int8",
    "torch.int32",
    "torch.int64",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
}
#: Places that a window (of a pooling) has at least.
_WINDOW: Final = 3
#: Operations that tell two values apart, or two positions.
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
#: What a loop body has beside operations.
_NO_OPERATION: Final = frozenset({"output", "constant", "get_index", "ops"})
_FLOAT_BYTES: Final = 4


class NodeLoops(NamedTuple):
    """One node's loops and how its accesses move under them."""

    #: Extents of the loops that turn more than once, outermost first.
    loops: tuple[int, ...]
    #: How many of these are outside its reduction.
    outer: int
    #: Turns of all loops, and of those outside the reduction.
    total: int
    rows: int
    reduces: bool
    #: Its dtype of two bytes, "" where it has none or several.
    low: str
    #: Whether it can be vectorised at all.
    vectors: bool
    #: Accesses that go on by one element, and by more, with each loop; of these each load counts.
    along: tuple[int, ...]
    jumps: tuple[float, ...]
    #: Loops that an access winds along, how, by how many elements it goes on there, and how often
    #: it is loaded.
    wound: tuple[tuple[int, Winding, int, float], ...]
    #: Elements from one turn of each loop to the next, by access (buffer and index); none where
    #: the index cannot be read.
    steps: Mapping[tuple[str, str], tuple[int, ...]]
    #: Whether masks stay as they are along the innermost loop: what is read under them moves by
    #: whole turns of it.
    still: bool
    #: For each loop, whether what is looked up may be elsewhere from one turn of it to the next.
    sought: tuple[bool, ...]
    operations: int


class Nest(NamedTuple):
    """How the loops of some nodes are written."""

    #: Extents of its loops.
    loops: tuple[int, ...]
    #: Loops that are vectorised: none, one, or the two sides of a tile that is transposed; the one
    #: that vectors lie along comes last.
    tiled: tuple[int, ...]
    #: Elements of a vector; 1 where there is none.
    lanes: int
    #: Turns in all, those of a vector counting one.
    steps: float
    #: Threads that share it evenly; 1 where it is not shared.
    workers: float
    #: Whether vectors lie along what is reduced.
    reduced: bool
    #: Part of the vectors that are not full: ends of rows. Of a tile that is transposed, how many
    #: there are across that are not full, for each vector.
    partial: float = 0.0
    across: float = 0.0
    #: Times that the innermost loop starts, on the busiest thread.
    starts: float = 1.0
    #: The innermost of the loops that threads share; -1 where none is.
    cut: int = -1
    #: How often threads are sent off for it: once, or in each turn of the loops around those that
    #: they share.
    sent: float = 1.0

    @property
    def shared(self) -> bool:
        """Whether several threads share it."""
        return self.cut >= 0


def node_loops(node: Node, problem: Problem) -> NodeLoops:
    """The loops of a node of ``problem``."""
    loops = tuple(extent for extent in (*node.ranges[0], *node.ranges[1]) if extent > 1)
    along, jumps = [0] * len(loops), [0.0] * len(loops)
    counts = dict(node.ops)
    # Where a body loads some element again it is not told which.
    each = max(counts.get("load", 0) / max(len(node.reads), 1), 1.0)
    dtypes = set()
    moves: dict[tuple[str, str], tuple[int, ...]] = {}
    origins = set()
    still = True
    halves = 0
    wound: list[tuple[int, Winding, int, float]] = []
    for access, often in (*((a, each) for a in node.reads), *((a, 1.0) for a in node.writes)):
        buffer = problem.buffer_by_name.get(access.buffer)
        if buffer is not None and buffer.dtype:
            dtypes.add(buffer.dtype)
            halves += buffer.dtype in HALVES
        layout = layout_of(access, loops)
        if layout is None:
            continue
        # Neighbours that are gone through backwards are none to a vector.
        backwards = len(loops) - 1 if access.stride < 0 else -1
        origins.add(layout.origin)
        if layout.steps and layout.steps[-1]:
            still = still and layout.origin % loops[-1] == 0
        moves[access.buffer, access.index] = tuple(
            -step if i == backwards else step for i, step in enumerate(layout.steps)
        )
        for i, step in enumerate(layout.steps):
            if step == 1 and i != backwards:
                along[i] += 1
            elif step:
                jumps[i] += often
        for i, winding in enumerate(windings_of(access, loops)):
            if winding.divided:
                wound.append((i, winding, layout.steps[i], often))
    low = dtypes & HALVES
    # What computes a single element has no vectors for masks to stay as they are along.
    many = bool(loops) and len(origins) >= _WINDOW
    return NodeLoops(
        loops=loops,
        outer=sum(extent > 1 for extent in node.ranges[0]),
        total=node.numel * node.rnumel,
        rows=node.numel,
        reduces=node.rnumel > 1,
        low=next(iter(low)) if len(low) == 1 else "",
        vectors=node.kind not in ("scan", "sort") and dtypes <= _VECTORISED,
        along=tuple(along),
        jumps=tuple(jumps),
        wound=tuple(wound),
        steps=moves,
        still=(many and still)
        or _told_by_outer(node, [moves.get((a.buffer, a.index)) for a in node.reads]),
        sought=sought_along(node, problem, moves, len(loops)),
        operations=sum(
            count
            for name, count in node.ops
            if name not in _NO_OPERATION and not name.startswith("masked_subblock")
        )
        # What is loaded or stored in two bytes is converted, whether the graph says so or not.
        + max(halves - counts.get("to_dtype", 0), 0),
    )


def _told_by_outer(node: Node, read: Sequence[tuple[int, ...] | None]) -> bool:
    """Whether positions in an outer loop, along which nothing is read, tell where results lie.

    So it is with gradients of a slice: everywhere but in one place they are 0.
    """
    counts = dict(node.ops)
    positions = counts.get("index_expr", 0)
    compared = sum(counts.get(name, 0) for name in COMPARISONS)
    if not positions or compared > positions or not all(read):
        return False
    moved = [any(steps) for steps in zip(*read, strict=True)]
    return len(moved) > 1 and moved[-1] and not all(moved)


def main_of(nodes: Sequence[NodeLoops]) -> NodeLoops:
    """The node whose loops all of them run under."""
    if len(nodes) == 1:
        return nodes[0]
    return max(nodes, key=lambda n: (n.reduces, n.total, len(n.loops)))


def nest_of(
    nodes: Sequence[NodeLoops], threads: int, vector_bytes: int, most: int | None = None
) -> Nest:
    """How nodes that run under the same loops are written.

    Args:
        nodes: at least one.
        threads: that the program may use.
        vector_bytes: that an instruction takes.
        most: how many of the outer loops may be shared; None for all, where nothing is done
            beside under them.
    """
    main = main_of(nodes)
    loops = main.loops
    if not loops:
        return Nest(loops, (), 1, float(main.total), 1.0, False)
    low = {node.low for node in nodes}
    lanes = full = vector_bytes // _FLOAT_BYTES
    if len(low) == 1 and "" not in low:
        lanes *= 2
    tiled = _tiled(main, nodes, lanes)
    if lanes > full and any(loops[i] < lanes for i in tiled):
        lanes = full
    steps, partial, across = float(main.total), 0.0, 0.0
    if tiled:
        # Of a tile that is transposed each row is a vector.
        length = loops[tiled[-1]]
        vectors = -(-length // lanes)
        steps = steps / length * vectors
        partial = 1.0 / vectors if length % lanes else 0.0
        if len(tiled) > 1 and loops[tiled[0]] % lanes:
            across = length / loops[tiled[0]] / vectors
    cut, workers, sent = _spread(main, tiled, lanes, threads, most)
    starts = main.total / loops[-1] / workers
    if tiled and tiled[-1] < len(loops) - 1:
        starts /= min(lanes, loops[tiled[-1]])
    reduced = bool(tiled) and tiled[-1] >= main.outer
    return Nest(
        loops,
        tiled,
        lanes if tiled else 1,
        steps,
        workers,
        reduced,
        partial,
        across,
        starts,
        cut,
        sent,
    )


def _moves(
    main: NodeLoops, nodes: Sequence[NodeLoops], lanes: int
) -> tuple[list[int], list[float], bool]:
    """Accesses that go on by one with each loop, those that jump, and whether vectors of ``lanes``
    elements break where one winds along the innermost.
    """
    along, jumps = list(main.along), list(main.jumps)
    broken = False
    for node in nodes:
        if node.loops == main.loops:
            if node is not main:
                along = [one + other for one, other in zip(along, node.along, strict=True)]
                jumps = [one + other for one, other in zip(jumps, node.jumps, strict=True)]
            for i, winding, step, often in node.wound:
                if winding.breaks(lanes):
                    broken |= i == len(along) - 1
                    along[i] -= step == 1
                    jumps[i] += often if step in (0, 1) else 0.0
        elif node.total == main.total and node.along and node.along[-1]:
            # What is one loop to this node is several of them.
            along[-1] += node.along[-1]
            jumps = [*(count + node.along[-1] for count in jumps[:-1]), jumps[-1]]
    return along, jumps, broken


def _tiled(main: NodeLoops, nodes: Sequence[NodeLoops], lanes: int) -> tuple[int, ...]:
    """Positions of the loops that are vectorised (``TilingSelect.select_tiling``)."""
    if not all(node.vectors for node in nodes):
        return ()
    along, jumps, broken = _moves(main, nodes, lanes)
    last = len(along) - 1
    contiguous = [i for i, count in enumerate(along) if count]
    only = [i for i in contiguous if not jumps[i]]
    sides = len(contiguous) == 2 and contiguous[-1] == last  # noqa: PLR2004 - of a tile
    if sides and not only and not broken:
        # Vectors do not lie along what is reduced (``CppTile2DKernel.set_ranges``).
        return tuple(contiguous if last < main.outer else reversed(contiguous))
    if only:
        at = only[-1]
    elif contiguous:
        at = max(contiguous, key=lambda i: (along[i], i))
    else:
        at = last
    operations = sum(node.operations for node in nodes)
    # Which of several loads is done again is not known: the likeliest is that it is one of most,
    # and of as many one that does not jump.
    jumping = math.ceil(jumps[at] - 0.5)
    if jumping >= _MANY_JUMPS or jumping >= _JUMP_SHARE * max(operations, 1):
        return ()
    short = main.loops[at] < lanes / 4
    return () if short and not main.reduces and operations < _WORTH else (at,)


def _spread(
    main: NodeLoops, tiled: Collection[int], lanes: int, threads: int, most: int | None
) -> tuple[int, float, float]:
    """The innermost loop that threads share, -1 if none, how many share the nest evenly, and how
    often they are sent off for it.
    """
    if threads <= 1:
        return -1, 1.0, 1.0
    loops = main.loops
    starts = [-(-extent // lanes) if i in tiled else extent for i, extent in enumerate(loops)]
    begin, end = (0, main.outer) if main.outer else (0, len(loops))
    if 0 < main.outer < len(loops):
        turns = [extent // lanes if i in tiled else extent for i, extent in enumerate(loops)]
        # Rows that do not fill a vector count as none; where there are several such and more is
        # done with them, threads would be sent off for each, which the compiler does not do.
        again = most is not None and not all(turns[:end]) and math.prod(starts[:end]) > 1
        if math.prod(turns[:end]) * _LONG < turns[end] and not again:
            begin, end = end, len(loops)
    if most is not None:
        end = min(end, begin + most)
    left, parts, shares = float(main.total), 1, 1
    at = begin
    while at < end and parts < 2 * threads and parts != threads and left // threads >= CHUNK:
        parts *= loops[at]
        shares *= starts[at]
        left /= loops[at]
        at += 1
    if at == begin:
        return -1, 1.0, 1.0
    return at - 1, shares / -(-shares // threads), float(math.prod(starts[:begin]))
