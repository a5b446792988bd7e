"""What accesses and nodes are like one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.dimensions import Mover, Shape
from fusewise.costmodel.layout import layout_of
from fusewise.costmodel.means import (
    EACH_NODE,
    MAIN_NODE,
    OF_ACCESSES,
    SHAPE,
    access_means,
    doublings,
    loop_powers,
    node_told,
    power_of,
    shape_of,
)
from fusewise.costmodel.operations import CLASSES
from fusewise.costmodel.tiles import Tile, tile_of
from fusewise.schedule.problem import Access, Node

ROWS, WIDTH = 4096, 1000
LOOPS = (ROWS, WIDTH)


def mover(index: str, itemsize: int = 4, *, written: bool = False) -> Mover:
    total = math.prod(LOOPS)
    access = Access("x", "strided", total, itemsize * total, itemsize, 1, index)
    layout = layout_of(access, LOOPS)
    assert layout is not None
    return Mover(layout, total, itemsize * total, written, near=False)


PLAIN = mover(f"i0 : {ROWS * WIDTH}")
ACROSS = mover(f"i0 + {ROWS}*i1 : {ROWS}, {WIDTH}")
STORED = mover(f"i0 : {ROWS * WIDTH}", itemsize=2, written=True)


def blocks(movers: list[Mover]) -> Tile:
    return tile_of(ROWS * WIDTH, [], movers, [Shape(LOOPS, ())], len(movers), 132)


def means(movers: list[Mover]) -> dict[str, float]:
    [found] = access_means([(movers, blocks(movers).grid)]).tolist()
    return dict(zip(OF_ACCESSES, found, strict=True))


@given(st.integers(1, 1 << 40))
def test_a_power_of_two_is_told_up_to_twelve(number: int) -> None:
    assert number % 2 ** power_of(number) == 0
    assert power_of(number) == 12 or number % 2 ** (power_of(number) + 1)
    assert power_of(0) == 12


def test_a_kernel_of_one_access_is_like_it() -> None:
    alone = means([ACROSS])
    assert alone["step_0"] == doublings(ROWS)
    assert alone["step_power_0"] == 12
    assert alone["step_1"] == 1
    assert alone["stored_part"] == alone["two_bytes"] == 0
    assert alone["four_bytes"] == alone["different"] == 1
    at = OF_ACCESSES.index("warp_lines")
    grid = blocks([PLAIN]).grid
    across, plain = access_means([([ACROSS], grid), ([PLAIN], grid)])
    assert across[at] > plain[at]


@given(st.lists(st.sampled_from([PLAIN, ACROSS, STORED]), min_size=1, max_size=6))
def test_means_lie_between_the_accesses(movers: list[Mover]) -> None:
    grid = blocks(movers).grid
    [found, *each] = access_means([(movers, grid), *(([m], grid) for m in movers)])
    for value, *others in zip(found, *each, strict=True):
        assert min(others) - 1e-9 <= value <= max(others) + 1e-9


def test_what_moves_most_counts_most() -> None:
    few = means([PLAIN, STORED])
    assert few["stored_part"] == few["two_bytes"] == pytest.approx(1 / 3)
    assert few["four_bytes"] == pytest.approx(2 / 3)


def test_without_blocks_accesses_count_by_their_bytes() -> None:
    [told] = access_means([([PLAIN, STORED], None)]).tolist()
    found = dict(zip(OF_ACCESSES, told, strict=True))
    assert found["stored_part"] == found["two_bytes"] == pytest.approx(1 / 3)
    assert found["step_0"] == 1
    assert not any(found[name] for name in OF_ACCESSES if name.startswith(("block_", "warp_")))


def test_without_accesses_nothing_is_told() -> None:
    assert not access_means([([], blocks([PLAIN]).grid), ([], None)]).any()


def test_the_shape_is_that_of_the_blocks() -> None:
    told = dict(zip(SHAPE, shape_of(blocks([PLAIN])), strict=True))
    assert told["results_inner"] == ROWS * WIDTH
    assert told["inner_power"] == 12
    assert told["results_outer"] == 0
    crossed = dict(zip(SHAPE, shape_of(blocks([ACROSS, PLAIN])), strict=True))
    assert {crossed["results_inner"], crossed["results_outer"]} == {ROWS, WIDTH}
    assert {crossed["inner_power"], crossed["outer_power"]} == {12, 3}


def test_a_node_tells_what_an_iteration_takes(make_node: Callable[..., Node]) -> None:
    node = make_node("op0", 96, (), ())
    operations = [0.0] * len(CLASSES)
    operations[CLASSES.index("division")] = 3.0 * node.numel * node.rnumel
    work, *told = node_told(node, operations, 0.0)
    each = dict(zip(EACH_NODE, told, strict=False))
    main = dict(zip(MAIN_NODE, told[len(EACH_NODE) :], strict=True))
    assert each["each_division"] == 2
    assert each["each_arithmetic"] == each["each_address"] == 0
    assert main["main_division"] == pytest.approx(2 * work)
    assert main["main_numel"] == pytest.approx(work * doublings(node.numel))
    assert loop_powers(node) == (5, 12)
