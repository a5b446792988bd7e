"""What C++ loops do once for several nodes, or once a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import pytest

from fusewise.costmodel.cpu_processors import NARROW
from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Access, Buffer, Node, Problem
from tests.costmodel.one_node import access, column, problem_of

Ops = tuple[tuple[str, int], ...]

N = 1 << 16
ELEMENTS = access("contiguous", f"i0 : {N}", N, 1)


def nodes(*told: tuple[Ops, Sequence[str]]) -> Problem:
    """Pointwise nodes "op0" and so on of N elements, by their operations and what they read."""
    problem = problem_of(((N,), ()), ELEMENTS, ELEMENTS)
    found = [
        msgspec.structs.replace(
            problem.nodes[0],
            name=f"op{i}",
            ops=(("load", len(reads)), *ops, ("store", 1)),
            reads=tuple(msgspec.structs.replace(ELEMENTS, buffer=name) for name in reads),
            writes=(msgspec.structs.replace(ELEMENTS, buffer=f"buf{i}"),),
        )
        for i, (ops, reads) in enumerate(told)
    ]
    names = sorted({name for _, reads in told for name in reads})
    inputs = [Buffer(name, 4 * N, "torch.float32", True, False, ()) for name in names]
    written = [Buffer(f"buf{i}", 4 * N, "torch.float32", False, True, ()) for i in range(len(told))]
    return msgspec.structs.replace(problem, nodes=tuple(found), buffers=(*inputs, *written))


def instructions(problem: Problem, profile: DeviceProfile, *names: str) -> float:
    """Nanoseconds of the busier of two threads."""
    return column(problem, profile, "instructions", *names)


#: Nanoseconds of an exponential of all elements.
EXP = NARROW.operations["exp"].vector * N / 2 / 8


@pytest.mark.parametrize(
    ("reads", "spared"),
    [
        # Both have the same producer inlined.
        (["x"], 1),
        # One has more beside.
        (["x", "y"], 1),
        # Of other values it is another exponential.
        (["y"], 0),
    ],
)
def test_what_two_nodes_compute_of_the_same_values_is_computed_once(
    narrow: DeviceProfile, reads: list[str], spared: int
) -> None:
    problem = nodes(((("exp", 1),), ["x"]), ((("exp", 1), ("mul", 1)), reads))
    apart = sum(instructions(problem, narrow, name) for name in ("op0", "op1"))
    saved = apart - instructions(problem, narrow, "op0", "op1")
    assert (saved > 0.9 * EXP) is bool(spared)


def test_a_third_node_computes_what_the_second_had_no_use_for(narrow: DeviceProfile) -> None:
    exp, tanh = ("exp", 1), ("tanh", 1)
    problem = nodes(((exp,), ["x"]), ((tanh,), ["x"]), ((exp, tanh), ["x"]))
    both = instructions(problem, narrow, "op0", "op1")
    # Whichever of the two it has most in common with is spared, the other is not.
    more = instructions(problem, narrow, "op0", "op1", "op2") - both
    assert 0.9 * EXP < more < NARROW.operations["tanh"].vector * N / 2 / 8


def reduction(name: str, read: Access, ranges: tuple[tuple[int, ...], tuple[int, ...]]) -> Problem:
    """One reduction of that type."""
    rows = problem_of(ranges, read, access("contiguous", "i0 : 64", 64, 1, "b"))
    node = msgspec.structs.replace(rows.nodes[0], reduction_type=name, ops=(("load", 1),))
    return msgspec.structs.replace(rows, nodes=(node,))


def twins(problem: Problem) -> Problem:
    """The problem with its reduction's other result, "op2"."""
    node = problem.nodes[0]
    other = msgspec.structs.replace(
        node, name="op2", writes=(msgspec.structs.replace(node.writes[0], buffer="c"),)
    )
    buffer = msgspec.structs.replace(problem.buffers[1], name="c")
    return msgspec.structs.replace(problem, nodes=(node, other), buffers=(*problem.buffers, buffer))


def test_the_results_of_a_welford_reduction_are_found_together(narrow: DeviceProfile) -> None:
    rows = ((64,), (1024,))
    welford = twins(reduction("welford_reduce", ELEMENTS, rows))
    alone, both = (instructions(welford, narrow, *names) for names in (["op"], ["op", "op2"]))
    assert alone < both < 1.05 * alone


