"""What C++ loops compute in each turn and once a row, where a problem says what goes along them."""

from __future__ import annotations

import msgspec
import pytest

from fusewise.costmodel.cpu_hoisting import parted
from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Computed, Problem
from tests.costmodel.one_node import access, column, problem_of

_ROW, _ALONG, _BOTH = 0b01, 0b10, 0b11
_COMPUTED = (
    Computed("pow", 1, _ROW, 1.0),
    Computed("cos", 1, _ALONG, 1.0),
    Computed("mul", 2, _BOTH, 1.0),
    Computed("add", 1, _ROW, 1.0),
    Computed("sub", 1, 0, 1.0),
    Computed("exp", 1, _BOTH, 0.25),
)


@pytest.mark.parametrize(
    ("tiled", "turn", "once", "once_vector"),
    [
        # Vectors along the innermost loop.
        ((1,), {"cos": 1, "mul": 2, "add": 1, "exp": 0.25}, {"pow": 1, "sub": 1}, {}),
        # A tile that is transposed, either way.
        ((0, 1), {"mul": 2, "add": 1, "exp": 0.25}, {"pow": 1, "sub": 1}, {"cos": 1}),
        ((1, 0), {"mul": 2, "add": 1, "exp": 0.25}, {"cos": 1, "sub": 1}, {"pow": 1}),
        # Vectors along another loop, and none.
        ((0,), {"pow": 1, "cos": 1, "mul": 2, "add": 1, "sub": 1, "exp": 0.25}, {}, {}),
        ((), {"pow": 1, "cos": 1, "mul": 2, "add": 1, "sub": 1, "exp": 0.25}, {}, {}),
    ],
)
def test_what_does_not_go_along_is_done_before(
    tiled: tuple[int, ...],
    turn: dict[str, float],
    once: dict[str, float],
    once_vector: dict[str, float],
) -> None:
    found = parted(_COMPUTED, tiled, 2)
    assert (dict(found.turn), dict(found.once), dict(found.once_vector)) == (
        turn,
        once,
        once_vector,
    )


def _rows(*computed: Computed, held: float = 1.0) -> Problem:
    """Rows of 512 elements that are read and stored."""
    elements = 64 * 512
    read = access("contiguous", f"i0 : {elements}", elements, 1)
    written = access("contiguous", f"i0 : {elements}", elements, 1, "b")
    problem = problem_of(((64, 512), ()), msgspec.structs.replace(read, held=held), written)
    (node,) = problem.nodes
    node = msgspec.structs.replace(node, computed=computed)
    return msgspec.structs.replace(problem, nodes=(node,))


def test_a_power_of_each_row_takes_less_than_one_of_each_element(profile: DeviceProfile) -> None:
    moved = (Computed("load", 1, _BOTH, 1.0), Computed("store", 1, _BOTH, 1.0))
    times = [
        column(_rows(*moved, Computed("pow", 1, along, 1.0)), profile, "instructions")
        for along in (_ROW, _BOTH)
    ]
    assert 4.0 * times[0] < times[1]


def test_what_a_mask_leaves_out_is_neither_read_nor_computed(profile: DeviceProfile) -> None:
    whole, part = (
        _rows(Computed("load", 1, _BOTH, held), Computed("exp", 9, _BOTH, held), held=held)
        for held in (1.0, 0.125)
    )
    for name in ("instructions", "read_contiguous"):
        assert column(part, profile, name) < 0.5 * column(whole, profile, name)
    read = column(whole, profile, "read_contiguous")
    assert column(part, profile, "read_contiguous") == pytest.approx(0.125 * read)
    assert column(part, profile, "written_contiguous") == column(
        whole, profile, "written_contiguous"
    )
