"""Atomic updates as the warps of a CUDA kernel make them: where those of one warp meet.

Memory takes the updates that a warp makes in one sector at once, those of one element one after the
other, and so whatever all warps do to one line. Constants are measured on an H200, with kernels
that do nothing else. Where a lookup leads is not known: any place is as likely as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.atomics import (
    WHOLE_BYTES,
    Updates,
    contenders,
    in_one_kernel,
    places_met,
)
from fusewise.costmodel.blocks import WARP
from fusewise.costmodel.geometry import formula_of, looked_up_steps, walk
from fusewise.costmodel.layout import LINE_BYTES, SECTOR_BYTES
from fusewise.costmodel.lookups import follows_loops, loaded_indices
from fusewise.schedule.problem import Access, Node, Problem

#: Neighbours that are narrower than what memory adds to go together where rows have whole
#: multiples of so many.
_TOGETHER: Final = 2
#: Updates of a narrow element that go on at a time, at the most.
_CONTENDERS: Final = 1000.0
#: Sectors as long to update as one round of a warp takes besides.
_ROUND: Final = 1.7
#: What a further sector of a line takes, in rounds; how much longer rounds take where a few lines,
#: of which some share a part of the cache, are all that is updated; how many lines are no longer
#: few.
_SECTOR_ROUND: Final = 1.0
_UNEVEN, _FEW_LINES = 1.2, 150.0
#: How much longer rounds of one element take that warps beside one another make.
_BURST: Final = 3.0


class _Warp(NamedTuple):
    """What a warp's updates in one access come to."""

    sectors: float
    lines: float
    #: Updates of one element, one after the other: in a sector, and most of all.
    sector_rounds: float
    rounds: float
    #: How much longer those take since the warps beside it find the same element as well.
    burst: float = 1.0


def updates_of_warps(node: Node, problem: Problem, threads: int) -> Updates:
    """The atomic stores of ``node`` on a device that runs so many ``threads`` at a time."""
    atomic = [access for access in node.writes if access.kind == "atomic"]
    return in_one_kernel([_of(access, node, problem, threads) for access in atomic])


def _of(access: Access, node: Node, problem: Problem, threads: int) -> Updates:
    loops = (*node.ranges[0], *node.ranges[1])
    buffer = problem.buffer_by_name.get(access.buffer)
    size = max(buffer.bytes if buffer is not None else 0, access.itemsize)
    elements = size / access.itemsize
    warp, rows = _warp(access, node, problem, loops, elements)
    warps = access.touched / WARP
    lines = max(size / LINE_BYTES, 1.0)
    few = min((lines - 1.0) / 4.0, 1.0) / (1.0 + lines / _FEW_LINES)
    in_lines = places_met(lines, warp.lines)
    in_sectors = places_met(max(size / SECTOR_BYTES, 1.0), warp.sectors)
    rounds = (1.0 + _UNEVEN * few) * in_lines * warp.rounds * warp.burst
    rounds += _SECTOR_ROUND * max(in_sectors - in_lines, 0.0)
    hits = access.touched / elements
    whole = access.itemsize >= WHOLE_BYTES
    crowd = contenders(access, elements, hits, threads)
    return Updates(
        updates=access.touched / (1 if whole or not rows else 2),
        halves=0.0 if whole or rows else min(crowd, _CONTENDERS) * access.touched,
        turns=warps * (warp.sectors * warp.sector_rounds + _ROUND * warp.rounds),
        hits=hits,
        crowd=warps * rounds / lines,
    )


class _Rows(NamedTuple):
    """How an access goes through memory while a warp goes along its node's innermost loop."""

    itemsize: int
    #: Elements of a row that a warp has, and how many rows.
    row: float
    rows: float
    #: Places that a lookup may lead to while the loops in the index stand still, and bytes from one
    #: to the next.
    places: float
    pitch: float
    #: Elements from one turn to the next, but for what is looked up.
    step: int
    #: Whether the loops in the index keep rows apart, wherever lookups lead.
    apart: bool


