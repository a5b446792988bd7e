"""Features of groups: what decides a kernel's time, from the problem alone.

One :class:`Featurizer` serves one problem on one device. It never compiles, measures or predicts.
The order in which a group's nodes are named is the one in which they are generated; that of a set
is the compiler's own. It matters only to kernels that loop over reductions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import reduce
from itertools import accumulate

import numpy as np

from fusewise.costmodel.atomics import updates_counted, updates_of_loops
from fusewise.costmodel.blocks import WARP, Hint
from fusewise.costmodel.cpu_work import WORK, Work
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.dimensions import Mover
from fusewise.costmodel.done_once import CLASSES_SUMMED, DoneOnce, Kernel, columns_at
from fusewise.costmodel.feature_table import (
    COLUMN,
    FEATURES,
    FEATURES_DIGEST,
    FEATURES_VERSION,
    LOGARITHMIC,
    Feature,
)
from fusewise.costmodel.frames import Frames
from fusewise.costmodel.hints import reduction_hints
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.layout import SECTOR_BYTES
from fusewise.costmodel.lookups import each_once
from fusewise.costmodel.means import (
    EACH_NODE,
    MAIN_NODE,
    OF_ACCESSES,
    SHAPE,
    access_means,
    node_told,
    shape_of,
)
from fusewise.costmodel.meeting import Meeting, Met
from fusewise.costmodel.operations import CLASSES, SORTS
from fusewise.costmodel.overwriting import Overwriting
from fusewise.costmodel.partials import (
    LARGEST,
    SMALLEST,
    SUMMED,
    at_once,
    device_amounts,
    lanes,
    node_extremes,
    node_sums,
    sorts_of,
)
from fusewise.costmodel.tiles import holds_rows, tile_of
from fusewise.costmodel.touches import DISTINCT, MET, wanted
from fusewise.costmodel.traffic import Grid
from fusewise.costmodel.updates import updates_of_warps
from fusewise.schedule.errors import PlanError
from fusewise.schedule.problem import Node, Problem, mask_of

__all__ = [
    "COLUMN",
    "FEATURES",
    "FEATURES_DIGEST",
    "FEATURES_VERSION",
    "Feature",
    "Featurizer",
]


_OPERATIONS_AT = columns_at((*CLASSES, "flops"))
_PASSES, _LOADS = MET.index("passes"), MET.index("loads")
_DISTINCT_AT = columns_at(DISTINCT)
_TILE = (
    "programs",
    "turns",
    "tile",
    "tile_along",
    "tile_across",
    "tile_outer",
    "warps",
    "each_thread",
    "persistent",
    "padding",
    "even",
    "tuned",
    "waves",
    "rounds",
    "sector_bytes",
    "stored_sectors",
    "issued",
    "wavefronts",
    "lines",
    "requests",
    "spread",
    "row_threads",
    "combined",
    "combining",
    "distinct_reductions",
    "round_bytes",
    "turn_loads",
    *SHAPE,
)
_ITERATIONS = SUMMED.index("iterations")
_ADDRESS = SUMMED.index("address")
_PARTS = (
    slice(len(SUMMED)),
    slice(len(SUMMED), len(SUMMED) + len(SORTS)),
    slice(len(SUMMED) + len(SORTS), None),
)
_SHARES_AT = columns_at(("narrow", "half", "wide", "unaligned"))
#: What is put together for a group, and of a CPU in place of a tile what its loops do.
_TOLD = (*SUMMED, *EACH_NODE, *MAIN_NODE, *SORTS, *LARGEST, *SMALLEST, *MET, *OF_ACCESSES)
_TOLD_OF = {"cuda": (*_TOLD, "in_place", *_TILE), "cpu": (*_TOLD, "in_place", *WORK)}
#: Where each column stands in this; behind the last where it does not.
_FROM = {
    kind: np.array([names.index(name) if name in names else len(names) for name in COLUMN])
    for kind, names in _TOLD_OF.items()
}
_LOGARITHMIC_AT = np.array(LOGARITHMIC, dtype=np.intp)
_DEVICE_AT = columns_at(name for name in COLUMN if name == "is_cuda" or name.startswith("device_"))


#: What it takes threads to put together two results of a reduction, in sums: of the values that it
#: keeps, of what is compared with care for what is no number, of what is compared with its place.
_VALUES = {
    "welford_reduce": 3,
    "welford_combine": 3,
    "online_softmax_reduce": 2,
    "max": 1.4,
    "min": 1.4,
    "argmax": 4.5,
    "argmin": 4.5,
}
#: The same of a step of a sort.
_SWAP = 13.0


def _compared(node: Node) -> float:
    """What a node that sorts its rows compares and swaps, in sums; 0 of any other.

    A bitonic sort of 2^k elements has k (k + 1) / 2 steps, and rows are filled up to that.
    """
    if node.kind != "sort":
        return 0.0
    k = max(node.rnumel - 1, 1).bit_length()
    filled = float(1 << k)
    return _SWAP * node.numel * filled * k * (k + 1) / 2


class Featurizer:
    """Features of groups of one problem's nodes on one device."""

    def __init__(self, problem: Problem, profile: DeviceProfile) -> None:
        self.problem = problem
        self.profile = profile
        # Whoever must run earlier has fewer ancestors, so this order is topological.
        ancestors = problem.ancestors
        order = sorted(range(len(problem.nodes)), key=lambda i: (ancestors[i].bit_count(), i))
        counted = (updates_counted(problem.nodes[i], problem) for i in order)
        nodes = [each_once(wanted(node), problem) for node in counted]
        self._rank = {node.name: i for i, node in enumerate(nodes)}
        self._order = [node.order for node in nodes]
        self._meeting = Meeting(problem, profile, nodes, self._rank)
        blocks = profile.kind == "cuda"
        self._work = None if blocks else Work(problem, profile, nodes)
        self._overwriting = Overwriting(problem, nodes, self._rank)
        self._frames = Frames(nodes, problem, self._meeting.followed, blocks=blocks)
        hints = reduction_hints(problem, profile.cores) if blocks else {}
        self._reduced, self._scanned = (
            [
                (node.numel, node.rnumel, hints[node.name])
                if node.kind in kinds and hints
                else None
                for node in nodes
            ]
            for kinds in (("reduction",), ("scan", "sort"))
        )
        self._sorted = [_compared(node) for node in nodes]
        # Bitsets, so that a group tells at once whether it has such a node.
        self._reducing = mask_of(i for i, found in enumerate(self._reduced) if found)
        self._scanning = mask_of(i for i, found in enumerate(self._scanned) if found)
        self._sorting = mask_of(i for i, found in enumerate(self._sorted) if found)
        self._kinds = [
            (node.reduction_type, *((a.buffer, a.index) for a in node.reads)) for node in nodes
        ]
        updates = [
            updates_of_warps(node, problem, profile.threads)
            if blocks
            else updates_of_loops(node, profile.threads, along=bool(followed))
            for node, followed in zip(nodes, self._meeting.followed, strict=True)
        ]
        sums = [node_sums(node, own) for node, own in zip(nodes, updates, strict=True)]
        self._sums = np.array(sums, dtype=np.float64)
        told = [
            node_told(node, own[CLASSES_SUMMED].tolist(), float(own[_ADDRESS]))
            for node, own in zip(nodes, self._sums, strict=True)
        ]
        # What is added up of the nodes of a group: sums, sorts, and what nodes tell.
        self._added = np.array(
            [
                [*own, *sorts_of(node), *each]
                for own, node, each in zip(sums, nodes, told, strict=True)
            ],
            dtype=np.float64,
        )
        self._once = DoneOnce(nodes, self._kinds, self._sums, self._frames) if blocks else None
        # Minima are kept negated, so that one reduction finds both, and the iterations of the
        # largest node.
        extremes = [
            [*node_extremes(node, updated), own[_ITERATIONS]]
            for node, updated, own in zip(nodes, updates, sums, strict=True)
        ]
        self._extremes = np.array(extremes, dtype=np.float64)
        self._device = np.array(list(device_amounts(profile).values()))

    def group(self, names: Collection[str]) -> FloatArray:
        """Features of one group, shape [F]. See :meth:`batch`."""
        row: FloatArray = self.batch([names])[0]
        return row

    def key(self, names: Collection[str]) -> Hashable:
        """What is equal for groups whose features are: their nodes, and their order if it counts.

        It does where a kernel of three nodes or more loops over reductions. Names that the problem
        does not have make a key as well.
        """
        if not isinstance(names, Sequence) or len(names) < 3:  # noqa: PLR2004
            return frozenset(names)
        ids = [self._rank.get(name, -1) for name in names]
        if min(ids) < 0:
            return frozenset(names)
        _, loops = self._reductions(ids, mask_of(ids))
        return tuple(names) if loops else frozenset(names)

    def batch(self, groups: Sequence[Collection[str]]) -> FloatArray:
        """Features of ``groups`` (names of nodes), shape [n, F], columns as in FEATURES.

        Raises:
            PlanError: a group is empty or names a node that the problem does not have.
        """
        if not groups:
            return np.empty((0, len(FEATURES)))
        kernels = [self._kernel(names) for names in groups]
        members = [kernel.ids for kernel in kernels]
        flat = np.array([i for ids in members for i in ids], dtype=np.intp)
        starts = [0, *accumulate(len(ids) for ids in members[:-1])]
        added = np.add.reduceat(self._added.take(flat, axis=0), starts)
        summed, sorts, told = (added[:, part] for part in _PARTS)
        if self._once is not None:
            for row, kernel in zip(summed, kernels, strict=True):
                self._once.take_out(row, kernel)
            np.maximum(summed[:, CLASSES_SUMMED], 0.0, out=summed[:, CLASSES_SUMMED])
        extremes = np.maximum.reduceat(self._extremes.take(flat, axis=0), starts)
        met = [self._meeting.columns(kernel.ids, self._loops(kernel)) for kernel in kernels]
        columns = np.array([each.columns for each in met])
        in_place = np.array(
            [
                self._overwriting.bytes(kernel.ids, kernel.mask, each)
                for kernel, each in zip(kernels, met, strict=True)
            ]
        )
        if self._work is None:
            tiles = [
                self._tile(kernel, int(numel), each)
                for kernel, numel, each in zip(kernels, extremes[:, 0].tolist(), met, strict=True)
            ]
            means = access_means([(movers, grid) for _, movers, grid in tiles])
            own = [found for found, _, _ in tiles]
        else:
            framed = [
                self._frames.kernel(ids, each) for ids, each in zip(members, met, strict=True)
            ]
            means = access_means([(movers, None) for _, movers, _ in framed])
            distinct = columns[:, : len(DISTINCT)].sum(axis=1)
            fresh = np.maximum(distinct - in_place, 0.0).tolist()
            own = [
                self._work.columns(ids, each, size, over)
                for ids, each, size, over in zip(
                    members, met, fresh, in_place.tolist(), strict=True
                )
            ]
        parts = (
            summed,
            told[:, 1 : 1 + len(EACH_NODE)],
            told[:, 1 + len(EACH_NODE) :] / told[:, :1],
            sorts / np.maximum(extremes[:, -1:], 1.0),
            extremes[:, : len(LARGEST)],
            -extremes[:, len(LARGEST) : -1],
            columns,
            means,
            in_place[:, None],
            np.array(own, dtype=np.float64),
            np.zeros((len(groups), 1)),
        )
        rows = np.concatenate(parts, axis=1).take(_FROM[self.profile.kind], axis=1)
        rows[:, _DEVICE_AT] = self._device
        self._derive(rows)
        rows[:, _LOGARITHMIC_AT] = np.log2(1.0 + rows[:, _LOGARITHMIC_AT])
        return rows

    def _tile(
        self, kernel: Kernel, numel: int, met: Met
    ) -> tuple[tuple[float, ...], list[Mover], Grid]:
        """The columns of ``_TILE`` of a kernel, its accesses and its blocks.

        ``numel`` are the results of its largest node.
        """
        ids, rows_of = kernel.ids, kernel.reductions
        scans = []
        if kernel.mask & self._scanning:
            scans = [r for r in (self._scanned[i] for i in ids) if r is not None]
            rows_of = [*rows_of, *scans]
        loads = int(met.columns[_LOADS])
        shapes, movers, steps = self._frames.kernel(ids, met)
        cores = self.profile.cores
        tile = tile_of(numel, rows_of, movers, shapes, loads, cores, steps=steps, scans=bool(scans))
        # Two results of one reduction (a mean and its variance) are found together.
        kinds = dict.fromkeys(self._kinds[i] for i in ids if self._reduced[i])
        weight = sum(_VALUES.get(str(kind[0]), 1) for kind in kinds)
        if kinds and self._once is not None:
            for i in self._once.alone(kernel):
                weight -= _VALUES[str(self._kinds[i][0])] - 1
        sorts = 0.0
        if kernel.mask & self._sorting:
            # The values and their places come of one sort.
            once = {self._kinds[i]: self._sorted[i] for i in ids if self._sorted[i]}
            sorts = sum(once.values())
        steps_each = math.log2(tile.row_threads) if tile.row_threads > 1 else 0.0
        met_rows = rows_of[0][0] if rows_of else 0
        # Loops of one turn are none: what a later one waits for lies beside it.
        again = 1 if tile.turns == 1 or tile.persistent else met.columns[_PASSES]
        columns = (
            tile.programs,
            tile.turns,
            tile.elements,
            tile.along,
            tile.across,
            tile.outer,
            tile.warps,
            tile.elements / (tile.warps * WARP),
            tile.persistent,
            tile.padding,
            tile.even,
            tile.tuned,
            tile.waves,
            tile.waves * tile.turns * again,
            tile.sectors * SECTOR_BYTES,
            tile.stored * SECTOR_BYTES,
            tile.issued,
            tile.wavefronts,
            tile.lines,
            tile.requests,
            tile.spread,
            tile.row_threads,
            weight * met_rows * tile.row_threads * steps_each + sorts,
            weight * tile.waves * steps_each,
            len(kinds),
            tile.sectors * SECTOR_BYTES / (tile.waves * tile.turns),
            tile.turn_loads,
            *shape_of(tile),
        )
        return columns, movers, tile.grid

    def _kernel(self, names: Collection[str]) -> Kernel:
        try:
            named = list(dict.fromkeys(self._rank[name] for name in names))
        except KeyError as error:
            raise PlanError(
                f"no node {error.args[0]!r} in this graph of {len(self._rank)} nodes",
                subject=f"group {sorted(names)}",
                remedy="use a plan that was made for this graph",
            ) from None
        if not named:
            raise PlanError(
                "the group has no nodes", subject="group", remedy="leave empty groups out"
            )
        # What has no order is generated in the compiler's own.
        order = named if isinstance(names, Sequence) else sorted(named, key=self._order.__getitem__)
        ids, mask = sorted(named), mask_of(named)
        return Kernel(ids, order, mask, *self._reductions(ids, mask))

    def _loops(self, kernel: Kernel) -> dict[int, int] | None:
        """Which loop each node is in, where a kernel of several nodes loops over reductions."""
        if len(kernel.ids) == 1 or not kernel.loops:
            return None
        return self._meeting.loops(kernel.order)

    def _reductions(
        self, ids: Iterable[int], mask: int
    ) -> tuple[list[tuple[int, int, Hint]], bool]:
        """Results, length and hint of each reduction, and whether a kernel loops over them."""
        if not mask & self._reducing:
            return [], False
        found = [r for r in (self._reduced[i] for i in ids) if r is not None]
        return found, not holds_rows(found)

    def _derive(self, rows: FloatArray) -> None:
        """Fill the columns that follow from others. ``rows`` holds plain numbers, no logs yet."""
        column = rows.T
        distinct = rows[:, _DISTINCT_AT].sum(axis=1)
        touched = column[COLUMN["touched"]]
        # One after the other: numpy adds up a row in an order that depends on how many there are.
        operations = reduce(np.add, column[_OPERATIONS_AT])
        contiguous = column[COLUMN["read_contiguous"]] + column[COLUMN["written_contiguous"]]
        some = np.maximum(distinct, 1.0)
        column[COLUMN["distinct"]] = distinct
        np.divide(touched, some, out=column[COLUMN["reuse"]])
        np.divide(distinct - contiguous, some, out=column[COLUMN["irregular"]])
        np.divide(operations, some, out=column[COLUMN["intensity"]])
        iterations = np.maximum(column[COLUMN["iterations"]], 1.0)
        each = np.divide(operations, iterations, out=column[COLUMN["operations_each"]])
        np.multiply(each, column[COLUMN["each_thread"]], out=column[COLUMN["turn_operations"]])
        column[COLUMN["widths_mixed"]] = column[COLUMN["width_min"]] < column[COLUMN["width_max"]]
        rows[:, _SHARES_AT] /= np.maximum(touched, 1.0)[:, None]
        if self.profile.kind == "cuda":
            np.divide(column[COLUMN["sector_bytes"]], some, out=column[COLUMN["sector_ratio"]])
            lanes_issued = np.maximum(column[COLUMN["issued"]] * WARP, 1.0)
            np.divide(touched, lanes_issued, out=column[COLUMN["vector_bytes"]])
            held = column[COLUMN["programs"]] * column[COLUMN["tile"]] / lanes(self.profile)
        else:
            held = np.inf
        column[COLUMN["parallel"]] = np.minimum(
            held, at_once(column[COLUMN["parallel"]], column[COLUMN["rnumel"]], self.profile)
        )
        # What is overwritten may be more than what a kernel gets to see of it.
        room = np.maximum(distinct - column[COLUMN["in_place"]], 0.0) + column[COLUMN["cached"]]
        np.divide(room, max(self.profile.cache_bytes, 1), out=column[COLUMN["cache_fill"]])
