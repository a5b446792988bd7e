"""The blocks of a group's Triton kernel and what they move, told from its loops and accesses alone.

Rows are held whole where ``InductorChoices.should_use_persistent_reduction`` holds them. Where
Inductor tunes among several blocks, the one is taken that a rough count of time gives. Nothing here
is of the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from fusewise.costmodel.blocks import (
    WARP,
    Block,
    Hint,
    held_blocks,
    looped_blocks,
    pointwise_blocks,
    power,
)
from fusewise.costmodel.dimensions import Mover, Shape, dimensions_of
from fusewise.costmodel.traffic import Grid, grid_of, traffic_of

#: Longest row that is held whole.
_HELD: Final = {"inner": 1024, "outer_tiny": 64, "outer": 64, "default": 64}
#: Lengths of rows of which loops may take a whole one in a turn, accesses that such a kernel has
#: at the most, and what it moves less at the least.
_LONG: Final = (2048, 32768)
_FEW_MOVERS, _SAVED = 10, 1.3
#: Rows that are longer are scanned by several blocks (``Scan.create``, ``Reduction.num_splits``).
_SPLIT_ROW: Final = 8192
#: Warps, blocks and registers that a multiprocessor has room for.
_WARPS, _BLOCKS, _REGISTERS = 64, 32, 65536
#: Loads that a thread keeps at once, at the most.
_KEPT_LOADS: Final = 8
#: Accesses that decide which block is the fastest.
_DECIDING: Final = 3
#: Nanoseconds until a load arrives, and sectors and lines that a multiprocessor takes in one.
_LATENCY_NS: Final = 600.0
_SECTORS_NS: Final = 1.6
_LINES_NS: Final = 1.5
#: The same of kernels that loop over a reduction, whose block sizes are chosen as tuning chose them
#: most often: nanoseconds of a block and of a turn, elements of a thread that are loaded before the
#: first has arrived and turns at the most, and what a multiprocessor takes for a sector, a line, an
#: element and a step in which a thread puts two results together.
_LOOPED_BLOCK_NS, _LOOPED_TURN_NS = 556.0, 284.0
_ON_THEIR_WAY, _MOST_TURNS = 13.7, 20.0
_LOOPED_SECTOR_NS, _LOOPED_LINE_NS = 0.301, 1.204
_LOOPED_ELEMENT_NS, _LOOPED_STEP_NS = 0.106, 0.068


class Tile(NamedTuple):
    """The blocks of one kernel."""

    #: What is cut into the blocks, and whether a warp goes along the reduction.
    grid: Grid
    inner: bool
    persistent: bool
    #: Whether rows end where a block does.
    even: bool
    tuned: bool
    #: Times that the device is filled with blocks until all have run.
    waves: float
    #: Elements of all blocks, over iterations, less 1.
    padding: float
    #: Threads that share a row.
    row_threads: float
    #: Sectors that all blocks touch.
    sectors: float
    #: Of these, those that stores touch.
    stored: float
    #: Loads and stores that all warps issue, cache lines that the sectors of these would fill, and
    #: those that lookups lie in.
    issued: float
    wavefronts: float
    lines: float
    #: Lines of which warps ask memory for some sectors, each time that they do.
    requests: float
    #: Bytes of the lines that all of it lies in, each once.
    spread: float
    #: Values that a turn of the loop loads from new places.
    turn_loads: int

    @property
    def programs(self) -> float:
        """Blocks."""
        return self.grid.programs

    @property
    def turns(self) -> float:
        """Turns that the loop over a reduction takes in each."""
        return self.grid.turns

    @property
    def elements(self) -> int:
        """Those of a block."""
        return self.grid.elements

    @property
    def along(self) -> int:
        """Elements of a block along the reduction."""
        return self.grid.block.along

    @property
    def across(self) -> int:
        """The same along the inner dimension outside the reduction."""
        return self.grid.block.across[0]

    @property
    def outer(self) -> int:
        """The same along the other dimensions."""
        return math.prod(self.grid.block.across[1:])

    @property
    def warps(self) -> int:
        """Those of a block."""
        return self.grid.block.warps


def tile_of(
    rows: int,
    reductions: Sequence[tuple[int, int, Hint]],
    movers: Sequence[Mover],
    shapes: Sequence[Shape],
    loads: int,
    cores: int,
    *,
    steps: bool = False,
    scans: bool = False,
) -> Tile:
    """The blocks of a kernel.

    Args:
        rows: iterations outside the reduction of its largest node.
        reductions: results, length and hint of each reduction in it.
        movers: its accesses.
        shapes: loops of its nodes.
        loads: values that it loads.
        cores: multiprocessors of the device.
        scans: whether rows are scanned: blocks share long ones then, where there are few.
        steps: whether a node beside a reduction goes through memory in steps along its last loop.
    """
    if not reductions:
        extents, _, _ = dimensions_of(rows, 1, movers, shapes)
        square = len(movers) == 2 and movers[0].written != movers[1].written  # noqa: PLR2004
        blocks = pointwise_blocks(extents, square=square)
        return _fastest(blocks, extents, 1, movers, cores, loads, persistent=False, inner=False)
    if _are_crossed(reductions):
        return _both_ways(reductions, movers, cores)
    rows, length, _ = reductions[0]
    extents, shares, inner = dimensions_of(rows, length, movers, shapes)
    hint = _hint_of(reductions)
    if hint == "inner" and steps:
        hint = "default"
    persistent = length <= _HELD[hint]
    along = inner or hint == "inner"
    if hint == "default" and inner and len(extents) == 1:
        hint = "inner"
    if scans and length > _SPLIT_ROW and rows < 2 * cores:
        [block] = looped_blocks((rows,), length, "inner", loads)
        block = block._replace(across=(1,))
        tile = _tile(block, (rows,), length, movers, cores, loads, False, False, along)
        programs = tile.programs * tile.turns
        waves = _waves(block, programs, cores, loads)
        return tile._replace(waves=waves, grid=tile.grid.run_as(programs, 1.0))
    # Along a single dimension nothing is shared out.
    shares = shares if len(extents) > 1 else ()
    if persistent:
        blocks = held_blocks(extents, length, hint, shares)
    else:
        whole = len(extents) == 1 and along and _reads_rows_again(length, movers)
        # What a later loop loads again counts again.
        loaded = sum(not m.written for m in movers) + len(reductions)
        blocks = looped_blocks(extents, length, hint, loaded, shares, whole=whole)
    return _fastest(
        blocks, extents, length, movers, cores, loads, persistent=persistent, inner=along
    )


def _reads_rows_again(length: int, movers: Sequence[Mover]) -> bool:
    """Whether holding rows would save enough reads (``inductor_meta_per_kernel``)."""
    if not _LONG[0] < length <= _LONG[1]:
        return False
    once = [m.bytes for m in movers if not m.again]
    return len(once) <= _FEW_MOVERS and sum(m.bytes for m in movers) >= _SAVED * sum(once)


def holds_rows(reductions: Sequence[tuple[int, int, Hint]]) -> bool:
    """Whether whole rows are held, or both rows and columns are gone through at once."""
    return _are_crossed(reductions) or reductions[0][1] <= _HELD[_hint_of(reductions)]


def _are_crossed(reductions: Sequence[tuple[int, int, Hint]]) -> bool:
    """Whether some go along rows of others' results."""
    first = reductions[0][:2]
    return any(each[:2] != first for each in reductions[1:])


