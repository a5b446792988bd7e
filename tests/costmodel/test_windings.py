"""Where vectors keep to an index with quotients and remainders, against what Inductor finds."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.codegen import cpp
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from fusewise.costmodel.windings import Winding, windings_of
from fusewise.schedule.problem import Access


def _access(index: str) -> Access:
    return Access("a", "strided", 1, 4, 4, 1, index)


@pytest.mark.parametrize(
    ("index", "loops", "found"),
    [
        ("128*i0 + i1 : 64, 128", (64, 128), ()),
        (
            "256*((i0//2)) + ((i1//48)) : 512, 512",
            (512, 512),
            (Winding(2, 1), Winding(48, 1)),
        ),
        # A remainder goes on straight for its period, and what divides both for as long as each.
        (
            "384*((i1//24)) + (ModularIndexing(i1, 1, 16)) : 120, 128",
            (120, 128),
            (Winding(), Winding(8, 2)),
        ),
        # What is divided is no loop, or several at once.
        ("(((i1 - 1)//2)) : 8, 30", (8, 30), (Winding(), Winding(1, 1))),
        (
            "ModularIndexing(40*i0 + i1, 1, 400) : 40, 40",
            (40, 40),
            (Winding(1, 1), Winding(1, 1)),
        ),
        ("((i0//16)) : 1024", (32, 32), (Winding(1, 1), Winding(1, 1))),
        # What cannot be read winds nowhere that is known.
        ("whatever(i0) : 64", (64,), ()),
    ],
)
def test_windings_by_loop(index: str, loops: tuple[int, ...], found: tuple[Winding, ...]) -> None:
    assert windings_of(_access(index), loops) == found


_DIVISORS = st.sampled_from([2, 3, 8, 12, 16, 24, 32, 48, 64])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), _DIVISORS), min_size=1, max_size=3), st.booleans())
def test_vectors_break_where_inductor_finds_no_step(
    parts: list[tuple[bool, int]], behind: bool
) -> None:
    """Sums of quotients and remainders of a loop, or of what lies behind it."""
    inductor: Any = cpp
    loop = sympy.Symbol("i0", integer=True, nonnegative=True)
    place = loop + 1 if behind else loop
    text = "i0 + 1" if behind else "i0"
    index: sympy.Expr = sympy.Integer(0)
    told = []
    for at, (quotient, by) in enumerate(parts):
        weight = 1000**at
        if quotient:
            index += weight * FloorDiv(place, by)
            told.append(f"{weight}*((({text})//{by}))")
        else:
            index += weight * ModularIndexing(place, 1, by)
            told.append(f"{weight}*(ModularIndexing({text}, 1, {by}))")
    (winding,) = windings_of(_access(f"{' + '.join(told)} : 4096"), (4096,))
    for lanes in (8, 16, 32):
        step = inductor.stride_at_vec_range(index, loop, lanes)
        assert winding.breaks(lanes) == bool(step.free_symbols), (told, lanes)
