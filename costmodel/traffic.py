"""What the blocks of a Triton kernel move by one access: sectors, lines and loads of its warps.

Accesses and grids are told apart by which they are, so that what is found of a pair of them is
found again at once: the groups of a search have most of theirs in common. What a kernel moves by
all of its accesses is the business of ``fusewise.costmodel.tiles``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from fusewise.costmodel.blocks import WARP, Block
from fusewise.costmodel.dimensions import Mover
from fusewise.costmodel.layout import LINE_BYTES, SECTOR_BYTES, Layout, Section, moved

#: Sectors that a cache looks up at once.
_LINE_SECTORS: Final = LINE_BYTES // SECTOR_BYTES
#: Bytes of a table that stay in the cache of a multiprocessor, and lines as long to look up as
#: what each thread of a warp has elsewhere there.
_TABLE_BYTES, _TABLE_LINES = 192 << 10, 5.0


@dataclass(frozen=True, eq=False)
class Grid:
    """The blocks that the loops of a kernel are cut into."""

    block: Block
    #: Positions of the results along each dimension, the inner first, and along the reduction.
    extents: tuple[int, ...]
    length: int
    #: Blocks, and turns that the loop over a reduction takes in each.
    programs: float
    turns: float

    @cached_property
    def rows(self) -> int:
        """Results."""
        return math.prod(self.extents)

    @cached_property
    def elements(self) -> int:
        """Those of a block."""
        return self.block.elements

    @cached_property
    def across(self) -> tuple[Section, ...]:
        """The sections of the results that a block takes so much of."""
        return tuple(
            (float(extent), float(min(part, extent)))
            for extent, part in zip(self.extents, self.block.across, strict=True)
        )

    @cached_property
    def whole(self) -> tuple[Section, ...]:
        """The same with that of the reduction, which comes first."""
        return ((float(self.length), float(min(self.block.along, self.length))), *self.across)

    def run_as(self, programs: float, turns: float) -> Grid:
        """The same blocks, of which others run at once and one after the other."""
        return _run_as(self, programs, turns)


@lru_cache(maxsize=1 << 12)
def grid_of(block: Block, extents: tuple[int, ...], length: int) -> Grid:
    """The grid of a kernel whose loops are cut into such blocks."""
    programs = 1.0
    for extent, part in zip(extents, block.across, strict=True):
        programs *= math.ceil(extent / part)
    return Grid(block, extents, length, programs, math.ceil(length / block.along))


@lru_cache(maxsize=1 << 10)
def _run_as(grid: Grid, programs: float, turns: float) -> Grid:
    return Grid(grid.block, grid.extents, grid.length, programs, turns)


class Moved(NamedTuple):
    """What the blocks of a kernel move by one access."""

    #: Sectors that a block touches, loads that its warps issue, sectors of one of these, and lines
    #: that they lie in.
    each: float
    issued: float
    asked: float
    apart: float
    #: How often, in all blocks and their turns.
    times: float
    #: Whether it goes along the reduction.
    full: bool


def moved_by(m: Mover, grid: Grid) -> Moved:
    """What the blocks of ``grid`` move by the access ``m``."""
    full = grid.length > 1 and m.total > grid.rows
    each, issued, asked, apart = _moves(m.layout, grid.whole if full else grid.across)
    if m.layout.looked_up:
        # However many look up, they find no more than there is.
        most = m.bytes / SECTOR_BYTES + 1.0
        each, asked = min(each, most), min(asked, most)
        apart = min(apart, m.bytes / LINE_BYTES + 1.0)
    times = grid.programs * (grid.turns if full else 1) * m.part
    return Moved(each, issued, asked, apart, times, full)


class Traffic(NamedTuple):
    """What one access adds to a kernel, named as in ``Tile``."""

    sectors: float
    stored: float
    issued: float
    wavefronts: float
    lines: float
    requests: float
    spread: float
    #: Whether a turn of the loop loads it from a new place.
    loads: bool


@lru_cache(maxsize=1 << 14)
def traffic_of(m: Mover, grid: Grid) -> Traffic:
    """What the access ``m`` adds to a kernel with the blocks of ``grid``."""
    each, instructions, asked, apart, times, full = moved_by(m, grid)
    length = grid.length
    loads = (length == 1 or (full and not m.layout.stays(length))) and not m.written
    instructions *= times
    missed = 0.0 if m.near else _missed(m)
    lines = instructions * _looked_up(m.layout, apart, missed) if m.layout.looked_up else 0.0
    touched = requests = spread = 0.0
    # A loop of one turn finds what an earlier one loaded beside it.
    if not m.near and not (m.again and grid.turns == 1):
        # Stores are not gathered: a sector that two of them touch is touched twice.
        touched = instructions * asked if m.written else each * times * missed
        requests = touched * min(apart / asked, 1.0)
        spread = max(_lines(m.layout, m.total) * LINE_BYTES * m.part, float(m.bytes))
    return Traffic(
        sectors=touched,
        stored=touched if m.written else 0.0,
        issued=instructions,
        wavefronts=instructions * max(asked / _LINE_SECTORS, 1.0),
        lines=lines,
        requests=requests,
        spread=spread,
        loads=loads,
    )


def _missed(m: Mover) -> float:
    """Part of what an access reads that its multiprocessor has not kept from another lookup."""
    if not m.layout.anywhere or m.written:
        return 1.0
    return max(1.0 - _TABLE_BYTES / max(m.bytes, 1), 0.0)


def _looked_up(layout: Layout, apart: float, missed: float) -> float:
    """Lines that a warp looks up at once in an access ``apart`` over so many."""
    if not layout.anywhere:
        return apart
    scattered = layout.steps[-1:] == (0,) and (not layout.sought or layout.sought[-1])
    kept = _TABLE_LINES if scattered else min(apart, _TABLE_LINES)
    return kept + max(apart - kept, 0.0) * missed


@lru_cache(maxsize=1 << 17)
def _moves(layout: Layout, sections: tuple[Section, ...]) -> tuple[float, float, float, float]:
    """Sectors that a block touches, loads that its warps issue, sectors of one of these, and the
    lines that they lie in.

    Threads of a warp go along the section that memory lies along, then along the others. They load
    several elements at once where these are neighbours in that section.
    """
    each, elements = moved(layout, sections)
    first, vector, product = 0, 1, 1.0
    if layout.inside:
        for i, (total, _) in enumerate(sections):
            if layout.inside < product * total:
                first = i
                if layout.inside <= product:
                    vector = layout.vector_within(product * total)
                break
            product *= total
    lanes = float(WARP * vector)
    parts = [1.0] * len(sections)
    for i in (first, *(i for i in range(len(sections)) if i != first)):
        parts[i] = min(sections[i][1], lanes)
        lanes /= parts[i]
    request = [(total, part) for (total, _), part in zip(sections, parts, strict=True)]
    issued = max(elements / vector, 1.0) / WARP
    return each, issued, moved(layout, request)[0], moved(layout, request, LINE_BYTES)[0]


@lru_cache(maxsize=1 << 17)
def _lines(layout: Layout, total: int) -> float:
    """Lines that an access under loops of so many turns lies in, those of lookups left out."""
    if layout.looked_up:
        return 0.0
    return moved(layout, ((float(total), float(total)),), LINE_BYTES)[0]
