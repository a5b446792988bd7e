"""The blocks of a group's Triton kernel and what they move, told from its loops and accesses alone.

Rows are held whole where ``InductorChoices.should_use_persistent_reduction`` holds them. Where
Inductor tunes among several blocks, the one is taken that a rough count of time gives. Nothing here
is of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fusewise.costmodel.blocks import (
    Block,
    Hint,
    held_blocks,
    looped_blocks,
    pointwise_blocks,
    power,
)
from fusewise.costmodel.dimensions import Mover, Shape, dimensions_of
from fusewise.costmodel.layout import Layout, Section, moved

#: Longest row that is held whole.
_HELD: Final = {"inner": 1024, "outer_tiny": 64, "outer": 64, "default": 64}
#: Sectors of a cache line.
_LINE_SECTORS: Final = 4
#: Threads of a warp.
WARP: Final = 32
#: Warps, blocks and registers that a multiprocessor has room for.
_WARPS, _BLOCKS, _REGISTERS = 64, 32, 65536
#: Accesses that decide which block is the fastest.
_DECIDING: Final = 3
#: Nanoseconds until a load arrives, and sectors and lines that a multiprocessor takes in one.
_LATENCY_NS: Final = 600.0
_SECTORS_NS: Final = 1.6
_LINES_NS: Final = 1.5


class Tile(NamedTuple):
    """The blocks of one kernel."""

    programs: float
    #: Turns that the loop over a reduction takes in each.
    turns: float
    elements: float
    along: float
    #: Along the inner dimension outside the reduction, and along the others.
    across: float
    outer: float
    warps: float
    persistent: bool
    #: Whether rows end where a block does.
    even: bool
    tuned: bool
    #: Times that the device is filled with blocks until all have run.
    waves: float
    #: Elements of all blocks, over iterations, less 1.
    padding: float
    #: Sectors that all blocks touch.
    sectors: float
    #: Loads and stores that all warps issue, and cache lines that these ask for.
    issued: float
    wavefronts: float


def tile_of(
    rows: int,
    reductions: Sequence[tuple[int, int, Hint]],
    movers: Sequence[Mover],
    shapes: Sequence[Shape],
    loads: int,
    cores: int,
    *,
    steps: bool = False,
) -> Tile:
    """The blocks of a kernel.

    Args:
        rows: iterations outside the reduction of its largest node.
        reductions: results, length and hint of each reduction in it.
        movers: its accesses.
        shapes: loops of its nodes.
        loads: values that it loads.
        cores: multiprocessors of the device.
        steps: whether a node beside a reduction goes through memory in steps along its last loop.
    """
    if len({(rows, length) for rows, length, _ in reductions}) > 1:
        return _both_ways(reductions, movers, cores)
    length = reductions[0][1] if reductions else 1
    if reductions:
        rows = reductions[0][0]
    extents, inner = dimensions_of(rows, length, movers, shapes)
    if not reductions:
        ends = sum(m.written for m in movers)
        blocks = pointwise_blocks(extents, square=len(movers) == 2 and ends == 1)  # noqa: PLR2004
        return _fastest(blocks, extents, 1, movers, cores, loads, persistent=False)
    hints = {hint for _, _, hint in reductions}
    hint: Hint = hints.pop() if len(hints) == 1 else "default"
    if hint == "inner" and steps:
        hint = "default"
    persistent = length <= _HELD[hint]
    if hint == "default" and inner and len(extents) == 1:
        hint = "inner"
    blocks = (
        held_blocks(extents, length, hint)
        if persistent
        else looped_blocks(extents, length, hint, loads + len(reductions))
    )
    return _fastest(blocks, extents, length, movers, cores, loads, persistent=persistent)


def _both_ways(
    reductions: Sequence[tuple[int, int, Hint]], movers: Sequence[Mover], cores: int
) -> Tile:
    """Along one dimension and another at once: each block takes some rows of the longer way
    (``mix_order_reduction``)."""
    rows, length, _ = max(reductions, key=lambda r: r[0])
    each = max(1, rows // (8 * cores))
    held = power(length)
    block = Block((1,), held, max(min(held // 256, 8), 1))
    tile = _tile(block, (rows,), length, movers, cores, 2, persistent=True, tuned=True)
    programs = math.ceil(rows / each)
    return tile._replace(programs=programs, turns=each, waves=_waves(block, programs, cores, 2))


def _fastest(
    blocks: Sequence[Block],
    extents: Sequence[int],
    length: int,
    movers: Sequence[Mover],
    cores: int,
    loads: int,
    *,
    persistent: bool,
) -> Tile:
    tuned = len(blocks) > 1
    # Of blocks along a single dimension the tuning does not choose by much.
    if not tuned or (length == 1 and len(extents) == 1):
        return _tile(blocks[0], extents, length, movers, cores, loads, persistent, tuned)
    deciding = sorted(movers, key=lambda m: -m.bytes)[:_DECIDING]

    def time(block: Block) -> float:
        tile = _tile(block, extents, length, deciding, cores, loads, persistent, tuned)
        chain = tile.waves * tile.turns * _LATENCY_NS
        return chain + max(tile.sectors / _SECTORS_NS, tile.wavefronts / _LINES_NS) / cores

    best = min(dict.fromkeys(blocks), key=time)
    return _tile(best, extents, length, movers, cores, loads, persistent, tuned)


def _tile(
    block: Block,
    extents: Sequence[int],
    length: int,
    movers: Sequence[Mover],
    cores: int,
    loads: int,
    persistent: bool,
    tuned: bool,
) -> Tile:
    programs = 1.0
    for extent, part in zip(extents, block.across, strict=True):
        programs *= math.ceil(extent / part)
    turns = math.ceil(length / block.along)
    rows = math.prod(extents)
    across = tuple(
        (float(extent), float(min(part, extent)))
        for extent, part in zip(extents, block.across, strict=True)
    )
    whole = ((float(length), float(min(block.along, length))), *across)
    sectors = issued = wavefronts = 0.0
    for m in movers:
        full = length > 1 and m.total > rows
        sections = whole if full else across
        each, instructions, asked = _moves(m.layout, sections)
        times = programs * (turns if full else 1)
        instructions *= times
        issued += instructions
        wavefronts += instructions * max(asked / _LINE_SECTORS, 1.0)
        if not m.near:
            # Stores are not gathered: a sector that two of them touch is touched twice.
            sectors += instructions * asked if m.written else each * times
    return Tile(
        programs=programs,
        turns=turns,
        elements=block.elements,
        along=block.along,
        across=block.across[0],
        outer=math.prod(block.across[1:]),
        warps=block.warps,
        persistent=persistent,
        even=length % block.along == 0,
        tuned=tuned,
        waves=_waves(block, programs, cores, loads),
        padding=max(programs * turns * block.elements / max(rows * length, 1) - 1.0, 0.0),
        sectors=sectors,
        issued=issued,
        wavefronts=wavefronts,
    )


@lru_cache(maxsize=1 << 17)
def _moves(layout: Layout, sections: tuple[Section, ...]) -> tuple[float, float, float]:
    """Sectors that a block touches, loads that its warps issue, and sectors of one of these.

    Threads of a warp go along the section that memory lies along, then along the others.
    """
    each, loads = moved(layout, sections)
    lanes = float(WARP * layout.vector)
    first, product = 0, 1.0
    if len(sections) > 1 and layout.inside:
        for i, (total, _) in enumerate(sections):
            product *= total
            if layout.inside < product:
                first = i
                break
    parts = [1.0] * len(sections)
    for i in (first, *(i for i in range(len(sections)) if i != first)):
        parts[i] = min(sections[i][1], lanes)
        lanes /= parts[i]
    request = [(total, part) for (total, _), part in zip(sections, parts, strict=True)]
    return each, loads / WARP, moved(layout, request)[0]


def _waves(block: Block, programs: float, cores: int, loads: int) -> float:
    each = block.elements / (block.warps * WARP)
    registers = min(24 + each * min(loads, 8), 255)
    together = min(
        _BLOCKS, _WARPS // block.warps, int(_REGISTERS / (registers * WARP * block.warps))
    )
    return math.ceil(programs / (cores * max(together, 1)))
