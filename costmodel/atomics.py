"""Atomic stores as they run: one update for each turn of their node's loops.

The dependency that the compiler tells has only the loops that are in the index, where those that
choose the looked-up place update as well. Knows nothing of other accesses, and nothing of warps:
those are the business of ``fusewise.costmodel.updates``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from fusewise.costmodel.geometry import walk
from fusewise.costmodel.layout import LINE_BYTES, SECTOR_BYTES
from fusewise.schedule.problem import Access, Node, Problem

#: Bytes of the narrowest element that memory itself adds to one by one; narrower neighbours go in
#: pairs.
WHOLE_BYTES: Final = 4
#: Updates that are on their way at a time.
_TOGETHER: Final = 32


class Updates(NamedTuple):
    """What the atomic stores of one node come to."""

    #: Updates, of narrow neighbours that go together two at once.
    updates: float = 0.0
    #: Attempts to swap in an element that is narrower than what memory adds to.
    halves: float = 0.0
    #: Updates, or rounds of a warp's, that memory makes one after the other: those of neighbours in
    #: a sector are one.
    turns: float = 0.0
    #: Most updates of an element, and most turns of a line one after the other, on average.
    hits: float = 0.0
    crowd: float = 0.0


def in_one_kernel(several: Sequence[Updates]) -> Updates:
    """What several atomic stores come to together."""
    if not several:
        return Updates()
    updates, halves, turns, hits, crowd = zip(*several, strict=True)
    return Updates(sum(updates), sum(halves), sum(turns), max(hits), max(crowd))


def contenders(access: Access, elements: float, hits: float, threads: int) -> float:
    """Updates of a narrow element, or of its neighbour, that go on at a time, on average.

    Of ``elements``, each updated ``hits`` times, on a device that runs so many ``threads``.
    """
    at_a_time = 2.0 * min(threads, access.touched) / max(elements, 1.0)
    return min(max(at_a_time, 1.0), max(hits, 1.0))


def places_met(places: float, lookups: float) -> float:
    """Of so many ``places``, how many are found by so many ``lookups``, on average."""
    return places * (1.0 - (1.0 - 1.0 / places) ** lookups) if places > 1.0 else 1.0


def updates_counted(node: Node, problem: Problem) -> Node:
    """``node`` with each atomic store touching an element a turn, and no more than the buffer."""
    turns = node.numel * node.rnumel

    def counted(access: Access) -> Access:
        if access.kind != "atomic" or access.touched >= turns:
            return access
        size = turns * access.itemsize
        buffer = problem.buffer_by_name.get(access.buffer)
        if buffer is not None and buffer.bytes > 0:
            size = min(size, buffer.bytes)
        return msgspec.structs.replace(access, touched=turns, bytes=max(size, access.bytes))

    writes = tuple(counted(access) for access in node.writes)
    return node if writes == node.writes else msgspec.structs.replace(node, writes=writes)


def updates_of_loops(node: Node, threads: int, *, along: bool) -> Updates:
    """The atomic stores of ``node`` where each of so many ``threads`` makes one after the other.

    ``along`` tells whether what it looks up follows its loops.
    """
    loops = (*node.ranges[0], *node.ranges[1])
    return in_one_kernel([_of(a, loops, threads, along) for a in node.writes if a.kind == "atomic"])


def _of(access: Access, loops: Sequence[int], threads: int, along: bool) -> Updates:
    elements = access.bytes / access.itemsize
    hits = access.touched * access.itemsize / max(access.bytes, 1)
    step = walk(access, loops).step
    whole, contiguous = access.itemsize >= WHOLE_BYTES, step == 1
    at_once = SECTOR_BYTES // max(access.itemsize, WHOLE_BYTES) if contiguous else 1
    turns = access.touched / at_once
    lines = max(access.bytes / LINE_BYTES, 1.0)
    in_line = min(elements, LINE_BYTES / access.itemsize)
    # Of updates that follow one another, those that places which were loaded send to different
    # elements of a line are one turn of it; what follows the loops finds one element over and over.
    met = 1.0
    if whole and not along and step == 0:
        met = max(places_met(in_line, _TOGETHER / lines), 1.0)
    return Updates(
        updates=access.touched / (1 if whole or not contiguous else 2),
        halves=0.0
        if whole or contiguous
        else contenders(access, elements, hits, threads) * access.touched,
        turns=turns,
        hits=hits,
        crowd=turns / lines / met,
    )
