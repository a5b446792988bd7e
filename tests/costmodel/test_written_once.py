"""Operations that a body repeats are computed once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fusewise.costmodel.written_once import operations_of, taken, taken_part
from fusewise.schedule.problem import Access, Node

_READS = tuple(Access(f"in{i}", "contiguous", 64, 256, 4, 1, "i0 : 64") for i in range(2))
_WRITES = (Access("out", "contiguous", 64, 256, 4, 1, "i0 : 64"),)


@pytest.mark.parametrize(
    ("reads", "ops", "expected"),
    [
        # x * sigmoid(x) loads x twice, and has each of the others once.
        (1, (("load", 2), ("mul", 1), ("sigmoid", 1)), (("load", 1), ("mul", 1), ("sigmoid", 1))),
        # An expression of two values that is written out three times.
        (2, (("load", 6), ("exp", 3), ("add", 9)), (("load", 2), ("exp", 1), ("add", 3))),
        (2, (("load", 2), ("exp", 3)), (("load", 2), ("exp", 3))),
        # Seven steps, each of which reads the one before twice.
        (1, (("load", 128), ("tanh", 127)), (("load", 1), ("tanh", 7))),
        # Masks compare positions with other bounds.
        (0, (("index_expr", 2), ("sin", 2)), (("index_expr", 2), ("sin", 2))),
    ],
)
def test_what_is_written_again_is_computed_once(
    make_node: Callable[..., Node],
    reads: int,
    ops: tuple[tuple[str, int], ...],
    expected: tuple[tuple[str, float], ...],
) -> None:
    found = operations_of(make_node("op0", 64, _READS[:reads], _WRITES, ops))
    assert dict(found) == pytest.approx(dict(expected))


def test_places_that_are_looked_up_are_computed_once(make_node: Callable[..., Node]) -> None:
    looked_up = Access("in", "gather", 64, 256, 4, 0, "8*tmp0 + tmp1 : ")
    ops = (("index_expr", 5), ("add", 6), ("load", 1))
    node = make_node("op0", 64, (looked_up,), _WRITES, ops, ranges=((8, 8), ()))
    # One load and two positions are all that there is to start from.
    assert operations_of(node) == (("index_expr", 2.5), ("add", 3), ("load", 1))


@pytest.mark.parametrize(
    ("ops", "part"),
    [
        # Four pieces side by side, each of which has its own bounds but the first and the last.
        ((("and_", 2), ("ge", 4), ("lt", 4), ("masked", 4), ("where", 3)), 0.25),
        # Two halves, twice.
        ((("ge", 4), ("lt", 4), ("masked", 4), ("where", 2)), 0.5),
        # Margins, one inside of the other.
        ((("ge", 4), ("lt", 4), ("masked", 4), ("where", 4)), 0.5),
        # A window, of which all is read; a margin that something else stands in; no mask at all.
        ((("ge", 18), ("lt", 18), ("masked", 9), ("maximum", 8)), 1.0),
        ((("ge", 1), ("lt", 1), ("masked", 1), ("where", 1)), 1.0),
        ((("exp", 1), ("lt", 1), ("where", 1)), 1.0),
    ],
)
def test_of_pieces_side_by_side_a_place_has_one(
    make_node: Callable[..., Node], ops: tuple[tuple[str, int], ...], part: float
) -> None:
    assert taken_part(make_node("op0", 64, _READS, _WRITES, ops)) == part


def test_what_all_pieces_have_is_computed_for_one() -> None:
    ops = (("tanh", 4.0), ("exp", 1.0), ("ge", 4.0), ("masked", 4.0), ("where", 3.0))
    assert dict(taken(ops, 4, 0.25)) == {
        "tanh": 1.0,
        "exp": 1.0,
        "ge": 4.0,
        "masked": 4.0,
        "where": 3.0,
    }
