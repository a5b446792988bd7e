"""What single accesses add to a kernel."""

from __future__ import annotations

from fusewise.costmodel.dimensions import Mover, Shape, mover_of
from fusewise.costmodel.layout import layout_of
from fusewise.costmodel.tiles import tile_of
from fusewise.costmodel.traffic import traffic_of
from fusewise.schedule.problem import Access

N = 1 << 20


def mover(index: str, *, written: bool = False) -> Mover:
    layout = layout_of(Access("x", "strided", N, 4 * N, 4, 1, index), (N,))
    assert layout is not None
    return mover_of(layout, N, 4 * N, written, False, False)


def test_equal_accesses_are_one() -> None:
    assert mover(f"i0 : {N}") is mover(f"i0 : {N}")
    assert mover(f"i0 : {N}") is not mover(f"i0 : {N}", written=True)


def test_a_kernel_moves_what_its_accesses_do() -> None:
    movers = [mover(f"i0 : {N}"), mover(f"8*i0 : {N}"), mover(f"i0 : {N}", written=True)]
    tile = tile_of(N, [], movers, [Shape((N,), ())], 2, 132)
    each = [traffic_of(m, tile.grid) for m in movers]
    assert tile.sectors == sum(one.sectors for one in each)
    assert tile.stored == each[-1].sectors
    assert tile.turn_loads == 2


def test_blocks_that_run_otherwise_are_as_large() -> None:
    grid = tile_of(N, [], [], [Shape((N,), ())], 2, 132).grid
    fewer = grid.run_as(7.0, 3.0)
    assert (fewer.programs, fewer.turns) == (7.0, 3.0)
    assert (fewer.block, fewer.extents, fewer.rows) == (grid.block, grid.extents, grid.rows)
