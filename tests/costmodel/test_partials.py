"""What indices cost to compute: divisions by sizes, by such as are only known at run time too."""

from __future__ import annotations

import pytest

from fusewise.costmodel.partials import address_operations
from fusewise.schedule.problem import Access, Node


def node(index: str) -> Node:
    """Sixty-four iterations that read by an index."""
    return Node(
        name="op0",
        kind="pointwise",
        device="cuda",
        numel=64,
        rnumel=1,
        ranges=((8, 8), ()),
        reduction_type="",
        reads=(Access("a", "strided", 64, 256, 4, 1, index),),
        writes=(),
        ops=(),
        origins=(),
        source="",
        order=0,
        compiler_us=0.0,
        flops=0,
        signature="s",
    )


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
def test_divisions_that_are_no_shifts(index: str, each: int) -> None:
    assert address_operations(node(index)) == 64 * each
