"""Atomic updates as the warps of a CUDA kernel make them: where those of one warp meet.

Memory takes the updates that a warp makes in one sector at once, those of one element one after the
other, and so whatever all warps do to one line. Constants are measured on an H200, with kernels
that do nothing else. Where a lookup leads is not known: any place is as likely as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.atomics import WHOLE_BYTES, Updates, in_one_kernel
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
    in_lines = _met(lines, warp.lines)
    in_sectors = _met(max(size / SECTOR_BYTES, 1.0), warp.sectors)
    rounds = (1.0 + _UNEVEN * few) * in_lines * warp.rounds * warp.burst
    rounds += _SECTOR_ROUND * max(in_sectors - in_lines, 0.0)
    hits = access.touched / elements
    whole = access.itemsize >= WHOLE_BYTES
    crowd = min(max(2.0 * min(threads, access.touched) / elements, 1.0), max(hits, 1.0))
    return Updates(
        updates=access.touched / (1 if whole or not rows else 2),
        halves=0.0 if whole or rows else min(crowd, _CONTENDERS) * access.touched,
        turns=warps * (warp.sectors * warp.sector_rounds + _ROUND * warp.rounds),
        hits=hits,
        crowd=warps * rounds / lines,
    )


def _warp(
    access: Access, node: Node, problem: Problem, loops: Sequence[int], elements: float
) -> tuple[_Warp, bool]:
    """What one warp does, and whether it goes along rows whose neighbours are updated together."""
    size = access.itemsize
    inner = next((extent for extent in reversed(loops) if extent > 1), 1)
    formula = formula_of(access.index)
    own = math.prod(formula.sizes) if formula is not None else 1
    places = max(elements / own, 1.0)
    lookups = looked_up_steps(access.index)
    pitch = lookups[-1] * size if lookups else size
    walked = walk(access, loops)
    step = walked.step
    if not lookups:
        inner = walked.run if step == 1 else inner
    row = min(inner, WARP)
    rows = WARP / row
    neighbours = follows_loops(node, problem) and (len(lookups) > 1 or _computes(node))
    # Rows that lie apart by themselves never meet.
    along = neighbours or not lookups or (step == 1 and own >= 2 * inner)
    stays = neighbours or not lookups or not _sought_anew(node, problem, loops)
    if neighbours and step != 1:
        # Neighbours find one place after the other, or the same ones.
        width = lookups[-2] / lookups[-1] if len(lookups) > 1 else places
        together = max(inner / max(width, 1.0), 1.0)
        span = WARP / (inner / max(width, 1.0)) * pitch
        most = WARP / together
        sectors = min(max(span / SECTOR_BYTES, 1.0), most)
        lines = min(max(span / LINE_BYTES, 1.0), most)
        return _Warp(sectors, lines, together, together, _BURST), False
    if stays and step == 1:
        met = rows if along else _met(places, rows)
        touched = max(row * size / SECTOR_BYTES, 1.0)
        in_line = max(row * size / LINE_BYTES, 1.0)
        near = 1.0 if along else min(pitch / LINE_BYTES, 1.0)
        rounds = 1.0 if along else _rounds(places, rows)
        lines = met * in_line if near == 1.0 else _met(places * near, rows) * in_line
        close = min(max(pitch, row * size) / SECTOR_BYTES, 1.0)
        sectors = _met(places * close, rows) * touched if not along else rows * touched
        return _Warp(sectors, min(lines, sectors), rounds, rounds), inner % _TOGETHER == 0
    if stays:
        # Each row's updates are of one element, or in steps.
        met = _met(places, rows)
        rounds = _rounds(places, rows) * (1.0 if step else row)
        sectors = met * (min(max(row * step * size / SECTOR_BYTES, 1.0), row) if step else 1.0)
        return _Warp(sectors, sectors, rounds, rounds), False
    if step == 1:
        # Each column finds a row of its own.
        beside = min(SECTOR_BYTES / size, row)
        sectors = WARP / beside * _met(places, beside)
        lines = rows * _met(places * min(pitch / LINE_BYTES, 1.0), row)
        rounds = 1.0 if along else _rounds(places, rows)
        return _Warp(sectors, min(lines, sectors), rounds, rounds), False
    if own == 1:
        row, rows = WARP, 1.0
    # Rows lie side by side.
    span = rows * places * pitch
    sectors = rows * _met(places * min(pitch / SECTOR_BYTES, 1.0), row)
    sectors = min(sectors, max(span / SECTOR_BYTES, 1.0))
    lines = min(rows * _met(places * min(pitch / LINE_BYTES, 1.0), row), sectors)
    lines = min(lines, max(span / LINE_BYTES, 1.0))
    beside = min(places, max(SECTOR_BYTES / pitch, 1.0))
    return _Warp(sectors, lines, _rounds(beside, WARP / sectors), _rounds(places, row)), False


def _computes(node: Node) -> bool:
    return any(name == "index_expr" for name, _ in node.ops)


def _sought_anew(node: Node, problem: Problem, loops: Sequence[int]) -> bool:
    """Whether a place is found for each turn of the innermost loop, as far as is known."""
    if _computes(node):
        return True
    indices = loaded_indices(node, problem)
    return not indices or any(walk(index, loops).step for index in indices)


def _met(places: float, lookups: float) -> float:
    """Of so many ``places``, how many are found by so many ``lookups``, on average."""
    return places * (1.0 - (1.0 - 1.0 / places) ** lookups) if places > 1.0 else 1.0


def _rounds(places: float, lookups: float) -> float:
    """How many of the ``lookups`` find the same place, where it is found most, about."""
    each = max(lookups - 1.0, 0.0) / max(places, 1.0)
    more = math.sqrt(2.0 * each * math.log(max(places, 1.0)))
    return 1.0 + each + 0.7 * min(lookups / 8.0, 1.0) * more
