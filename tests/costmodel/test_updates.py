"""Atomic updates: how warps meet in memory, and what that comes to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusewise.costmodel.atomics import Updates, updates_of_loops
from fusewise.costmodel.updates import updates_of_warps
from fusewise.schedule.problem import Access, Buffer, Node, Problem

MakeNode = Callable[..., Node]

_THREADS = 1 << 18
_TURNS = 1 << 20
_WARPS = _TURNS / 32


def scattered(
    make_node: MakeNode,
    index: str,
    elements: int,
    *,
    inner: int = 64,
    itemsize: int = 4,
    each_row: bool = False,
    computed: bool = False,
) -> tuple[Node, Problem]:
    """A node of 2^20 turns that adds into a buffer of so many elements at ``index``.

    Places are loaded for each turn, or for ``each_row`` of ``inner`` turns.
    """
    rows = _TURNS // inner
    told = f"i0 : {rows}" if each_row else f"i0 : {_TURNS}"
    entries = rows if each_row else _TURNS
    kind = "broadcast" if each_row else "contiguous"
    along = 1 if each_row else 3
    places = Access("places", kind, _TURNS, 8 * entries, 8, 0 if each_row else 1, told, along)
    write = Access("out", "atomic", _TURNS, elements * itemsize, itemsize, 1, index)
    node = make_node(
        "op0",
        _TURNS,
        () if computed else (places,),
        (write,),
        ((("index_expr", 2),) if computed else ()) + (("indirect_indexing", 1), ("store", 1)),
        ranges=((rows, inner), ()),
    )
    buffers = (
        Buffer("places", 8 * entries, "torch.int64", True, False, ("op0",)),
        Buffer("out", elements * itemsize, "torch.float32", False, True, ()),
    )
    return node, Problem("scattered", "inference", (node,), buffers, (), ())


def warps(make_node: MakeNode, index: str, elements: int, **how: object) -> Updates:
    node, problem = scattered(make_node, index, elements, **how)  # type: ignore[arg-type]
    return updates_of_warps(node, problem, _THREADS)


def test_rows_are_updated_a_line_at_a_time(make_node: MakeNode) -> None:
    rows = warps(make_node, "i0 + 64*tmp0 : 64", 64 << 20, each_row=True)
    each = warps(make_node, "tmp0 : ", 64 << 20)
    # Four sectors of one line, where each thread for itself finds 32.
    assert rows.turns < each.turns / 4
    assert each.turns == pytest.approx(34 * _WARPS, rel=0.02)


def test_all_that_update_one_element_take_turns(make_node: MakeNode) -> None:
    one = warps(make_node, "tmp0 : ", 1)
    assert one.hits == _TURNS
    assert one.crowd == pytest.approx(_TURNS)
    few = warps(make_node, "tmp0 : ", 6)
    # Of six bins the one that most of a warp find is found by more than the mean.
    assert _TURNS / 6 < few.crowd < _TURNS / 2


@pytest.mark.parametrize("shift", range(3, 20, 4))
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_more_places_never_crowd_more(make_node: MakeNode, shift: int, itemsize: int) -> None:
    # Of very few lines some meet in one part of the cache: two take longer than one.
    for index in ("tmp0 : ", "i0 + 64*tmp0 : 64"):
        fewer, more = (
            warps(make_node, index, 64 << k, itemsize=itemsize) for k in (shift, shift + 1)
        )
        assert more.hits == fewer.hits / 2
        assert more.crowd <= fewer.crowd * 1.001
        assert 0 < more.turns <= _TURNS * 34


def test_neighbours_that_find_the_same_element_take_turns(make_node: MakeNode) -> None:
    same, twice, far = (
        warps(make_node, f"{width}*tmp0 + tmp1 : ", _TURNS, computed=True, inner=64)
        for width in (64, 32, 128)
    )
    assert twice.turns > same.turns * 1.2
    # Places that lie apart are in more sectors.
    assert far.turns > same.turns * 1.2


@pytest.mark.parametrize(
    ("index", "inner", "itemsize", "alone"),
    [
        ("i0 + 64*tmp0 : 64", 64, 2, False),
        ("i0 + 8*tmp0 : 8", 8, 2, False),
        ("i0 + 64*tmp0 : 64", 64, 4, False),
        ("tmp0 : ", 64, 2, True),
        ("tmp0 : ", 64, 4, False),
    ],
)
def test_narrow_elements_are_swapped_in_where_they_lie_apart(
    make_node: MakeNode, index: str, inner: int, itemsize: int, alone: bool
) -> None:
    found = warps(make_node, index, 1 << 16, inner=inner, itemsize=itemsize, each_row=True)
    assert (found.halves > 0) is alone
    assert found.updates == (_TURNS / 2 if itemsize == 2 and not alone else _TURNS)


def test_rows_whose_places_are_found_for_each_element_are_not_updated_together(
    make_node: MakeNode,
) -> None:
    index = "i0 + 64*tmp0 : 64"
    together = warps(make_node, index, 1 << 16, itemsize=2, each_row=True)
    apart = warps(make_node, index, 1 << 16, itemsize=2)
    assert together.halves == 0 < apart.halves
    assert apart.turns > 2 * together.turns


def test_an_update_each_turn_is_counted_on_a_cpu(make_node: MakeNode) -> None:
    node, _ = scattered(make_node, "tmp0 : ", 4096)
    found = updates_of_loops(node, 2, along=True)
    assert found == Updates(_TURNS, 0.0, _TURNS, _TURNS / 4096, _TURNS / 128)
