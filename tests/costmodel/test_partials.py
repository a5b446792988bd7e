"""What indices cost to compute: divisions by sizes, by such as are only known at run time too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusewise.costmodel.partials import address_operations
from fusewise.schedule.problem import Access, Node

MakeNode = Callable[..., Node]


@pytest.mark.parametrize(
    ("index", "each"),
    [
        ("i0 : 64", 0),
        ("i0 + 8*i1 : 8, 8", 0),
        ("i0 + 12*i1 : 8, 12", 1),
        ("i0 + s77*i1 : 8, s77", 1),
        ("8*(i0//16) + i1 : 8, 8", 0),
        ("8*(i0//12) + i1 : 8, 8", 1),
    ],
)
def test_divisions_that_are_no_shifts(make_node: MakeNode, index: str, each: int) -> None:
    read = Access("a", "strided", 64, 256, 4, 1, index)
    node = make_node("op0", 64, (read,), ranges=((8, 8), ()))
    assert address_operations(node) == 64 * each
