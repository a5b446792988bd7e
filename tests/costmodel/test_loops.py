"""Which loop each node of a kernel that loops over reductions is generated in."""

from __future__ import annotations

import pytest

from fusewise.costmodel.loops import loops_in

#: Two sums over one tensor, what is made of the first, and what is made of each element.
_SHAPES = [(320, 12544), (320, 12544), (320, 1), (320 * 12544, 1)]
_REDUCES = [True, True, False, False]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 3, 2), {0: 0, 1: 0, 3: 0, 2: 0}),
        ((0, 2, 1, 3), {0: 0, 2: 0, 1: 1, 3: 1}),
        ((0, 1, 2, 3), {0: 0, 1: 0, 2: 0, 3: 1}),
    ],
)
def test_what_has_the_shape_of_results_ends_the_loop(
    order: tuple[int, ...], expected: dict[int, int]
) -> None:
    producers: list[list[tuple[int, int]]] = [[], [], [(0, 0)], []]
    assert loops_in(order, _SHAPES, _REDUCES, producers) == expected


def test_what_needs_a_result_starts_a_loop_of_its_own() -> None:
    producers: list[list[tuple[int, int]]] = [[], [], [(0, 0)], [(2, 1)]]
    assert loops_in((0, 1, 2, 3), _SHAPES, _REDUCES, producers)[3] == 1
    direct: list[list[tuple[int, int]]] = [[], [], [(0, 0)], [(0, 1)]]
    assert loops_in((0, 1, 3, 2), _SHAPES, _REDUCES, direct) == {0: 0, 1: 0, 3: 1, 2: 1}
