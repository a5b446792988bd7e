"""How accesses walk: against the addresses that a run of the loops would touch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.geometry import STAYS, Walk, walk
from fusewise.schedule.problem import Access, AccessKind


def access(index: str, *, kind: AccessKind = "contiguous", itemsize: int = 4) -> Access:
    return Access("b", kind, 64, 256, itemsize, 1, index)


@pytest.mark.parametrize(
    ("index", "loops", "expected"),
    [
        pytest.param("i0 : 4096", (64, 64), Walk(1, 1, 4096, True, False), id="all in a row"),
        pytest.param("i0 : 64", (32, 64), Walk(1, 1, 64, True, False), id="a row for all rows"),
        pytest.param("i0 : 32", (32, 64), Walk(0, 1, 32, True, True), id="a value for each row"),
        pytest.param(
            "i0 + 16000*i1 : 15999, 512",
            (15999, 512),
            Walk(16000, 1, 15999, True, True),
            id="a reduction across",
        ),
        pytest.param(
            "i0 + 3*i1 : 3, 512", (3, 512), Walk(3, 1, 3, False, True), id="three at a time"
        ),
        pytest.param(
            "524288*i0 + i1 + 16384*tmp0 + 512*tmp1 : 2, 512",
            (2, 512, 32, 32),
            Walk(0, 1, 512, True, True),
            id="innermost loops only behind a looked-up index",
        ),
        pytest.param(
            "768*tmp0 + i0 : 768", (8, 128, 768), Walk(1, 1, 768, True, False), id="rows looked up"
        ),
        pytest.param(
            "ModularIndexing(i0 + 4095, 1, 4096) : 4096",
            (4096,),
            Walk(1, 1, 2048, False, False),
            id="rolled by one: it starts over where it begins",
        ),
        pytest.param(
            "64*i0 + ((i1 - 16)) : 32, 64", (32, 64), Walk(1, 1, 64, True, False), id="shifted"
        ),
        pytest.param(
            "128*i0 + 2*((i1//2)) : 32, 128",
            (32, 128),
            Walk(1, 1, 128, True, False),
            id="pairs, each twice",
        ),
        pytest.param(
            "ModularIndexing(i0, 1, 8) : 64",
            (64,),
            Walk(1, 1, 8, True, False),
            id="round and round",
        ),
        pytest.param("7 : ", (64,), STAYS, id="one element"),
    ],
)
def test_walks_of_what_inductor_writes(index: str, loops: tuple[int, ...], expected: Walk) -> None:
    assert walk(access(index), loops) == expected


def test_text_that_is_no_index_falls_back_on_the_access() -> None:
    odd = Access("b", "strided", 64, 256, 4, 12, "__import__('os').getpid() : 4")
    assert walk(odd, (4, 4)) == Walk(12, 12, 1, True, False)


def test_an_opaque_access_stays() -> None:
    assert walk(access("*", kind="opaque"), (4, 4)) == STAYS


@given(
    extents=st.lists(st.integers(2, 6), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
)
def test_steps_of_a_permuted_tensor(extents: list[int], order: object) -> None:
    """Against the addresses themselves, for a dense tensor read with its dimensions permuted."""
    places = list(range(len(extents)))
    order.shuffle(places)  # type: ignore[attr-defined]
    strides = [0] * len(extents)
    step = 1
    for place in places:
        strides[place] = step
        step *= extents[place]
    terms = " + ".join(f"{stride}*i{k}" for k, stride in enumerate(strides))
    found = walk(access(f"{terms} : {', '.join(map(str, extents))}"), extents)
    addresses = [
        sum(i * s for i, s in zip(at, strides, strict=True))
        for at in itertools.product(*map(range, extents))
    ]
    assert found.step == addresses[1] - addresses[0]
    assert found.least == 1
    assert found.run == extents[strides.index(1)]
    assert found.across == (strides[-1] != 1)
