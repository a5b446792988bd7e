"""Blocks of whole kernels, and what they move."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.blocks import WARP, Hint
from fusewise.costmodel.dimensions import Mover, Shape
from fusewise.costmodel.layout import layout_of
from fusewise.costmodel.tiles import Tile, tile_of
from fusewise.schedule.problem import Access

CORES = 132
HINTS: tuple[Hint, ...] = ("inner", "outer", "outer_tiny", "default")


def mover(index: str, loops: tuple[int, ...], total: int, *, written: bool = False) -> Mover:
    layout = layout_of(Access("x", "strided", total, 4 * total, 4, 1, index), loops)
    assert layout is not None
    return Mover(layout, total, 4 * total, written, near=False)


def reduced(rows: int, length: int, hint: Hint, index: str = "") -> Tile:
    index = index or f"i0 : {rows * length}"
    read = mover(index, (rows, length), rows * length)
    return tile_of(rows, [(rows, length, hint)], [read], [Shape((rows,), (length,))], 2, CORES)


@given(
    rows=st.integers(1, 1 << 20),
    length=st.integers(1, 1 << 20),
    hint=st.sampled_from(HINTS),
    loads=st.integers(1, 30),
)
def test_blocks_cover_the_loops(rows: int, length: int, hint: Hint, loads: int) -> None:
    shapes = [Shape((rows,), (length,))]
    tile = tile_of(rows, [(rows, length, hint)], [], shapes, loads, CORES)
    across = tile.elements / tile.along
    assert tile.programs * across >= rows
    assert tile.turns * tile.along >= length
    assert not tile.persistent or tile.turns == 1
    assert tile.padding >= 0


def test_short_rows_are_held_whole() -> None:
    assert reduced(4096, 768, "inner").persistent
    assert not reduced(4096, 768, "outer", "i0 + 4096*i1 : 4096, 768").persistent
    assert reduced(4096, 48, "outer", "i0 + 4096*i1 : 4096, 48").persistent


def test_long_rows_are_scanned_by_several_blocks_where_there_are_few() -> None:
    def scanned(rows: int, length: int) -> Tile:
        read = mover(f"i0 : {rows * length}", (rows, length), rows * length)
        shapes = [Shape((rows,), (length,))]
        reductions: list[tuple[int, int, Hint]] = [(rows, length, "inner")]
        return tile_of(rows, reductions, [read], shapes, 2, CORES, scans=True)

    few = scanned(100, 1 << 16)
    assert few.turns == 1
    assert few.programs * few.along == 100 << 16
    # Enough rows to go round, and rows that one block is soon through, are not cut.
    many, short = scanned(4096, 1 << 16), scanned(100, 4096)
    assert many.programs <= 4096
    assert short.programs <= 100
    assert many.turns > 1 < short.turns


def test_reductions_along_both_ways_share_rows_between_blocks() -> None:
    reductions: list[tuple[int, int, Hint]] = [(65536, 256, "inner"), (256, 65536, "outer")]
    tile = tile_of(65536, reductions, [], [], 2, CORES)
    assert tile.programs >= CORES
    # Turns are what is waited for: some are fetched ahead.
    assert tile.programs * tile.turns * tile.across * 3 >= 65536
    assert tile.persistent


def test_rows_are_shared_by_a_warp_or_more() -> None:
    inner, outer = (
        reduced(512, 4096, "inner"),
        reduced(512, 4096, "outer", "i0 + 512*i1 : 512, 4096"),
    )
    assert inner.row_threads >= WARP
    assert outer.row_threads <= outer.warps * WARP / outer.across


def test_what_is_held_is_not_read_again() -> None:
    rows, length = 1024, 512
    read = mover(f"i0 : {rows * length}", (rows, length), rows * length)
    again = replace(read, again=True)
    shapes = [Shape((rows,), (length,))]

    def issued(movers: list[Mover], hint: Hint) -> float:
        return tile_of(rows, [(rows, length, hint)], movers, shapes, 2, CORES).issued

    assert issued([read, again], "inner") == issued([read], "inner")
    assert issued([read, again], "outer") == 2 * issued([read], "outer")


def test_what_one_turn_reads_again_lies_beside_it() -> None:
    rows, length = 1024, 2000
    read = mover(f"i0 : {rows * length}", (rows, length), rows * length)

    def sectors(length: int, movers: list[Mover]) -> float:
        shapes = [Shape((rows,), (length,))]
        return tile_of(rows, [(rows, length, "inner")], movers, shapes, 2, CORES).sectors

    assert sectors(length, [read, replace(read, again=True)]) == sectors(length, [read])


def test_pointwise_kernels_have_no_reduction() -> None:
    tile = tile_of(1 << 20, [], [], [Shape((1 << 20,), ())], 2, CORES)
    assert (tile.programs, tile.turns, tile.along) == (1024, 1, 1)


def test_what_a_kernel_moves_is_told_by_its_blocks() -> None:
    n = 1 << 20
    shapes = [Shape((n,), ())]
    out = mover(f"i0 : {n}", (n,), n, written=True)
    plain = tile_of(n, [], [mover(f"i0 : {n}", (n,), n), out], shapes, 1, CORES)
    apart = tile_of(n, [], [mover(f"8*i0 : {n}", (n,), n), out], shapes, 1, CORES)
    odd = tile_of(n, [], [mover(f"i0 + 1 : {n}", (n,), n), out], shapes, 1, CORES)
    # A sector of 32 bytes has eight elements; a step of eight takes one of each.
    assert plain.sectors == 2 * n / 8
    assert apart.sectors == pytest.approx(n + n / 8, rel=0.01)
    assert plain.issued == 2 * n / 4 / WARP
    assert odd.issued == n / WARP + n / 4 / WARP
    assert apart.wavefronts > odd.wavefronts


def pointwise(movers: list[Mover], loops: tuple[int, ...]) -> Tile:
    return tile_of(math.prod(loops), [], movers, [Shape(loops, ())], 2, CORES)


def test_a_piece_of_a_concatenation_is_read_where_it_lies() -> None:
    rows, width, piece = 4096, 1024, 64
    whole = mover(f"i0 : {rows * width}", (rows, width), rows * width, written=True)
    index = f"{piece}*i0 + ((i1 - 512)) : {rows}, {width}"
    read = mover(index, (rows, width), rows * width)
    masked = replace(read, bytes=4 * rows * piece)
    assert masked.part == piece / width
    assert read.part == whole.part == 1.0
    pieces, wide = pointwise([whole, masked], (rows, width)), pointwise([whole], (rows, width))
    assert pieces.sectors == pytest.approx(wide.sectors * (1 + piece / width), rel=0.2)


def test_windows_that_overlap_are_no_pieces() -> None:
    rows, window = 4096, 9
    read = mover(f"i0 + i1 : {rows}, {window}", (rows, window), rows * window)
    assert replace(read, bytes=4 * (rows + window - 1)).part == 1.0


def test_a_request_is_of_one_line() -> None:
    rows, columns = 4096, 4096
    total = rows * columns
    stored = mover(f"i0 : {total}", (rows, columns), total, written=True)
    apart = mover(f"{32 * columns}*i0 + 32*i1 : {rows}, {columns}", (rows, columns), total)
    near, far = (pointwise([one, stored], (rows, columns)) for one in (stored, apart))
    assert near.requests == pytest.approx(near.sectors / 4)
    assert far.requests == pytest.approx(total, rel=0.05)
    assert far.spread == pytest.approx(32 * 4 * total + 4 * total, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "length", "along", "across"),
    [
        pytest.param(37_000, 128, 4, 64, id="many short ones"),
        pytest.param(512, 4096, 512, 8, id="few long ones"),
    ],
)
def test_columns_are_shared_out_as_tuning_does(
    rows: int, length: int, along: int, across: int
) -> None:
    """An H200 was seen to take small turns down many short columns, long ones down few."""
    tile = reduced(rows, length, "default", f"i0 + {rows}*i1 : {rows}, {length}")
    assert (tile.along, tile.across) == (along, across)