def _warp(
    access: Access, node: Node, problem: Problem, loops: Sequence[int], elements: float
) -> tuple[_Warp, bool]:
    """What one warp does, and whether it goes along rows whose neighbours are updated together."""
    inner = next((extent for extent in reversed(loops) if extent > 1), 1)
    formula = formula_of(access.index)
    own = math.prod(formula.sizes) if formula is not None else 1
    lookups = looked_up_steps(access.index)
    walked = walk(access, loops)
    if not lookups and walked.step == 1:
        inner = walked.run
    near = follows_loops(node, problem) and (len(lookups) > 1 or _computes(node))
    row = min(inner, WARP)
    rows = _Rows(
        itemsize=access.itemsize,
        row=row,
        rows=WARP / row,
        places=max(elements / own, 1.0),
        pitch=(lookups[-1] if lookups else 1) * access.itemsize,
        step=walked.step,
        # One of more elements than the innermost loop has is moved by another loop, too.
        apart=near or not lookups or (walked.step == 1 and own >= 2 * inner),
    )
    if near and rows.step != 1:
        width = lookups[-2] / lookups[-1] if len(lookups) > 1 else rows.places
        return _beside_one_another(rows, inner / max(width, 1.0)), False
    if near or not lookups or not _sought_anew(node, problem, loops):
        if rows.step == 1:
            return _along(rows), inner % _TOGETHER == 0
        return _at_a_place(rows), False
    if rows.step == 1:
        return _columns(rows), False
    return _anywhere(rows if own > 1 else rows._replace(row=WARP, rows=1.0)), False


def _beside_one_another(rows: _Rows, each: float) -> _Warp:
    """Neighbours find one place after the other, ``each`` of them by so many."""
    together = max(each, 1.0)
    span = WARP / each * rows.pitch
    sectors, lines = (
        min(max(span / piece, 1.0), WARP / together) for piece in (SECTOR_BYTES, LINE_BYTES)
    )
    return _Warp(sectors, lines, together, together, _BURST)


def _along(rows: _Rows) -> _Warp:
    """Each row goes along memory from a place of its own."""
    size = rows.row * rows.itemsize
    sectors, lines = max(size / SECTOR_BYTES, 1.0), max(size / LINE_BYTES, 1.0)
    if rows.apart:
        return _Warp(rows.rows * sectors, rows.rows * lines, 1.0, 1.0)
    close = min(max(rows.pitch, size) / SECTOR_BYTES, 1.0)
    sectors *= places_met(rows.places * close, rows.rows)
    lines *= places_met(rows.places * min(rows.pitch / LINE_BYTES, 1.0), rows.rows)
    rounds = _rounds(rows.places, rows.rows)
    return _Warp(sectors, min(lines, sectors), rounds, rounds)


def _at_a_place(rows: _Rows) -> _Warp:
    """Each row's updates are of one element, or of one after the other in steps."""
    met, rounds = places_met(rows.places, rows.rows), _rounds(rows.places, rows.rows)
    if not rows.step:
        return _Warp(met, met, rounds * rows.row, rounds * rows.row)
    span = rows.row * rows.step * rows.itemsize
    sectors = met * min(max(span / SECTOR_BYTES, 1.0), rows.row)
    return _Warp(sectors, sectors, rounds, rounds)


def _columns(rows: _Rows) -> _Warp:
    """Each element of a row finds another row to be added to, in its own column."""
    beside = min(SECTOR_BYTES / rows.itemsize, rows.row)
    sectors = WARP / beside * places_met(rows.places, beside)
    lines = rows.rows * places_met(rows.places * min(rows.pitch / LINE_BYTES, 1.0), rows.row)
    rounds = 1.0 if rows.apart else _rounds(rows.places, rows.rows)
    return _Warp(sectors, min(lines, sectors), rounds, rounds)


def _anywhere(rows: _Rows) -> _Warp:
    """Each element finds a place of its own among those of its row, which lie side by side."""
    places, pitch = rows.places, rows.pitch
    span = rows.rows * places * pitch
    sectors, lines = (
        min(
            rows.rows * places_met(places * min(pitch / piece, 1.0), rows.row),
            max(span / piece, 1.0),
        )
        for piece in (SECTOR_BYTES, LINE_BYTES)
    )
    in_sector = min(places, max(SECTOR_BYTES / pitch, 1.0))
    meeting = _rounds(in_sector, WARP / sectors)
    return _Warp(sectors, min(lines, sectors), meeting, _rounds(places, rows.row))


def _computes(node: Node) -> bool:
    return any(name == "index_expr" for name, _ in node.ops)


def _sought_anew(node: Node, problem: Problem, loops: Sequence[int]) -> bool:
    """Whether a place is found for each turn of the innermost loop, as far as is known."""
    if _computes(node):
        return True
    indices = loaded_indices(node, problem)
    return not indices or any(walk(index, loops).step for index in indices)


def _rounds(places: float, lookups: float) -> float:
    """How many of the ``lookups`` find the same place, where it is found most, about."""
    each = max(lookups - 1.0, 0.0) / max(places, 1.0)
    more = math.sqrt(2.0 * each * math.log(max(places, 1.0)))
    return 1.0 + each + 0.7 * min(lookups / 8.0, 1.0) * more
