"""How loops of nodes that share a kernel are matched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusewise.costmodel.frames import Frames
from fusewise.schedule.problem import Access, Node

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
    frames = Frames([last, first], [{}, {}])
    assert frames.turns(0, 1) == (0, 3, 1, 2)
    # A node with other loops needs none.
    assert Frames([last, make_node("op2", 8, ranges=((8,), ()))], [{}, {}]).turns(0, 1) == ()
