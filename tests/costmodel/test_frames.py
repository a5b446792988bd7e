"""How loops of nodes that share a kernel are matched."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fusewise.costmodel.frames import Frames
from fusewise.costmodel.layout import moved
from fusewise.schedule.problem import Access, Buffer, Computed, Node, Problem

MakeNode = Callable[..., Node]


@pytest.mark.parametrize("channels", [64, 96])
def test_loops_of_equal_extents_are_told_apart_by_a_buffer_that_both_go_through(
    make_node: MakeNode, channels: int
) -> None:
    rows, columns = 64, 48
    size = 2 * rows * columns * channels
    place = f"i0 : {size}"
    turned = (
        f"{rows * columns * channels}*i0 + i1 + {channels}*i2 : 2, {channels}, {rows * columns}"
    )
    write = Access("mid", "contiguous", size, 4 * size, 4, 1, place)
    read = Access("mid", "strided", size, 4 * size, 4, channels, turned)
    out = Access("out", "contiguous", size, 4 * size, 4, 1, place)
    last = make_node("op0", size, (), (write,), ranges=((2, rows, columns, channels), ()))
    first = make_node("op1", size, (read,), (out,), ranges=((2, channels, rows, columns), ()))
    frames = Frames([last, first], _problem(last, first), [{}, {}], blocks=True)
    assert frames.turns(0, 1) == (0, 3, 1, 2)
    # A node with other loops needs none.
    other = make_node("op2", 8, ranges=((8,), ()))
    assert Frames([last, other], _problem(last, other), [{}, {}], blocks=True).turns(0, 1) == ()


def _problem(*nodes: Node, buffers: tuple[Buffer, ...] = ()) -> Problem:
    return Problem("frames", "inference", nodes, buffers, (), ())


@pytest.mark.parametrize(("index", "sought"), [("i0 : 64", (True, False)), ("i0 : 8192", None)])
def test_what_is_looked_up_moves_along_loops_that_move_its_index(
    make_node: MakeNode, index: str, sought: tuple[bool, ...] | None
) -> None:
    """An index for each row sends the whole row somewhere, one for each element any of them."""
    number = Access("number", "contiguous", 8192, 8 * 64, 8, 1, index)
    table = Access("table", "gather", 8192, 4 * 8192, 4, 0, "tmp0 : ")
    out = Access("out", "contiguous", 8192, 4 * 8192, 4, 1, "i0 : 8192")
    node = make_node("op0", 8192, (number, table), (out,), ranges=((64, 128), ()))
    numbers = Buffer("number", 8 * 8192, "torch.int64", True, False, ("op0",))
    frames = Frames([node], _problem(node, buffers=(numbers,)), [{}], blocks=True)
    found = frames.frame(0, ())[1]["table", "tmp0 : "]
    assert found.anywhere
    assert found.sought == (sought or (True, True))
    sectors, _ = moved(found, [(128.0, 128.0), (64.0, 2.0)])
    assert sectors == (2 if sought else 256)


def test_what_a_whole_sum_reads_for_each_row_moves_along_what_it_reduces(
    make_node: MakeNode,
) -> None:
    """A mean of each row rests while the row is summed, but not where all rows are one sum."""
    read = Access("x", "contiguous", 8192, 4 * 8192, 4, 1, "i0 : 8192")
    mean = Access("mean", "broadcast", 8192, 4 * 64, 4, 0, "i0 : 64")
    rows = make_node("op0", 64, (read, mean), ranges=((64,), (128,)), rnumel=128)
    whole = make_node("op0", 1, (read, mean), ranges=((), (64, 128)), rnumel=8192)
    resting = [Frames([n], _problem(n), [{}], blocks=True).resting(0) for n in (rows, whole)]
    assert resting == [1, 0]


def test_places_of_a_window_keep_the_loops_apart_that_they_go_along(make_node: MakeNode) -> None:
    size = 64 * 28 * 28
    reads = tuple(
        Access("x", "contiguous", size, 4 * size, 4, 1, f"i0 + {at} : {size}")
        for at in (0, 1, 28, 29)
    )
    ops = (("index_expr", 2), ("masked", 4), ("load", 4))
    window = make_node("op0", size, reads, ops=ops, ranges=((64, 28, 28), ()))
    single = make_node("op0", size, reads[:1], ops=ops, ranges=((64, 28, 28), ()))
    shapes = [Frames([n], _problem(n), [{}], blocks=True).frame(0, ())[0] for n in (window, single)]
    assert [shape.outer for shape in shapes] == [(64, 28, 28), (size,)]
    told = msgspec.structs.replace(single, computed=(Computed("index_expr", 1, 0b100, 1.0),))
    frames = Frames([told], _problem(told), [{}], blocks=True)
    assert frames.frame(0, ())[0].outer == (64 * 28, 28)
