"""What one node, and the device, put into the features on their own.

Nothing here looks at two nodes at once; how the accesses of different nodes meet is the business
of ``fusewise.costmodel.features``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from fusewise.costmodel.atomics import Updates
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.geometry import STAYS, Walk, walk
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.means import loop_powers
from fusewise.costmodel.operations import (
    CLASSES,
    INDEX_REDUCTIONS,
    PLAIN_REDUCTIONS,
    SORTS,
    operation_class,
    operation_weight,
    shared_by_angles,
)
from fusewise.costmodel.written_once import operations_of
from fusewise.schedule.problem import Node

#: Threads of a CUDA block that share one reduction.
_BLOCK: Final = 1024
_NO_WIDTH: Final = 4
#: Bytes of elements that are computed with as they are; narrower ones are converted.
_WHOLE: Final = 4
#: Operations that keep a place that is looked up within bounds, classes of those that tell it, and
#: how many of these, of arithmetic, blend each value that was loaded instead.
_BOUNDS: Final = frozenset({"maximum", "minimum"})
_ON_PLACES: Final = ("arithmetic", "selection", "indexing", "conversion")
_BLENDED: Final = 1.5
#: What costs more than an addition in an index: quotients and remainders, and bounds.
_DIVIDED: Final = re.compile(r"((?:ModularIndexing\([^()]*, |[^()]*//)(\d+))")
_BOUNDED: Final = re.compile(r"(?:Min|Max)\([^()]*")

#: What is mostly done to the sum or the variance of a row.
_OF_ROWS: Final = frozenset({"log", "log1p", "sqrt", "rsqrt", "reciprocal"})
#: Classes of what is done to every element of a row in any case, and of what is done once for each
#: position along it where nothing else differs.
_OF_EACH: Final = frozenset({"indexing", "random", "reducing"})
_BY_PLACE: Final = frozenset({"arithmetic", "selection", "conversion"})
#: Columns that are a sum over a group's nodes.
SUMMED: Final = (
    "iterations",
    "nodes",
    "pointwise",
    "reductions",
    "plain_reductions",
    "index_reductions",
    "fused_reductions",
    "outer_reductions",
    "scans",
    "other_nodes",
    *CLASSES,
    "flops",
    "welford",
    "means",
    "online_softmax",
    "atomic_updates",
    "atomic_halves",
    "atomic_turns",
    "address",
)
#: Columns that are a maximum over the nodes.
LARGEST: Final = (
    "numel",
    "rnumel",
    "depth",
    "inner_stride",
    "width_max",
    "parallel",
    "rows",
    "column_run",
    "atomic_hits",
    "atomic_crowd",
    "loop_power",
    "next_power",
)
#: Columns that are a minimum over the nodes.
SMALLEST: Final = ("smallest_iterations", "inner_extent", "width_min")
#: What finds out of the offset in each window where the largest element was, and how many
#: divisions of 32 bits that takes: offsets are of 64 bits.
_OFFSETS: Final = "low_memory_max_pool_offsets_to_indices"
_OF_OFFSET: Final = 12.0
_TRANSCENDENTAL: Final = CLASSES.index("transcendental")
_SORT_COLUMN: Final = {name: i for i, names in enumerate(SORTS.values()) for name in names}


def sorts_of(node: Node) -> list[float]:
    """The columns of ``SORTS`` for one node, of all its iterations."""
    found = [0.0] * len(SORTS)
    iterations = float(node.numel * node.rnumel)
    for name, count in operations_of(node):
        column = _SORT_COLUMN.get(name)
        if column is not None:
            found[column] += count * iterations
    return found


def node_sums(node: Node, updates: Updates) -> list[float]:
    """The columns of ``SUMMED`` for one node, ``updates`` of which are atomic."""
    iterations = float(node.numel * node.rnumel)
    operations = [0.0] * len(CLASSES)
    weight = _weights(node)
    counts = operations_of(node)
    for name, count in counts:
        which = operation_class(name)
        if which >= 0:
            operations[which] += count * iterations * weight(name)
    operations[_TRANSCENDENTAL] -= iterations * shared_by_angles(dict(counts))
    reduction = node.kind == "reduction"
    plain = reduction and node.reduction_type in PLAIN_REDUCTIONS
    index = reduction and node.reduction_type in INDEX_REDUCTIONS
    outer = reduction and largest_read(node).across
    scan = node.kind in ("scan", "sort")
    return [
        iterations,
        1.0,
        node.kind == "pointwise",
        reduction,
        plain,
        index,
        reduction and not plain and not index,
        outer,
        scan,
        not reduction and not scan and node.kind != "pointwise",
        *operations,
        float(node.flops),
        iterations * node.reduction_type.startswith("welford"),
        0.0,
        iterations * node.reduction_type.startswith("online_softmax"),
        updates.updates,
        updates.halves,
        updates.turns,
        address_operations(node),
    ]


def _computes_places(node: Node) -> bool:
    """Whether a node looks up places that it tells from positions in its loops."""
    accesses = (*node.reads, *node.writes)
    return any(a.looked_up for a in accesses) and "index_expr" in dict(node.ops)


def _weights(node: Node) -> Callable[[str], float]:
    """What each operation of a node takes, by name; bounds of places are of whole numbers."""
    if _computes_places(node):
        return lambda name: 1.0 if name in _BOUNDS else operation_weight(name)
    return operation_weight


def places_of(node: Node) -> FloatArray | None:
    """Operations by class, as in ``CLASSES``, on the places that a node computes to look up; [C].

    A body is kept as counts alone: all that is no work on what was loaded is taken for work on
    places. None where none are computed.
    """
    if not _computes_places(node):
        return None
    counts = dict(operations_of(node))
    found = dict.fromkeys(_ON_PLACES, 0.0)
    weight = _weights(node)
    for name, count in counts.items():
        which = operation_class(name)
        if which >= 0 and CLASSES[which] in found:
            found[CLASSES[which]] += count * weight(name)
    found["arithmetic"] -= _BLENDED * counts.get("load", 0.0)
    found["conversion"] -= sum(a.itemsize < _WHOLE for a in (*node.reads, *node.writes))
    size = float(node.numel * node.rnumel)
    return np.array([max(found.get(kind, 0.0), 0.0) * size for kind in CLASSES])


def row_operations(node: Node, resting: int, *, wholly: bool = False) -> FloatArray:
    """Operations by class, as in ``CLASSES``, that a kernel which goes along rows does once a row.

    Rows have sums and variances of their own, of which logarithms and roots are found; [C], over
    all iterations but one of each row.

    Args:
        node: of the kernel.
        resting: values that it reads and that stay as they are along a row: each has one at most.
        wholly: whether all that it reads does: only positions differ then along a row, which are
            compared and chosen by, as the label of a loss is.
    """
    if node.computed:
        return _told_of_rows(node)
    found = [0.0] * len(CLASSES)
    row = node.rnumel if node.rnumel > 1 else (node.ranges[0] or (1,))[-1]
    # Of an empty tensor a loop has no turns.
    again = float(node.numel * node.rnumel) * (1.0 - 1.0 / max(row, 1))
    left = float(resting)
    counts = operations_of(node)
    positions = dict(counts).get("index_expr", 0.0)
    for name, count in counts:
        which = operation_class(name)
        if which < 0 or CLASSES[which] in _OF_EACH:
            continue
        taken = 0.0
        if wholly:
            taken = max(count - positions, 0.0) if CLASSES[which] in _BY_PLACE else count
        elif name in _OF_ROWS and left > 0.0:
            taken = min(count, left)
            left -= taken
        found[which] += taken * operation_weight(name) * again
    return np.array(found)


def _told_of_rows(node: Node) -> FloatArray:
    """The same where the node says along which of its loops it computes what."""
    outer, inner = ([n for n in extents if n > 1] for extents in node.ranges)
    turning = len(outer) + len(inner)
    length = math.prod(inner) if inner else outer[-1] if outer else 1
    first = len(outer) if inner else turning - 1
    row = (1 << turning) - (1 << max(first, 0))
    again = float(node.numel * node.rnumel) * (1.0 - 1.0 / max(length, 1))
    found = np.zeros(len(CLASSES))
    for each in node.computed:
        which = operation_class(each.name)
        if which >= 0 and not each.along & row:
            found[which] += each.count * operation_weight(each.name) * again
    return found


def address_operations(node: Node) -> float:
    """Divisions, remainders and bounds that the indices of a node take, over all iterations.

    Each is done once, in however many indices it is; by a power of two it costs nothing.
    """
    dear = frozenset[str]().union(*(_dear(a.index) for a in (*node.reads, *node.writes)))
    count = float(len(dear))
    if any(_OFFSETS in origin for origin in node.origins):
        count += _OF_OFFSET * dict(node.ops).get("indirect_indexing", 0)
    return count * node.numel * node.rnumel


@lru_cache(maxsize=1 << 16)
def _dear(text: str) -> frozenset[str]:
    """What is dear in one index, each in words of its own."""
    index, _, sizes = text.partition(" : ")
    # A flat position is taken apart into the turns of each loop.
    loops = sizes.split(",")[1:]
    dear = [f"{i} {n}" for i, n in enumerate(reversed(loops)) if not _is_power(n)]
    if "(" in index or "//" in index:
        dear += [found for found, number in _DIVIDED.findall(index) if not _is_power(number)]
        dear += _BOUNDED.findall(index)
    return frozenset(dear)


def _is_power(size: str) -> bool:
    """Whether a size is a power of two; one that is only known when it runs is none."""
    n = int(size) if size.strip().isdigit() else 3
    return n & (n - 1) == 0


def node_extremes(node: Node, updates: Updates) -> list[float]:
    """The columns of ``LARGEST``, then those of ``SMALLEST`` negated, for one node,
    ``updates`` of which are atomic."""
    loops = [*node.ranges[0], *node.ranges[1]]
    accesses = [a for a in (*node.reads, *node.writes) if a.kind != "opaque"]
    widths = [a.itemsize for a in accesses] or [_NO_WIDTH]
    stride = max((walk(a, loops).step for a in accesses), default=0)
    iterations = node.numel * node.rnumel
    reduction = node.kind == "reduction"
    read = largest_read(node)
    largest = [
        node.numel,
        node.rnumel,
        len(loops),
        stride,
        max(widths),
        iterations,
        node.numel if reduction else 0,
        read.run if reduction and read.across else 0,
        updates.hits,
        updates.crowd,
        *loop_powers(node),
    ]
    smallest = [iterations, loops[-1] if loops else 1, min(widths)]
    return [float(v) for v in largest] + [-float(v) for v in smallest]


def largest_read(node: Node) -> Walk:
    """How the read of a node that moves the most bytes walks; without a read, one that stays."""
    largest = max(node.reads, key=lambda a: a.bytes, default=None)
    return STAYS if largest is None else walk(largest, (*node.ranges[0], *node.ranges[1]))


def at_once(iterations: FloatArray, rnumel: FloatArray, profile: DeviceProfile) -> FloatArray:
    """Iterations of groups that may run at the same time, on each of the device's lanes; [n].

    A kernel loops over the largest of its nodes, and the others are done on the way: what comes
    after a sum over a row is done where the row was summed. Rows run side by side, and on a CUDA
    device so do the parts of one row that fit a block.

    Args:
        iterations: of the largest node of each group.
        rnumel: of its reductions, 1 where it has none.
        profile: the device.
    """
    rows = iterations / np.maximum(rnumel, 1.0)
    shared = np.minimum(rnumel, _BLOCK) if profile.kind == "cuda" else 1.0
    return rows * shared / lanes(profile)


def lanes(profile: DeviceProfile) -> int:
    """What iterations are spread over: threads of a CPU, multiprocessors of a CUDA device."""
    return max(profile.cores if profile.kind == "cuda" else profile.threads, 1)


def device_amounts(profile: DeviceProfile) -> dict[str, float]:
    """The device's columns as plain numbers (no logs), in the order of the table."""
    return {
        "is_cuda": float(profile.kind == "cuda"),
        "device_threads": float(profile.threads),
        "device_cores": float(profile.cores),
        "device_copy": profile.copy_gbs,
        "device_cache": profile.cache_gbs or profile.copy_gbs,
        "device_gather": profile.gather_gbs,
        "device_flops": profile.flops_gfs,
        "device_transcendental": profile.transcendental_gops,
        "device_launch": profile.launch_us,
        "device_cache_bytes": float(profile.cache_bytes),
    }
