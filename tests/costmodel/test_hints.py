"""What a reduction is taken for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fusewise.costmodel.hints import reduction_hint, reduction_hints
from fusewise.schedule.problem import Access, Dependency, Node, Problem

CORES = 132
ACROSS = Access("x", "strided", 1 << 20, 1 << 22, 4, 256, "i0 + 256*i1 : 256, 4096")


@pytest.fixture
def across(make_node: Callable[..., Node]) -> Node:
    """A sum over what lies furthest apart."""
    return make_node(
        "op0",
        256,
        (ACROSS,),
        kind="reduction",
        rnumel=4096,
        ranges=((256,), (4096,)),
        reduction_type="sum",
        origins=("aten.sum.dim_IntList",),
    )


def hint_of(node: Node) -> str:
    return reduction_hint(node, CORES, node.numel)


@pytest.mark.parametrize("told", ["inner", "outer", "default", "outer_tiny"])
def test_a_hint_that_was_kept_is_taken(across: Node, told: str) -> None:
    assert hint_of(msgspec.structs.replace(across, hint=told)) == told


def test_a_hint_is_guessed_from_how_the_reads_lie(across: Node) -> None:
    padded = Access("x", "contiguous", 1 << 20, 1 << 22, 4, 1, "8192*i0 + i1 : 256, 4096")
    assert hint_of(across) == "outer"
    assert hint_of(msgspec.structs.replace(across, reads=(padded,))) == "inner"


def test_short_rows_and_many_results_are_tuned(across: Node) -> None:
    short = Access("x", "strided", 1 << 12, 1 << 14, 4, 256, "i0 + 256*i1 : 256, 16")
    node = msgspec.structs.replace(across, reads=(short,), rnumel=16, ranges=((256,), (16,)))
    assert hint_of(node) == "default"
    many = Access("x", "strided", 1 << 22, 1 << 24, 4, 1, "i0 + 16384*i1 : 16384, 256")
    node = msgspec.structs.replace(
        across, reads=(many,), numel=16384, rnumel=256, ranges=((16384,), (256,))
    )
    assert hint_of(node) == "default"


def test_halves_of_a_split_reduction_are_judged_as_the_whole(across: Node) -> None:
    first_read = Access("x", "strided", 1 << 22, 1 << 24, 4, 24, "24*i1 + i0 : 49152, 128")
    first = msgspec.structs.replace(
        across, reads=(first_read,), numel=49152, rnumel=128, ranges=((49152,), (128,))
    )
    second_read = Access("buf0", "strided", 49152, 196608, 4, 96, "i0 + 96*i1 : 96, 512")
    second = msgspec.structs.replace(
        across, name="op1", reads=(second_read,), numel=96, rnumel=512, ranges=((96,), (512,))
    )
    problem = Problem(
        key="k",
        kind="forward",
        nodes=(first, second),
        buffers=(),
        dependencies=(Dependency("op1", "op0", "buf0"),),
        possible_fusions=(),
    )
    assert reduction_hints(problem, CORES) == {"op0": "outer", "op1": "outer_tiny"}
    # On its own the first half has results enough to be tuned.
    assert hint_of(first) == "default"
