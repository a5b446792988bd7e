"""What indices cost to compute, places that are looked up, and what updates them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fusewise.costmodel.atomics import Updates, updates_of_loops
from fusewise.costmodel.operations import CLASSES, operation_weight
from fusewise.costmodel.partials import (
    SUMMED,
    address_operations,
    node_sums,
    places_of,
    row_operations,
)
from fusewise.schedule.problem import Access, Computed, Node

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


def test_offsets_in_windows_are_taken_apart(make_node: MakeNode) -> None:
    ops = (("indirect_indexing", 4), ("load", 8))
    read = Access("a", "strided", 64, 256, 4, 1, "i0 : 64")
    origin = "prims._low_memory_max_pool_offsets_to_indices.default"
    plain = make_node("op0", 64, (read,), ops=ops)
    decoding = make_node("op0", 64, (read,), ops=ops, origins=(origin,))
    assert address_operations(plain) == 0
    assert address_operations(decoding) == 64 * 4 * 12


def test_sines_with_cosines_take_less_than_each_by_itself(make_node: MakeNode) -> None:
    def angles(*names: str) -> float:
        ops = (("load", 1), *((name, 1) for name in names), ("store", 1))
        sums = node_sums(make_node("op0", 64, ops=ops), Updates())
        return sums[SUMMED.index("transcendental")]

    assert max(angles("sin"), angles("cos")) < angles("cos", "sin") < angles("sin") + angles("cos")


def test_operations_on_places_are_those_that_no_loaded_value_takes(make_node: MakeNode) -> None:
    ops = (("add", 9), ("index_expr", 4), ("load", 2), ("mul", 7), ("sin", 1), ("store", 1))
    gather = Access("a", "gather", 64, 256, 4, 1, "8*tmp0 + tmp1 : ")
    node = make_node("op0", 64, (gather,), ops=ops)
    found = places_of(node)
    assert found is not None
    by_class = dict(zip(CLASSES, found.tolist(), strict=True))
    assert 0 < by_class["indexing"] <= 64 * 4
    assert 0 < by_class["arithmetic"] < 64 * 16
    assert by_class["transcendental"] == 0
    plain = Access("a", "contiguous", 64, 256, 4, 1, "i0 : 64")
    assert places_of(make_node("op0", 64, (plain,), ops=ops)) is None


@pytest.mark.parametrize(
    ("index", "itemsize", "alone"),
    [("tmp0 : ", 2, True), ("i0 + 8*tmp0 : 8", 2, False), ("tmp0 : ", 4, False)],
)
def test_narrow_elements_are_swapped_in_where_they_lie_apart(
    make_node: MakeNode, index: str, itemsize: int, alone: bool
) -> None:
    write = Access("a", "atomic", 64, 8 * itemsize, itemsize, 1, index)
    node = make_node("op0", 64, (), (write,), ranges=((8, 8), ()))
    sums = dict(
        zip(SUMMED, node_sums(node, updates_of_loops(node, 1 << 18, along=False)), strict=True)
    )
    assert (sums["atomic_halves"] > 0) is alone


def test_neighbours_of_two_bytes_are_added_to_two_at_once(make_node: MakeNode) -> None:
    def updates(itemsize: int) -> float:
        write = Access("a", "atomic", 64, 64 * itemsize, itemsize, 1, "i0 + 8*tmp0 : 8")
        node = make_node("op0", 64, (), (write,), ranges=((8, 8), ()))
        return dict(
            zip(SUMMED, node_sums(node, updates_of_loops(node, 1 << 18, along=False)), strict=True)
        )["atomic_updates"]

    assert updates(4) == 64
    assert updates(2) == 32


def test_bounds_of_places_are_of_whole_numbers(make_node: MakeNode) -> None:
    ops = (("index_expr", 1), ("maximum", 4), ("minimum", 4))
    gather = Access("a", "gather", 64, 256, 4, 1, "8*tmp0 + tmp1 : ")
    plain = Access("a", "contiguous", 64, 256, 4, 1, "i0 : 64")
    sums = [
        dict(zip(SUMMED, node_sums(make_node("op0", 64, (read,), ops=ops), Updates()), strict=True))
        for read in (gather, plain)
    ]
    assert sums[0]["arithmetic"] < sums[1]["arithmetic"] / 2


def test_narrow_updates_wait_for_those_that_go_on_at_a_time(make_node: MakeNode) -> None:
    def halves(elements: int, threads: int) -> float:
        write = Access("a", "atomic", 1 << 20, 2 * elements, 2, 1, "tmp0 : ")
        node = make_node("op0", 1 << 20, (), (write,), ranges=((1 << 10, 1 << 10), ()))
        return dict(
            zip(SUMMED, node_sums(node, updates_of_loops(node, threads, along=False)), strict=True)
        )["atomic_halves"]

    # Each of 4096 elements is updated 256 times, by 128 of 2**18 threads at a time and next to it.
    assert halves(4096, 1 << 18) == 128 * 2**20
    assert halves(4096, 1 << 10) == halves(1 << 20, 1 << 18) == 2**20
    # There is nobody else to wait for beyond those that come at all.
    assert halves(16, 1 << 30) == 2**36


def test_roots_and_logarithms_of_rows_are_found_once_a_row(make_node: MakeNode) -> None:
    node = make_node("op0", 4096, ops=(("exp", 2), ("log", 1), ("rsqrt", 2)), ranges=((64, 64), ()))
    plain = dict(zip(CLASSES, node_sums(node, Updates())[SUMMED.index(CLASSES[0]) :], strict=False))
    for resting in range(4):
        again = dict(zip(CLASSES, row_operations(node, resting).tolist(), strict=True))
        assert again["transcendental"] == pytest.approx(min(resting, 1) * 4.5 * 63 * 64)
        assert again["division"] == pytest.approx(max(resting - 1, 0) * 0.75 * 63 * 64)
        assert all(again[name] <= plain[name] for name in CLASSES)


def test_a_node_says_what_it_finds_once_a_row(make_node: MakeNode) -> None:
    computed = (
        Computed("log", 1, 0b01, 1.0),
        Computed("exp", 1, 0b10, 1.0),
        Computed("mul", 2, 0b01, 1.0),
        Computed("add", 3, 0b11, 1.0),
    )
    ops = (("add", 3), ("exp", 1), ("log", 1), ("mul", 2))
    node = make_node("op0", 64 * 256, (), (), ops, ranges=((64, 256), ()))
    found = row_operations(msgspec.structs.replace(node, computed=computed), 0)
    again = 64 * 255
    spared = dict(zip(CLASSES, found, strict=True))
    assert spared["arithmetic"] == 2 * again
    assert spared["transcendental"] == operation_weight("log") * again


def test_along_a_row_of_which_nothing_is_read_only_positions_are_compared(
    make_node: MakeNode,
) -> None:
    ops = (("eq", 1), ("exp", 1), ("index_expr", 1), ("ne", 2), ("truediv", 1), ("where", 3))
    node = make_node("op0", 4096, ops=ops, ranges=((64, 64), ()))
    again = dict(zip(CLASSES, row_operations(node, 4, wholly=True).tolist(), strict=True))
    # Two of the choices and one of the comparisons, and what is not of positions.
    assert again["selection"] == 3 * 63 * 64
    assert again["division"] == again["transcendental"] == 63 * 64
    assert again["indexing"] == 0
