"""What a Triton kernel does once for several of its nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Access, Buffer, Node, Problem
from tests.costmodel.one_node import column

N = 1 << 20
#: Operations of a node and what it reads.
Told = tuple[tuple[tuple[str, int], ...], tuple[str, ...]]


@pytest.fixture
def exponentials(gpu: DeviceProfile, make_node: Callable[..., Node]) -> Callable[..., float]:
    """Exponentials for each element of one kernel of pointwise nodes."""

    def count(*nodes: Told) -> float:
        def elements(buffer: str) -> Access:
            return Access(buffer, "contiguous", N, 4 * N, 4, 1, f"i0 : {N}")

        made = tuple(
            make_node(
                f"op{i}",
                N,
                tuple(elements(name) for name in reads),
                (elements(f"out{i}"),),
                (("load", len(reads)), *ops, ("store", 1)),
                device="cuda",
            )
            for i, (ops, reads) in enumerate(nodes)
        )
        inputs = sorted({name for _, reads in nodes for name in reads})
        buffers = (
            *(Buffer(name, 4 * N, "float32", True, False, ()) for name in inputs),
            *(Buffer(f"out{i}", 4 * N, "float32", False, True, ()) for i in range(len(nodes))),
        )
        problem = Problem("shared", "inference", made, buffers, (), ())
        return column(problem, gpu, "transcendental", *(node.name for node in made)) / N

    return count


EXP: Told = ((("exp", 1),), ("x",))


@pytest.mark.parametrize(
    ("other", "done"),
    [
        pytest.param(EXP, 1, id="the same"),
        pytest.param(((("exp", 1), ("mul", 1)), ("x", "y")), 1, id="more beside it"),
        pytest.param(((("exp", 1),), ("y",)), 2, id="of other values"),
    ],
)
def test_a_producer_inlined_twice_is_computed_once(
    exponentials: Callable[..., float], other: Told, done: int
) -> None:
    assert exponentials(EXP, other) == pytest.approx(done)


def test_what_only_one_operation_has_in_common_is_not_taken_for_the_same(
    exponentials: Callable[..., float],
) -> None:
    """Nodes of the same values mostly differ in what they make of them."""
    one: Told = ((("exp", 1), ("erf", 3)), ("x",))
    two: Told = ((("exp", 1), ("sin", 3)), ("x",))
    assert exponentials(one, two) == pytest.approx(exponentials(one) + exponentials(two))


def test_a_node_is_spared_once_however_many_have_done_its_work(
    exponentials: Callable[..., float],
) -> None:
    assert exponentials(EXP, EXP, EXP) == pytest.approx(1)