def _hint_of(reductions: Sequence[tuple[int, int, Hint]]) -> Hint:
    """What all of them are taken for; where they differ they are tuned."""
    hint = reductions[0][2]
    return "default" if any(each[2] != hint for each in reductions[1:]) else hint


def _both_ways(
    reductions: Sequence[tuple[int, int, Hint]], movers: Sequence[Mover], cores: int
) -> Tile:
    """Along rows and across them at once (``SIMDScheduling._codegen_mix_order_reduction``).

    Each block goes through some rows, which are fetched ahead, and keeps a sum of each column.
    """
    rows, length, _ = max(reductions, key=lambda r: (r[2] == "inner", r[0]))
    each = min(max(power(rows // (8 * cores) + 1) // 2, 16), 128)
    held = power(length)
    across = min(max(each // 32, 4 if held <= 512 else 1), 16)  # noqa: PLR2004
    warps = min(max(held // 128, 2), 8)
    block = Block((across,), held, max(warps // 2, 1) if held <= 1024 else warps)  # noqa: PLR2004
    tile = _tile(block, (rows,), length, movers, cores, 2, persistent=True, tuned=True, inner=True)
    programs, turns = math.ceil(rows / each), each // across
    ahead = min(max(turns // 4, 1), 3)
    waves = _waves(block, programs, cores, 2)
    return tile._replace(waves=waves, grid=tile.grid.run_as(programs, turns / ahead))


def _fastest(
    blocks: tuple[Block, ...],
    extents: tuple[int, ...],
    length: int,
    movers: Sequence[Mover],
    cores: int,
    loads: int,
    *,
    persistent: bool,
    inner: bool,
) -> Tile:
    tuned = len(blocks) > 1
    # Of blocks along a single dimension the tuning does not choose by much.
    if not tuned or (length == 1 and len(extents) == 1):
        return _tile(blocks[0], extents, length, movers, cores, loads, persistent, tuned, inner)
    deciding = sorted(movers, key=attrgetter("bytes"), reverse=True)[:_DECIDING]
    if persistent:
        deciding = [m for m in deciding if not m.again]
    kept = min(loads, _KEPT_LOADS)
    looped = length > 1 and not persistent
    best = _fastest_block(blocks, extents, length, tuple(deciding), cores, kept, looped, inner)
    return _tile(best, extents, length, movers, cores, loads, persistent, tuned, inner)


@lru_cache(maxsize=1 << 12)
def _fastest_block(
    blocks: tuple[Block, ...],
    extents: tuple[int, ...],
    length: int,
    movers: tuple[Mover, ...],
    cores: int,
    loads: int,
    looped: bool,
    inner: bool,
) -> Block:
    """Which of ``blocks`` takes the least time for what ``movers`` move, and in a loop for that."""

    def time(block: Block) -> float:
        grid = grid_of(block, extents, length)
        sectors = wavefronts = 0.0
        for m in movers:
            traffic = traffic_of(m, grid)
            sectors += traffic.sectors
            wavefronts += traffic.wavefronts
        waves = _waves(block, grid.programs, cores, loads)
        if looped:
            moved = max(sectors * _LOOPED_SECTOR_NS, wavefronts * _LOOPED_LINE_NS)
            return (
                waves * _turning(block, grid, loads)
                + (moved + _reducing(block, grid, inner)) / cores
            )
        chain = waves * grid.turns * _LATENCY_NS
        return chain + max(sectors / _SECTORS_NS, wavefronts / _LINES_NS) / cores

    return min(dict.fromkeys(blocks), key=time)


def _turning(block: Block, grid: Grid, loads: int) -> float:
    """Nanoseconds that a block of a loop waits for what it loads, turn by turn."""
    ahead = _ON_THEIR_WAY / (max(block.each, 0.25) * max(loads, 1))
    return _LOOPED_BLOCK_NS + grid.turns * _LOOPED_TURN_NS / min(max(ahead, 1.0), _MOST_TURNS)


def _reducing(block: Block, grid: Grid, inner: bool) -> float:
    """Nanoseconds of one multiprocessor for all elements, and for putting threads' together."""
    elements = grid.programs * grid.turns * grid.elements
    steps = math.log2(_row_threads(block, inner)) * grid.programs * block.warps * WARP
    return elements * _LOOPED_ELEMENT_NS + steps * _LOOPED_STEP_NS


def _tile(
    block: Block,
    extents: tuple[int, ...],
    length: int,
    movers: Sequence[Mover],
    cores: int,
    loads: int,
    persistent: bool,
    tuned: bool,
    inner: bool,
) -> Tile:
    grid = grid_of(block, extents, length)
    sectors = stored = issued = wavefronts = lines = requests = spread = 0.0
    turn_loads = 0
    for m in movers:
        if persistent and m.again:
            continue
        touched, kept, instructions, fronts, found, asked, over, loaded = traffic_of(m, grid)
        sectors += touched
        stored += kept
        issued += instructions
        wavefronts += fronts
        lines += found
        requests += asked
        spread += over
        turn_loads += loaded
    positions = grid.programs * grid.turns * grid.elements
    return Tile(
        grid=grid,
        inner=inner,
        persistent=persistent,
        even=length % block.along == 0,
        tuned=tuned,
        waves=_waves(block, grid.programs, cores, loads),
        padding=max(positions / max(grid.rows * length, 1) - 1.0, 0.0),
        row_threads=_row_threads(block, inner) if length > 1 else 1.0,
        sectors=sectors,
        stored=stored,
        issued=issued,
        wavefronts=wavefronts,
        lines=lines,
        requests=requests,
        spread=spread,
        turn_loads=turn_loads,
    )


@lru_cache(maxsize=1 << 12)
def _row_threads(block: Block, inner: bool) -> float:
    """Threads that share a row; a warp goes along rows or across them, as memory lies."""
    across = math.prod(block.across)
    threads = block.warps * WARP
    threads = WARP * max(1, block.warps // across) if inner else max(1, threads // across)
    return float(min(block.along, threads))


@lru_cache(maxsize=1 << 12)
def _waves(block: Block, programs: float, cores: int, loads: int) -> float:
    registers = min(24 + block.each * min(loads, _KEPT_LOADS), 255)
    together = min(
        _BLOCKS, _WARPS // block.warps, int(_REGISTERS / (registers * WARP * block.warps))
    )
    return math.ceil(programs / (cores * max(together, 1)))
