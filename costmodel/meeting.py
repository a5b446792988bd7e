"""What the accesses of a group's nodes make of each other: what moves, what stays, what repeats.

One :class:`Meeting` serves one problem on one device. It fills the columns that no node has on its
own; those that have nothing to do with other nodes are in ``fusewise.costmodel.partials``, and
what a single access adds to them is in ``fusewise.costmodel.touches``.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.lookups import follows_loops, found_beside
from fusewise.costmodel.loops import loops_in
from fusewise.costmodel.partials import largest_read
from fusewise.costmodel.touches import AT, MET, NOT_SUMMED, Touches
from fusewise.schedule.problem import Node, Problem, mask_of

_LINE, _ACROSS, _RUNS, _UNALIGNED = (
    AT["line_bytes"],
    AT["across_bytes"],
    AT["runs"],
    AT["unaligned"],
)
_RANDOM, _CACHED, _REREAD = (
    AT["random_bytes"],
    AT["cached"],
    AT["reread"],
)
_STORES_REMOVED, _READS_REMOVED, _TOUCHED = (
    AT["stores_removed"],
    AT["reads_removed"],
    AT["touched"],
)
_FIRST_COUNT: Final = AT["loop_shapes"]

#: Node, access (buffer and index), bytes, whether it is a write, and whether it was read before.
Moving = tuple[int, tuple[str, str], int, bool, bool]


class Met(NamedTuple):
    """What the nodes of one group make of each other."""

    #: As in ``MET``.
    columns: list[float]
    #: What is not kept inside.
    moving: list[Moving]
    #: Nodes whose loops are turned round, and the one whose loops they are turned to.
    crossed: Collection[int]
    main: int
    #: For each node, how many reductions must be done before its loops start.
    levels: Mapping[int, int]


def _inner_sizes(node: Node) -> frozenset[int]:
    """Extents of the innermost loops of a node, taken as one: of one of them, of two..., not all.

    Nodes whose loops stand in the same order have such an extent in common, however merged.
    """
    loops = [extent for extent in (*node.ranges[0], *node.ranges[1]) if extent > 1]
    return frozenset(accumulate(reversed(loops[1:]), operator.mul))


class Meeting:
    """Columns of ``MET`` for groups of one problem's nodes, which are numbered as given."""

    def __init__(
        self,
        problem: Problem,
        profile: DeviceProfile,
        nodes: Sequence[Node],
        rank: Mapping[str, int],
    ) -> None:
        """``nodes`` in topological order; ``rank`` is the number of each by name."""
        self._problem = problem
        self._rank = rank
        touches = Touches(problem, profile, rank)
        follows = [follows_loops(node, problem) for node in nodes]
        self.followed = [
            {
                (a.buffer, a.index): touches.elements(a)
                for a in (*node.reads, *node.writes)
                if along and a.looked_up
            }
            for node, along in zip(nodes, follows, strict=True)
        ]
        self._reads = [
            touches.reads(node, along=along) for node, along in zip(nodes, follows, strict=True)
        ]
        self._writes = [
            touches.writes(node, along=along) for node, along in zip(nodes, follows, strict=True)
        ]
        # What each moves by itself is made once: groups only put it together.
        self._moves = [
            (
                [(w, (i, w.key, w.bytes, True, False)) for w in writes],
                [(r, (i, r.key, r.bytes, False, False)) for r in reads],
            )
            for i, (writes, reads) in enumerate(zip(self._writes, self._reads, strict=True))
        ]
        self._shapes = [(node.numel, node.rnumel) for node in nodes]
        self._loops = [
            tuple(n for n in (*node.ranges[0], *node.ranges[1]) if n > 1) for node in nodes
        ]
        self._inner = [_inner_sizes(node) for node in nodes]
        self._is_reduction = [node.kind == "reduction" for node in nodes]
        self._sizes = [node.numel * node.rnumel for node in nodes]
        # One along rows leads one across them.
        self._leading = [
            (reduces, size, reduces and not largest_read(node).across, i)
            for i, (node, reduces, size) in enumerate(
                zip(nodes, self._is_reduction, self._sizes, strict=True)
            )
        ]
        self._producers = self._dataflow(nodes)

    def columns(self, ids: Sequence[int], loops: Mapping[int, int] | None = None) -> Met:
        """The columns of one group and its accesses, from its nodes' numbers in ascending order.

        ``loops`` tells, of a kernel that loops over its reductions, which loop each node is in:
        what one loop leaves to another goes through memory.
        """
        moving: list[Moving] = []
        total = [0.0] * (len(MET) + 1)
        outside = ~mask_of(ids)
        main, crossed = self._crossed(ids)
        left_behind = self._left_behind(ids, loops) if loops is not None else ()
        # Slots written, and where in ``ids`` each buffer is made first.
        written: set[int] = set()
        made: dict[int, int] = {}
        removed = set()
        stored = set()
        for position, i in enumerate(ids):
            for w, move in self._moves[i][0]:
                if w.slot in written:
                    continue
                written.add(w.slot)
                made.setdefault(w.buffer, position)
                total[_TOUCHED] += w.touched
                total[_UNALIGNED] += w.unaligned
                total[w.width_at] += w.touched
                if w.outside or w.users & outside or w.buffer in left_behind:
                    stored.add(w.buffer)
                    total[w.at] += w.bytes
                    total[_ACROSS] += w.along if i in crossed else w.across
                    total[_RUNS] += w.runs
                    total[_LINE] += w.line
                    total[_RANDOM] += w.random
                    moving.append(move)
                else:
                    removed.add(w.buffer)
                    total[_STORES_REMOVED] += w.bytes
        levels = loops or self._passes(ids)
        inputs, loads, kept = self._load(
            ids, total, written, made, crossed, moving, levels, left_behind
        )
        total[_FIRST_COUNT:NOT_SUMMED] = (
            len({self._shapes[i] for i in ids}),
            1 + max(levels.values()),
            inputs,
            len(stored),
            len(removed),
            loads,
            kept / len(ids),
        )
        return Met(total[:NOT_SUMMED], moving, crossed, main, levels)

    def _crossed(self, ids: Sequence[int]) -> tuple[int, Collection[int]]:
        """The group's main node, and the nodes whose loops are turned round to share its own.

        The main node is the largest reduction, of several the one along rows, or else the last of
        the largest nodes: the compiler turns what comes first
        (``shared_data_after_reordering_loop``). What lies along the innermost loop of a node that
        is turned round lies across the kernel's.
        """
        if len(ids) == 1:
            return ids[0], ()
        main = max(ids, key=self._leading.__getitem__)
        size, loops = self._sizes[main], self._loops[main]
        others = [i for i in ids if self._sizes[i] == size and self._loops[i] != loops]
        return main, {i for i in others if self._turned(i, main)}

    def _turned(self, i: int, main: int) -> bool:
        """Whether two nodes of unequal loops have the same in another order, however merged."""
        if sorted(self._loops[i]) == sorted(self._loops[main]):
            return True
        inner, other = self._inner[i], self._inner[main]
        return bool(inner and other) and inner.isdisjoint(other)

    def _load(
        self,
        ids: Sequence[int],
        total: list[float],
        written: set[int],
        made: dict[int, int],
        crossed: Collection[int],
        moving: list[Moving],
        level: Mapping[int, int],
        left_behind: Collection[int],
    ) -> tuple[int, int, int]:
        """Add the reads to ``total``; inputs, loads and node steps that values are kept."""
        seen: dict[int, int] = {}
        corners: dict[int, int] = {}
        left: dict[int, float] = {}
        last: dict[int, int] = {}
        rows: Counter[Hashable] = Counter()
        touched, unaligned, across = total[_TOUCHED], total[_UNALIGNED], total[_ACROSS]
        for position, i in enumerate(ids):
            here, bit, turned = level[i], 1 << level[i], i in crossed
            for r, move in self._moves[i][1]:
                slot, buffer, size = r.slot, r.buffer, r.bytes
                inside = buffer in made
                if inside:
                    last[buffer] = position
                if r.corners and slot not in seen:
                    corners[buffer] = corners.get(buffer, 0) + 1
                    if corners[buffer] > r.corners:
                        continue
                if (passes := seen.get(slot, 0)) & bit:
                    continue
                seen[slot] = passes | bit
                if passes:
                    total[_REREAD] += size
                    moving.append((i, r.key, size, False, True))
                    continue
                if inside and slot in written:
                    total[_READS_REMOVED] += size
                    # Made in an earlier pass, it is not in a register any more.
                    if here > level.get(ids[made[buffer]], here):
                        total[_REREAD] += size
                        if buffer in left_behind:
                            moving.append((i, r.key, size, False, True))
                    continue
                moving.append(move)
                touched += r.touched
                unaligned += r.unaligned
                total[r.width_at] += r.touched
                if inside:
                    total[_CACHED] += size
                    continue
                rest = left.get(buffer, r.size)
                moved = min(size, rest)
                left[buffer] = rest - moved
                total[r.at] += moved
                if r.again > moved:
                    total[_CACHED] += r.again - moved
                across += r.along if turned else r.across
                total[_RUNS] += r.runs
                if r.row < 0 or not found_beside(r.row, r.component, rows):
                    total[_LINE] += r.line
                    total[_RANDOM] += r.random
        total[_TOUCHED], total[_UNALIGNED], total[_ACROSS] = touched, unaligned, across
        kept = sum(position - made[buffer] for buffer, position in last.items())
        return len(left), len(seen), kept

    def _passes(self, ids: Sequence[int]) -> dict[int, int]:
        """How many times loops must have ended before each node can run."""
        level: dict[int, int] = {}
        for i in ids:
            here = 0
            for producer, ends in self._producers[i]:
                there = level.get(producer)
                if there is not None and there + ends > here:
                    here = there + ends
            level[i] = here
        return level

    def loops(self, order: Sequence[int]) -> dict[int, int]:
        """Which loop over a reduction each node runs in; see :func:`loops_in`."""
        return loops_in(order, self._shapes, self._is_reduction, self._producers)

    def _left_behind(self, ids: Sequence[int], loops: Mapping[int, int]) -> set[int]:
        """Buffers that one loop makes, element by element, and another reads."""
        if min(loops.values()) == max(loops.values()):
            return set()
        made = {
            w.buffer: loops[i] for i in ids if not self._is_reduction[i] for w in self._writes[i]
        }
        rows = min(self._shapes[i][0] for i in ids)
        return {
            r.buffer
            for i in ids
            for r in self._reads[i]
            if math.prod(self._shapes[i]) > rows and made.get(r.buffer, loops[i]) != loops[i]
        }

    def _dataflow(self, nodes: Sequence[Node]) -> list[tuple[tuple[int, int], ...]]:
        """For each node its producers, with 1 where their loop must end before this one starts.

        That is the case when a reduction (or scan) is consumed by loops over what was reduced.
        """
        found: list[dict[int, int]] = [{} for _ in nodes]
        for dep in self._problem.dependencies:
            consumer, producer = self._rank.get(dep.consumer), self._rank.get(dep.producer)
            if dep.weak or consumer is None or producer is None:
                continue
            before, after = nodes[producer], nodes[consumer]
            ends = before.rnumel > 1 and after.numel * after.rnumel > before.numel
            found[consumer][producer] = int(ends)
        return [tuple(producers.items()) for producers in found]
