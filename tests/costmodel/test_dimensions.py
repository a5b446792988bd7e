"""Dimensions of kernels: where memory lies along different loops."""

from __future__ import annotations

from fusewise.costmodel.dimensions import Mover, Shape, dimensions_of
from fusewise.costmodel.layout import layout_of
from fusewise.schedule.problem import Access

ROWS = 64 * 128 * 784
LOOPS = (64, 128, 784)


def mover(index: str, stride: int, *, written: bool = False) -> Mover:
    layout = layout_of(Access("x", "strided", ROWS, 4 * ROWS, 4, stride, index), LOOPS)
    assert layout is not None
    return Mover(layout, ROWS, 4 * ROWS, written, near=False)


ACROSS = mover("100352*i0 + i1 + 128*i2 : 64, 128, 784", 128)
ALONG = mover("i0 : 6422528", 1, written=True)


def test_what_lies_along_one_loop_has_one_dimension() -> None:
    assert dimensions_of(ROWS, 1, [ALONG], [Shape((ROWS,), ())]).extents == (ROWS,)


def test_a_transpose_has_two() -> None:
    assert dimensions_of(ROWS, 1, [ACROSS, ALONG], [Shape(LOOPS, ())]).extents == (784, 64 * 128)


def test_loops_that_go_through_memory_as_one_are_one() -> None:
    loops = (64, 28, 28, 128)
    index = "100352*i0 + i1 + 784*i2 : 64, 784, 128"
    layout = layout_of(Access("x", "strided", ROWS, 4 * ROWS, 4, 784, index), loops)
    along = layout_of(Access("y", "contiguous", ROWS, 4 * ROWS, 4, 1, "i0 : 6422528"), loops)
    assert layout is not None
    assert along is not None
    write = Mover(layout, ROWS, 4 * ROWS, written=True, near=False)
    read = Mover(along, ROWS, 4 * ROWS, written=False, near=False)
    assert dimensions_of(ROWS, 1, [write, read], [Shape((64, 784, 128), ())]).extents == (
        128,
        50176,
    )


def test_loops_that_cannot_be_cut_to_the_same_hide_the_transpose() -> None:
    # Inductor then takes two loops for one, which no access lies along.
    shapes = [Shape(LOOPS, ()), Shape((ROWS,), ())]
    assert dimensions_of(ROWS, 1, [ACROSS, ALONG], shapes).extents == (ROWS,)


def test_reductions_tell_whether_memory_lies_along_them() -> None:
    shape = Shape((64 * 128,), (784,))
    assert dimensions_of(64 * 128, 784, [ALONG], [shape]).inner
    across = mover("i0 + 8192*i1 : 8192, 784", 8192)
    assert not dimensions_of(64 * 128, 784, [across], [shape]).inner


def test_neighbours_behind_a_jump_are_overlooked_as_inductor_does() -> None:
    # An index that starts over at its first turn looks like any other jump from there.
    rolled = "100352*i0 + ModularIndexing(i1 + 127, 1, 128) + 128*i2 : 64, 128, 784"
    assert dimensions_of(ROWS, 1, [mover(rolled, 128), ALONG], [Shape(LOOPS, ())]).extents == (
        ROWS,
    )


def test_a_loop_that_an_access_stays_in_place_for_is_a_dimension() -> None:
    # Each fourth of the gradients of a pooling stays along the outer loop of an image at first.
    pooled = "6272*i0 + 49*i1 + 14*(i2//2) + (i3//3) : 64, 128, 28, 28"
    loops = (64, 128, 28, 28)
    along = layout_of(Access("y", "contiguous", ROWS, 4 * ROWS, 4, 1, "i0 : 6422528"), loops)
    across = layout_of(Access("x", "strided", ROWS, 4 * ROWS, 4, 49, pooled), loops)
    assert along is not None
    assert across is not None
    movers = [
        Mover(along, ROWS, 4 * ROWS, written=True, near=False),
        Mover(across, ROWS, ROWS, written=False, near=False),
    ]
    assert dimensions_of(ROWS, 1, movers, [Shape(loops, ())]).extents == (28, ROWS // 28)


def test_loops_are_cut_in_two_where_those_of_another_node_need_it() -> None:
    # 64 * 128 results of 28 * 28 values, of which one node goes through the columns of each.
    shapes = [Shape((8192, 784), ()), Shape((8192, 28, 28), ())]
    column = layout_of(
        Access("x", "strided", ROWS, 4 * ROWS, 4, 1, "784*i0 + i1 + 28*i2 : 8192, 28, 28"),
        (8192, 28, 28),
    )
    assert column is not None
    across = Mover(column, ROWS, 4 * ROWS, written=False, near=False)
    assert dimensions_of(ROWS, 1, [across, ALONG], shapes).extents == (28, 8192 * 28)
