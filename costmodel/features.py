"""Features of groups: what decides a kernel's time, from the problem alone.

One :class:`Featurizer` serves one problem on one device. It never compiles, measures or predicts.
The order in which a group's nodes are named is the one in which they are generated; that of a set
is the compiler's own. It matters only to kernels that loop over reductions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.atomics import updates_counted, updates_of_loops
from fusewise.costmodel.blocks import WARP
from fusewise.costmodel.cpu_work import WORK, Work
from fusewise.costmodel.device import DeviceProfile
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
    places_of,
    row_operations,
    sorts_of,
)
from fusewise.costmodel.shared_work import SharedWork
from fusewise.costmodel.tiles import holds_rows, tile_of
from fusewise.costmodel.touches import DISTINCT, MET, wanted
from fusewise.costmodel.updates import updates_of_warps
from fusewise.schedule.errors import PlanError
from fusewise.schedule.problem import Node, Problem

__all__ = [
    "COLUMN",
    "FEATURES",
    "FEATURES_DIGEST",
    "FEATURES_VERSION",
    "Feature",
    "Featurizer",
]


IndexArray = npt.NDArray[np.intp]


def _columns(names: Iterable[str]) -> slice | IndexArray:
    """Where columns stand: a stretch of neighbours is written at once."""
    at = [COLUMN[name] for name in names]
    if at == list(range(at[0], at[0] + len(at))):
        return slice(at[0], at[0] + len(at))
    return np.array(at, dtype=np.intp)


_SUMMED_AT, _LARGEST_AT = _columns(SUMMED), _columns(LARGEST)
_SMALLEST_AT, _MET_AT = _columns(SMALLEST), _columns(MET)
#: What nodes that do the same do only once.
_WORK = (*CLASSES, "welford", "online_softmax", "address")
_WORK_AT = _columns(_WORK)
_WORK_IN_SUMMED = [SUMMED.index(name) for name in _WORK]
_CLASSES_AT = _columns(CLASSES)
_OPERATIONS_AT = _columns((*CLASSES, "flops"))
_PASSES = MET.index("passes")
_DISTINCT_AT = _columns(DISTINCT)
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
    *OF_ACCESSES,
)
_TILE_AT, _OF_ACCESSES_AT = _columns(_TILE), _columns(OF_ACCESSES)
_SORTS_AT, _ITERATIONS = _columns(SORTS), SUMMED.index("iterations")
_EACH_NODE_AT, _MAIN_NODE_AT = _columns(EACH_NODE), _columns(MAIN_NODE)
_CLASSES_IN_SUMMED = [SUMMED.index(name) for name in CLASSES]
_ADDRESS = SUMMED.index("address")
_LOOPS_AT = _columns(WORK)
_SHARES_AT = _columns(("narrow", "half", "wide", "unaligned"))
_LOGARITHMIC_AT = np.array(LOGARITHMIC, dtype=np.intp)
_DEVICE_AT = _columns(name for name in COLUMN if name == "is_cuda" or name.startswith("device_"))


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
#: What the first result of a reduction of several takes alone: the column of all of them, and the
#: one that it has of its own.
_FIRST_ALONE = {"welford": ("welford", "means"), "online_softmax": ("online_softmax", "")}


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
        nodes = [wanted(updates_counted(problem.nodes[i], problem)) for i in order]
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
        self._kinds = [
            (node.reduction_type, *((a.buffer, a.index) for a in node.reads)) for node in nodes
        ]
        # Results of one reduction are nodes of their own that do the same.
        first: dict[object, int] = {}
        self._twin = [
            first.setdefault((kind, node.ops, node.numel), i) if node.kind == "reduction" else i
            for i, (kind, node) in enumerate(zip(self._kinds, nodes, strict=True))
        ]
        # Whoever stores only the first of several (the mean, the maximum) computes no other.
        several = {twin for i, twin in enumerate(self._twin) if twin != i}
        self._firsts = {
            i: _FIRST_ALONE[prefix]
            for i in several
            for prefix in _FIRST_ALONE
            if nodes[i].reduction_type.startswith(prefix)
        }
        updates = [
            updates_of_warps(node, problem, profile.threads)
            if blocks
            else updates_of_loops(node, profile.threads, along=bool(followed))
            for node, followed in zip(nodes, self._meeting.followed, strict=True)
        ]
        sums = [node_sums(node, own) for node, own in zip(nodes, updates, strict=True)]
        self._sums = np.array(sums, dtype=np.float64)
        told = [
            node_told(node, own[_CLASSES_IN_SUMMED].tolist(), float(own[_ADDRESS]))
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
        self._shared = SharedWork(nodes if blocks else ())
        # Lookups of nodes with equal loops mostly go by the same places.
        self._places = [(node.ranges, places_of(node)) for node in nodes] if blocks else []
        self._of_rows = [
            row_operations(node, self._frames.resting(i), wholly=self._frames.rests(i))
            for i, node in enumerate(nodes if blocks else ())
        ]
        self._saved = {i for i, found in enumerate(self._of_rows) if found.any()}
        # Minima are kept negated, so that one reduction finds both, and the iterations of the
        # largest node.
        extremes = [
            [*node_extremes(node, updated), own[_ITERATIONS]]
            for node, updated, own in zip(nodes, updates, sums, strict=True)
        ]
        self._extremes = np.array(extremes, dtype=np.float64)
        self._device = list(device_amounts(profile).values())

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
        return frozenset(names) if min(ids) < 0 or not self._loops_over(ids) else tuple(names)

    def batch(self, groups: Sequence[Collection[str]]) -> FloatArray:
        """Features of ``groups`` (names of nodes), shape [n, F], columns as in FEATURES.

        Raises:
            PlanError: a group is empty or names a node that the problem does not have.
        """
        if not groups:
            return np.empty((0, len(FEATURES)))
        orders = [self._members(names) for names in groups]
        members = [sorted(order) for order in orders]
        flat = np.array([i for ids in members for i in ids], dtype=np.intp)
        starts = [0, *accumulate(len(ids) for ids in members[:-1])]
        rows = np.zeros((len(groups), len(FEATURES)))
        added = np.add.reduceat(self._added[flat], starts)
        rows[:, _SUMMED_AT] = added[:, : len(SUMMED)]
        if self.profile.kind == "cuda":
            for row, ids in zip(rows, members, strict=True):
                self._done_once(row, ids)
            rows[:, _CLASSES_AT] = np.maximum(rows[:, _CLASSES_AT], 0.0)
        told = added[:, len(SUMMED) + len(SORTS) :]
        rows[:, _EACH_NODE_AT] = told[:, 1 : 1 + len(EACH_NODE)]
        rows[:, _MAIN_NODE_AT] = told[:, 1 + len(EACH_NODE) :] / told[:, :1]
        extremes = np.maximum.reduceat(self._extremes[flat], starts)
        rows[:, _LARGEST_AT] = extremes[:, : len(LARGEST)]
        rows[:, _SMALLEST_AT] = -extremes[:, len(LARGEST) : -1]
        sorts = added[:, len(SUMMED) : len(SUMMED) + len(SORTS)]
        rows[:, _SORTS_AT] = sorts / np.maximum(extremes[:, -1:], 1.0)
        met = [
            self._meeting.columns(ids, self._loops(order))
            for ids, order in zip(members, orders, strict=True)
        ]
        rows[:, _MET_AT] = [each.columns for each in met]
        if self.profile.kind == "cuda":
            rows[:, _TILE_AT] = [
                self._tile(ids, row, each)
                for ids, row, each in zip(members, rows, met, strict=True)
            ]
        else:
            rows[:, _OF_ACCESSES_AT] = [
                access_means(self._frames.kernel(ids, each)[1])
                for ids, each in zip(members, met, strict=True)
            ]
        in_place = [
            self._overwriting.bytes(ids, each) for ids, each in zip(members, met, strict=True)
        ]
        rows[:, COLUMN["in_place"]] = in_place
        if self._work is not None:
            distinct = rows[:, _DISTINCT_AT].sum(axis=1)
            fresh = np.maximum(distinct - in_place, 0.0).tolist()
            rows[:, _LOOPS_AT] = [
                self._work.columns(ids, each, size, over)
                for ids, each, size, over in zip(members, met, fresh, in_place, strict=True)
            ]
        rows[:, _DEVICE_AT] = self._device
        self._derive(rows)
        rows[:, _LOGARITHMIC_AT] = np.log2(1.0 + rows[:, _LOGARITHMIC_AT])
        return rows

    def _done_once(self, row: FloatArray, ids: Sequence[int]) -> None:
        """Take out of the sums in ``row`` what nodes do together, and what none of them needs.

        Where it is taken for more than all of it, less than nought may be left of a class.
        """
        again = [i for i in ids if self._twin[i] != i and self._twin[i] in ids]
        if again:
            at = np.array(again, dtype=np.intp)
            row[_WORK_AT] -= self._sums[at][:, _WORK_IN_SUMMED].sum(axis=0)
        alike: dict[object, list[FloatArray]] = {}
        others = []
        for i in ids:
            loops, found = self._places[i]
            if found is not None:
                # What finds places is taken out by itself.
                alike.setdefault(loops, []).append(found)
            elif i not in again:
                others.append(i)
        for several in alike.values():
            if len(several) > 1:
                repeated = np.sum(several, axis=0) - np.max(several, axis=0)
                row[_CLASSES_AT] = np.maximum(row[_CLASSES_AT] - repeated, 0.0)
        shared = self._shared.repeated(others)
        if shared is not None:
            row[_CLASSES_AT] = np.maximum(row[_CLASSES_AT] - shared, 0.0)
        if any(self._reduced[i] is not None for i in ids):
            of_rows = [self._of_rows[i] for i in ids if i in self._saved and i not in again]
            if of_rows:
                row[_CLASSES_AT] = np.maximum(row[_CLASSES_AT] - np.sum(of_rows, axis=0), 0.0)
        for i in self._alone(ids):
            full, alone = self._firsts[i]
            steps = self._sums[i, SUMMED.index(full)]
            row[COLUMN[full]] -= steps
            if alone:
                row[COLUMN[alone]] += steps

    def _alone(self, ids: Sequence[int]) -> list[int]:
        """Nodes that are the first result of a reduction of several, the others outside of it.

        A loop keeps all that a Welford reduction has whichever of it is stored: each step needs it.
        """
        firsts = [i for i in ids if i in self._firsts] if self._firsts else []
        if not firsts:
            return []
        others = {self._twin[i] for i in ids if self._twin[i] != i}
        loops = self._loops_over(ids)
        return [
            i for i in firsts if i not in others and not (loops and self._firsts[i][0] == "welford")
        ]

    def _tile(self, ids: Sequence[int], row: FloatArray, met: Met) -> tuple[float, ...]:
        """The columns of ``_TILE``, from those of the same ``row`` that are filled already."""
        reductions = [r for r in (self._reduced[i] for i in ids) if r is not None]
        scans = [r for r in (self._scanned[i] for i in ids) if r is not None]
        loads = int(row[COLUMN["loads"]])
        shapes, movers, steps = self._frames.kernel(ids, met)
        rows, cores = int(row[COLUMN["numel"]]), self.profile.cores
        rows_of = [*reductions, *scans]
        tile = tile_of(rows, rows_of, movers, shapes, loads, cores, steps=steps, scans=bool(scans))
        # Two results of one reduction (a mean and its variance) are found together.
        kinds = {self._kinds[i] for i in ids if self._reduced[i] is not None}
        weight = sum(_VALUES.get(str(kind[0]), 1) for kind in kinds)
        for i in self._alone(ids):
            weight -= _VALUES[str(self._kinds[i][0])] - 1
        # The values and their places come of one sort.
        sorts = {self._kinds[i]: self._sorted[i] for i in ids if self._sorted[i]}
        steps_each = math.log2(tile.row_threads) if tile.row_threads > 1 else 0.0
        met_rows = rows_of[0][0] if rows_of else 0
        # Loops of one turn are none: what a later one waits for lies beside it.
        again = 1 if tile.turns == 1 or tile.persistent else met.columns[_PASSES]
        return (
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
            weight * met_rows * tile.row_threads * steps_each + sum(sorts.values()),
            weight * tile.waves * steps_each,
            len(kinds),
            tile.sectors * SECTOR_BYTES / (tile.waves * tile.turns),
            tile.turn_loads,
            *shape_of(tile),
            *access_means(movers, tile),
        )

    def _members(self, names: Collection[str]) -> list[int]:
        try:
            ids = list(dict.fromkeys(self._rank[name] for name in names))
        except KeyError as error:
            raise PlanError(
                f"no node {error.args[0]!r} in this graph of {len(self._rank)} nodes",
                subject=f"group {sorted(names)}",
                remedy="use a plan that was made for this graph",
            ) from None
        if not ids:
            raise PlanError(
                "the group has no nodes", subject="group", remedy="leave empty groups out"
            )
        # What has no order is generated in the compiler's own.
        return ids if isinstance(names, Sequence) else sorted(ids, key=self._order.__getitem__)

    def _loops(self, order: Sequence[int]) -> dict[int, int] | None:
        """Which loop each node is in, where a kernel of several nodes loops over reductions."""
        if len(order) == 1 or not self._loops_over(order):
            return None
        return self._meeting.loops(order)

    def _loops_over(self, ids: Iterable[int]) -> bool:
        reductions = [r for r in (self._reduced[i] for i in ids) if r is not None]
        return bool(reductions) and not holds_rows(reductions)

    def _derive(self, rows: FloatArray) -> None:
        """Fill the columns that follow from others. ``rows`` holds plain numbers, no logs yet."""
        column = rows.T
        distinct = rows[:, _DISTINCT_AT].sum(axis=1)
        touched = column[COLUMN["touched"]]
        operations = rows[:, _OPERATIONS_AT].sum(axis=1)
        contiguous = column[COLUMN["read_contiguous"]] + column[COLUMN["written_contiguous"]]
        some = np.maximum(distinct, 1.0)
        column[COLUMN["distinct"]] = distinct
        column[COLUMN["reuse"]] = touched / some
        column[COLUMN["irregular"]] = (distinct - contiguous) / some
        column[COLUMN["intensity"]] = operations / some
        iterations = column[COLUMN["iterations"]]
        column[COLUMN["operations_each"]] = operations / np.maximum(iterations, 1.0)
        column[COLUMN["turn_operations"]] = (
            column[COLUMN["operations_each"]] * column[COLUMN["each_thread"]]
        )
        column[COLUMN["widths_mixed"]] = column[COLUMN["width_min"]] < column[COLUMN["width_max"]]
        rows[:, _SHARES_AT] /= np.maximum(touched, 1.0)[:, None]
        if self.profile.kind == "cuda":
            column[COLUMN["sector_ratio"]] = column[COLUMN["sector_bytes"]] / some
            lanes_issued = np.maximum(column[COLUMN["issued"]] * WARP, 1.0)
            column[COLUMN["vector_bytes"]] = touched / lanes_issued
            held = column[COLUMN["programs"]] * column[COLUMN["tile"]] / lanes(self.profile)
        else:
            held = np.inf
        column[COLUMN["parallel"]] = np.minimum(
            held, at_once(column[COLUMN["parallel"]], column[COLUMN["rnumel"]], self.profile)
        )
        # What is overwritten may be more than what a kernel gets to see of it.
        room = np.maximum(distinct - column[COLUMN["in_place"]], 0.0) + column[COLUMN["cached"]]
        fill = room / max(self.profile.cache_bytes, 1)
        column[COLUMN["cache_fill"]] = fill