@pytest.mark.parametrize(
    ("ranges", "index", "stride", "waits"),
    [
        # Along rows, each on one thread.
        (((64,), (1024,)), "i0 : 65536", 1, 0.0),
        # Across rows; along the one row that both threads share, of one loop and of two; along rows
        # of more steps than reciprocals are kept for.
        (((64,), (1024,)), "i0 + 64*i1 : 64, 1024", 64, NARROW.chain.across),
        (((), (65536,)), "i0 : 65536", 1, NARROW.chain.parted),
        (((), (64, 1024)), "1024*i0 + i1 : 64, 1024", 1, 0.0),
        (((2,), (32768,)), "i0 : 65536", 1, 0.0),
        (((2,), (65536,)), "i0 : 131072", 1, NARROW.chain.long),
    ],
)
def test_steps_of_welford_wait_for_quotients_where_no_reciprocals_are_kept(
    narrow: DeviceProfile,
    ranges: tuple[tuple[int, ...], tuple[int, ...]],
    index: str,
    stride: int,
    waits: float,
) -> None:
    kind = "contiguous" if stride == 1 else "strided"
    n = math.prod((*ranges[0], *ranges[1]))
    told = reduction("welford_reduce", access(kind, index, n, stride), ranges)
    step = NARROW.steps["welford"].vector + waits
    assert column(told, narrow, "instructions") == pytest.approx(step * n / 2 / 8, rel=0.25)


def looking_up(index: str, ranges: tuple[int, ...], ops: Ops) -> Node:
    """A node that looks up where it computes."""
    read = access("gather", index, N, 0)
    written = access("contiguous", f"i0 : {N}", N, 1, "b")
    node = problem_of((ranges, ()), read, written).nodes[0]
    return msgspec.structs.replace(node, ops=(("load", 1), *ops, ("store", 1)))


PLACES: Ops = (("index_expr", 2), ("indirect_indexing", 2), ("maximum", 40), ("minimum", 40))


@pytest.mark.parametrize(
    ("index", "left"),
    [
        # Channels lie along vectors, of one pixel that was looked up.
        ("i0 + 512*tmp0 + 64*tmp1 : 64", 0.0),
        # Pixels of a channel: one of a place's two numbers moves along a row.
        ("512*i0 + 64*tmp0 + tmp1 : 16", 0.5),
    ],
)
def test_places_are_computed_as_often_as_they_change(
    narrow: DeviceProfile, index: str, left: float
) -> None:
    def told(ops: Ops) -> float:
        node = looking_up(index, (16, 64, 64), ops)
        problem = problem_of(((16, 64, 64), ()), node.reads[0], node.writes[0])
        return column(msgspec.structs.replace(problem, nodes=(node,)), narrow, "instructions")

    none = tuple((name, count) for name, count in PLACES if "m" not in name)
    found = told(PLACES) - told(none)
    cost = NARROW.operations["maximum"]
    each_turn = left * 80 * cost.vector * N / 2 / 8
    once_a_row = (1 - left) * 80 * cost.scalar * N / 2 / 64
    assert found == pytest.approx(each_turn + once_a_row, rel=0.1)


@pytest.mark.parametrize(
    ("index", "once"),
    [("i0 : 64", True), ("64*i0 + i1 : 64, 1024", False)],
)
def test_indices_are_found_where_they_are_loaded(
    narrow: DeviceProfile, index: str, once: bool
) -> None:
    """A row of a table for each row of what is written, or an element for each element."""

    def told(ops: Ops) -> float:
        node = looking_up("i0 + 1024*tmp0 : 1024" if once else "tmp0 : ", (64, 1024), ops)
        numbers = Access("n", "broadcast" if once else "contiguous", N, N, 8, int(not once), index)
        node = msgspec.structs.replace(node, reads=(numbers, *node.reads))
        problem = problem_of(((64, 1024), ()), node.reads[1], node.writes[0])
        buffer = Buffer("n", 8 * N, "torch.int64", True, False, ("op",))
        return column(
            msgspec.structs.replace(problem, nodes=(node,), buffers=(*problem.buffers, buffer)),
            narrow,
            "instructions",
        )

    more = told((("indirect_indexing", 1), ("remainder", 1))) - told((("indirect_indexing", 1),))
    each = NARROW.operations["remainder"]
    wanted = each.scalar * 64 / 2 if once else each.vector * N / 2 / 8
    assert more == pytest.approx(wanted, rel=0.05, abs=1.0)


@pytest.mark.parametrize(("converted", "dear"), [(0, False), (1, True)])
def test_flags_that_are_made_of_integers_take_longer(
    narrow: DeviceProfile, converted: int, dear: bool
) -> None:
    told = reduction("any", ELEMENTS, ((64,), (1024,)))
    ops = (("load", 1), ("eq", 1), ("to_dtype", converted))
    node = msgspec.structs.replace(told.nodes[0], ops=ops)
    value = column(msgspec.structs.replace(told, nodes=(node,)), narrow, "instructions")
    assert (value > NARROW.operations["flag"].vector * N / 2 / 8) is dear
