"""Features of groups: what decides a kernel's time, from the problem alone.

One :class:`Featurizer` serves one problem on one device. It never compiles, measures or predicts,
and the order in which a group's nodes are named does not matter to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import (
    COLUMN,
    FEATURES,
    FEATURES_DIGEST,
    FEATURES_VERSION,
    Feature,
)
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.operations import CLASSES
from fusewise.costmodel.partials import (
    LARGEST,
    SMALLEST,
    SUMMED,
    at_once,
    device_amounts,
    node_extremes,
    node_sums,
)
from fusewise.schedule.errors import PlanError
from fusewise.schedule.problem import Access, Buffer, Node, Problem

__all__ = [
    "COLUMN",
    "FEATURES",
    "FEATURES_DIGEST",
    "FEATURES_VERSION",
    "Feature",
    "Featurizer",
]

#: Bytes that memory moves at least: a cache line, and a sector of one.
_LINE_BYTES: Final = {"cpu": 64, "cuda": 32}

# Columns that depend on how the accesses of different nodes meet.
_MET: Final = (
    "read_contiguous",
    "read_strided",
    "read_broadcast",
    "read_gather",
    "read_opaque",
    "written_contiguous",
    "written_strided",
    "written_atomic",
    "written_other",
    "line_bytes",
    "random_bytes",
    "cached",
    "reread",
    "stores_removed",
    "reads_removed",
    "touched",
    "narrow",
    "half",
    "wide",
    "loop_shapes",
    "passes",
    "inputs",
    "outputs",
    "intermediates",
    "loads",
    "live_values",
)
_AT: Final = {name: i for i, name in enumerate(_MET)}
_LINE, _RANDOM, _CACHED, _REREAD = (
    _AT["line_bytes"],
    _AT["random_bytes"],
    _AT["cached"],
    _AT["reread"],
)
_STORES_REMOVED, _READS_REMOVED, _TOUCHED = (
    _AT["stores_removed"],
    _AT["reads_removed"],
    _AT["touched"],
)
_FIRST_COUNT: Final = _AT["loop_shapes"]
_READ_AT: Final = {
    "contiguous": _AT["read_contiguous"],
    "strided": _AT["read_strided"],
    "broadcast": _AT["read_broadcast"],
    "gather": _AT["read_gather"],
    "atomic": _AT["read_opaque"],
    "opaque": _AT["read_opaque"],
}
_WRITE_AT: Final = {
    "contiguous": _AT["written_contiguous"],
    "strided": _AT["written_strided"],
    "broadcast": _AT["written_other"],
    "gather": _AT["written_other"],
    "atomic": _AT["written_atomic"],
    "opaque": _AT["written_other"],
}
#: Where the touched bytes of an element width are summed; 4 bytes are what is left.
_WIDTH_AT: Final = {1: _AT["narrow"], 2: _AT["half"], 8: _AT["wide"], 16: _AT["wide"]}
_NOT_SUMMED: Final = len(_MET)


#: A buffer of this part of the last-level cache stays there while it is looked up.
_NEAR: Final = 4
#: Four-byte elements in the 32 bytes that a cache moves at the least.
_SECTOR_ELEMENTS: Final = 8


def _columns(names: Iterable[str]) -> list[int]:
    return [COLUMN[name] for name in names]


_SUMMED_AT, _LARGEST_AT = _columns(SUMMED), _columns(LARGEST)
_SMALLEST_AT, _MET_AT = _columns(SMALLEST), _columns(_MET)
_OPERATIONS_AT = _columns((*CLASSES, "flops"))
_DISTINCT_AT = _columns(name for name in _MET if name.startswith(("read_", "written_")))
_SHARES_AT = _columns(("narrow", "half", "wide"))
_LOG_AT = [i for i, feature in enumerate(FEATURES) if feature.unit.startswith("log2")]
_DEVICE_AT = _columns(name for name in COLUMN if name == "is_cuda" or name.startswith("device_"))


class _Touch(NamedTuple):
    """An access with all that a group needs to know of it, looked up once."""

    slot: int  # identity of (buffer, index)
    buffer: int
    at: int  # where its distinct bytes are summed
    bytes: int
    touched: int
    line: int
    random: int
    width_at: int
    size: float  # of the whole buffer
    outside: bool  # a write: somebody who is no node needs the buffer
    users: int  # a write: bitset of the nodes that read it


def _moving(node: Node, problem: Problem) -> list[Access]:
    """The reads of a node that move data.

    One that overwrites a buffer has to wait for it, and that stands there as a read of all of it.
    """
    written = [problem.buffer_by_name.get(access.buffer) for access in node.writes]
    overwritten = {alias for buffer in written if buffer is not None for alias in buffer.aliases}
    return [a for a in node.reads if a.kind != "opaque" or a.buffer not in overwritten]


def _size(access: Access, buffer: Buffer | None) -> int:
    return buffer.bytes if buffer is not None and buffer.bytes > 0 else access.bytes


class Featurizer:
    """Features of groups of one problem's nodes on one device."""

    def __init__(self, problem: Problem, profile: DeviceProfile) -> None:
        self.problem = problem
        self.profile = profile
        # Whoever must run earlier has fewer ancestors, so this order is topological.
        ancestors = problem.ancestors
        order = sorted(range(len(problem.nodes)), key=lambda i: (ancestors[i].bit_count(), i))
        nodes = [problem.nodes[i] for i in order]
        self._rank = {node.name: i for i, node in enumerate(nodes)}
        self._slots: dict[tuple[str, str], int] = {}
        self._buffer_ids: dict[str, int] = {}
        self._reads = [[self._touch(a, _READ_AT) for a in _moving(node, problem)] for node in nodes]
        self._writes = [[self._touch(a, _WRITE_AT) for a in node.writes] for node in nodes]
        self._shapes = [(node.numel, node.rnumel) for node in nodes]
        self._producers = self._dataflow(nodes)
        self._sums = np.array([node_sums(node) for node in nodes], dtype=np.float64)
        extremes = [node_extremes(node) for node in nodes]
        # Minima are kept negated, so that one reduction finds both.
        self._extremes = np.array(extremes, dtype=np.float64)
        self._device = list(device_amounts(profile).values())

    def group(self, names: Collection[str]) -> FloatArray:
        """Features of one group, shape [F]. See :meth:`batch`."""
        row: FloatArray = self.batch([names])[0]
        return row

    def batch(self, groups: Sequence[Collection[str]]) -> FloatArray:
        """Features of ``groups`` (names of nodes), shape [n, F], columns as in FEATURES.

        Raises:
            PlanError: a group is empty or names a node that the problem does not have.
        """
        if not groups:
            return np.empty((0, len(FEATURES)))
        members = [self._members(names) for names in groups]
        flat = np.fromiter((i for ids in members for i in ids), dtype=np.intp)
        starts = np.cumsum([0, *(len(ids) for ids in members[:-1])])
        rows = np.zeros((len(groups), len(FEATURES)))
        rows[:, _SUMMED_AT] = np.add.reduceat(self._sums[flat], starts)
        extremes = np.maximum.reduceat(self._extremes[flat], starts)
        rows[:, _LARGEST_AT] = extremes[:, : len(LARGEST)]
        rows[:, _SMALLEST_AT] = -extremes[:, len(LARGEST) :]
        rows[:, _MET_AT] = [self._meet(ids) for ids in members]
        rows[:, _DEVICE_AT] = self._device
        self._derive(rows)
        rows[:, _LOG_AT] = np.log2(1.0 + rows[:, _LOG_AT])
        return rows

    def _members(self, names: Collection[str]) -> list[int]:
        try:
            ids = sorted({self._rank[name] for name in names})
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
        return ids

    def _touch(self, access: Access, at: dict[str, int]) -> _Touch:
        buffer = self.problem.buffer_by_name.get(access.buffer)
        touched = access.touched * access.itemsize
        per_line = max(_LINE_BYTES[self.profile.kind] // max(access.itemsize, 1), 1)
        line = random = 0
        if access.kind == "strided":
            line = access.bytes * min(max(abs(access.stride), 1), per_line)
        elif access.kind in ("gather", "atomic"):
            # Whole rows are looked up (an embedding): one jump a line, not one an element.
            rows = access.stride == 1
            if 0 < _size(access, buffer) <= self.profile.cache_bytes // _NEAR:
                # What fits the cache is never far, but comes in sectors.
                line = touched if rows else touched * min(_SECTOR_ELEMENTS, per_line)
            else:
                random = touched // per_line if rows else touched
        outside, users = self._needed_by(buffer)
        return _Touch(
            slot=self._slots.setdefault((access.buffer, access.index), len(self._slots)),
            buffer=self._buffer_ids.setdefault(access.buffer, len(self._buffer_ids)),
            at=at[access.kind],
            bytes=access.bytes,
            touched=touched,
            line=line,
            random=random,
            width_at=_WIDTH_AT.get(access.itemsize, _NOT_SUMMED),
            size=float(buffer.bytes) if buffer is not None and buffer.bytes > 0 else np.inf,
            outside=outside or access.kind == "atomic",
            users=users,
        )

    def _needed_by(self, buffer: Buffer | None) -> tuple[bool, int]:
        """Whether something that is no node needs the buffer, and the bitset of nodes that do.

        A buffer that shares its memory with others is needed: what is stored is the other's value.
        """
        if buffer is None or buffer.is_input or buffer.is_output or buffer.aliases:
            return True, 0
        users = 0
        for name in buffer.users:
            rank = self._rank.get(name)
            if rank is None:
                return True, 0
            users |= 1 << rank
        return False, users

    def _dataflow(self, nodes: Sequence[Node]) -> list[tuple[tuple[int, int], ...]]:
        """For each node its producers, with 1 where their loop must end before this one starts.

        That is the case when a reduction (or scan) is consumed by loops over what was reduced.
        """
        found: list[dict[int, int]] = [{} for _ in nodes]
        for dep in self.problem.dependencies:
            consumer, producer = self._rank.get(dep.consumer), self._rank.get(dep.producer)
            if dep.weak or consumer is None or producer is None:
                continue
            before, after = nodes[producer], nodes[consumer]
            ends = before.rnumel > 1 and after.numel * after.rnumel > before.numel
            found[consumer][producer] = int(ends)
        return [tuple(producers.items()) for producers in found]

    def _meet(self, ids: Sequence[int]) -> list[float]:
        """The columns of ``_MET``: what the accesses of the group's nodes make of each other."""
        total = [0.0] * (len(_MET) + 1)
        mask = 0
        for i in ids:
            mask |= 1 << i
        outside = ~mask
        # Slots written, and where in ``ids`` each buffer is made first.
        written: set[int] = set()
        made: dict[int, int] = {}
        removed = set()
        stored = set()
        for position, i in enumerate(ids):
            for w in self._writes[i]:
                if w.slot in written:
                    continue
                written.add(w.slot)
                made.setdefault(w.buffer, position)
                total[_TOUCHED] += w.touched
                total[w.width_at] += w.touched
                if w.outside or w.users & outside:
                    stored.add(w.buffer)
                    total[w.at] += w.bytes
                    total[_LINE] += w.line
                    total[_RANDOM] += w.random
                else:
                    removed.add(w.buffer)
                    total[_STORES_REMOVED] += w.bytes
        passes, inputs, loads, kept = self._load(ids, total, written, made)
        total[_FIRST_COUNT:_NOT_SUMMED] = (
            len({self._shapes[i] for i in ids}),
            passes,
            inputs,
            len(stored),
            len(removed),
            loads,
            kept / len(ids),
        )
        return total[:_NOT_SUMMED]

    def _load(
        self, ids: Sequence[int], total: list[float], written: set[int], made: dict[int, int]
    ) -> tuple[int, int, int, int]:
        """Add the reads to ``total``; passes, inputs, loads and node steps that values are kept."""
        level: dict[int, int] = {}
        seen: dict[int, int] = {}
        left: dict[int, float] = {}
        last: dict[int, int] = {}
        for position, i in enumerate(ids):
            here = 0
            for producer, ends in self._producers[i]:
                there = level.get(producer)
                if there is not None and there + ends > here:
                    here = there + ends
            level[i] = here
            for r in self._reads[i]:
                slot, buffer = r.slot, r.buffer
                inside = buffer in made
                if inside:
                    last[buffer] = position
                bit = 1 << here
                passes = seen.get(slot, 0)
                if passes & bit:
                    continue
                seen[slot] = passes | bit
                if passes:
                    total[_REREAD] += r.bytes
                    continue
                if inside and slot in written:
                    total[_READS_REMOVED] += r.bytes
                    # Made in an earlier pass, it is not in a register any more.
                    if here > level.get(ids[made[buffer]], here):
                        total[_REREAD] += r.bytes
                    continue
                total[_TOUCHED] += r.touched
                total[r.width_at] += r.touched
                if inside:
                    total[_CACHED] += r.bytes
                    continue
                rest = left.get(buffer, r.size)
                moved = min(r.bytes, rest)
                left[buffer] = rest - moved
                total[r.at] += moved
                total[_CACHED] += r.bytes - moved
                total[_LINE] += r.line
                total[_RANDOM] += r.random
        kept = sum(position - made[buffer] for buffer, position in last.items())
        return 1 + max(level.values()), len(left), len(seen), kept

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
        column[COLUMN["widths_mixed"]] = column[COLUMN["width_min"]] < column[COLUMN["width_max"]]
        rows[:, _SHARES_AT] /= np.maximum(touched, 1.0)[:, None]
        column[COLUMN["parallel"]] = at_once(
            column[COLUMN["parallel"]], column[COLUMN["rnumel"]], self.profile
        )
        fill = (distinct + column[COLUMN["cached"]]) / max(self.profile.cache_bytes, 1)
        column[COLUMN["cache_fill"]] = fill
