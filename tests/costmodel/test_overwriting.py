"""What is written where it was read takes no other room in the cache."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.problem import Access, Buffer, Node, Problem

_ELEMENTS = 1 << 20


@pytest.fixture
def gpu(profile: DeviceProfile) -> DeviceProfile:
    """A device whose cache holds one buffer and not two."""
    return msgspec.structs.replace(
        profile, key="cuda-test", kind="cuda", cores=100, cache_bytes=6 * _ELEMENTS, cache_gbs=4e3
    )


@pytest.fixture
def doubling(make_node: Callable[..., Node]) -> Callable[..., Problem]:
    """``b = a + a``, with ``a`` made before unless it is an input, and read ``later`` or not."""

    def access(buffer: str) -> Access:
        return Access(buffer, "contiguous", _ELEMENTS, 4 * _ELEMENTS, 4, 1, f"i0 : {_ELEMENTS}")

    def make(*, made: bool = True, later: bool = False) -> Problem:
        ops = (("add", 1), ("load", 1), ("store", 1))
        nodes = [
            make_node("op0", _ELEMENTS, (access("x"),), (access("a"),), ops, device="cuda"),
            make_node("op1", _ELEMENTS, (access("a"),), (access("b"),), ops, device="cuda"),
        ]
        users = ["op1"]
        if later:
            nodes.append(
                make_node("op2", _ELEMENTS, (access("a"),), (access("c"),), ops, device="cuda")
            )
            users.append("op2")
        size = 4 * _ELEMENTS
        buffers = (
            Buffer("x", size, "torch.float32", True, False, ("op0",)),
            Buffer("a", size, "torch.float32", not made, False, tuple(users)),
            Buffer("b", size, "torch.float32", False, True, ()),
            Buffer("c", size, "torch.float32", False, True, ()),
        )
        return Problem("doubling", "inference", tuple(nodes), buffers, (), ())

    return make


def _features(problem: Problem, profile: DeviceProfile) -> np.ndarray:
    return Featurizer(problem, profile).batch([["op1"]])


def test_bytes_that_nobody_reads_later_are_written_over(
    doubling: Callable[..., Problem], gpu: DeviceProfile
) -> None:
    def in_place(**which: bool) -> float:
        return float(_features(doubling(**which), gpu)[0, COLUMN["in_place"]])

    assert in_place() == pytest.approx(np.log2(1.0 + 4 * _ELEMENTS))
    assert in_place(made=False) == 0.0
    assert in_place(later=True) == 0.0


def test_a_result_in_the_place_of_what_was_read_stays_in_the_cache(
    doubling: Callable[..., Problem], gpu: DeviceProfile
) -> None:
    over, beside = (_features(doubling(later=later), gpu) for later in (False, True))
    assert over[0, COLUMN["cache_fill"]] < beside[0, COLUMN["cache_fill"]]
    assert roofline_us(over) < 0.8 * roofline_us(beside)


@pytest.mark.parametrize(("along", "found"), [(True, 4 * _ELEMENTS), (False, 0)])
def test_what_is_updated_is_written_where_it_was(
    make_node: Callable[..., Node], gpu: DeviceProfile, along: bool, found: int
) -> None:
    """A parameter that is read, and stored again at the same place."""
    size = 4 * _ELEMENTS

    def access(buffer: str, index: str = f"i0 : {_ELEMENTS}") -> Access:
        return Access(buffer, "contiguous", _ELEMENTS, size, 4, 1, index)

    ops = (("load", 1), ("mul", 1), ("store", 1))
    read = access("p") if along else access("p", f"{_ELEMENTS - 1} - i0 : {_ELEMENTS}")
    waits = Access("p", "opaque", 0, size, 4, 0, "*")
    nodes = (
        make_node("op0", _ELEMENTS, (read,), (access("a"),), ops, device="cuda"),
        make_node("op1", _ELEMENTS, (access("a"), waits), (access("b"),), ops, device="cuda"),
    )
    buffers = (
        Buffer("p", size, "torch.float32", True, False, ("op0", "op1")),
        Buffer("a", size, "torch.float32", False, False, ("op1",)),
        Buffer("b", size, "torch.float32", False, True, (), ("p",)),
    )
    problem = Problem("update", "inference", nodes, buffers, (), ())
    together = Featurizer(problem, gpu).group(["op0", "op1"])
    assert 2.0 ** together[COLUMN["in_place"]] - 1.0 == pytest.approx(found)
    # The copy alone reads something else.
    alone = Featurizer(problem, gpu).group(["op1"])
    assert alone[COLUMN["in_place"]] == 0
