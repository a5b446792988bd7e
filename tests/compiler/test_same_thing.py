"""Programs that do the same, written differently: whether they become the same kernels."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from fusewise.compiler.comparing import grouped
from fusewise.compiler.inductor.choices import variants
from fusewise.datasets.pairs.corpus import PAIRS
from fusewise.datasets.pairs.pair import Pair
from fusewise.schedule.schedule import Choice

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_pairs_of_each_kind() -> None:
    assert len(PAIRS) >= 25
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
    assert all(pair.forms[0] != pair.forms[1] and pair.first is not pair.second for pair in PAIRS)
    assert all(pair.differs for pair in PAIRS if pair.mended_by)


def test_the_page_is_up_to_date() -> None:
    written = runpy.run_path(str(ROOT / "docs/generate_same_thing.py"))["page"]()
    assert (ROOT / "docs/same-thing.md").read_text() == written, "run docs/generate_same_thing.py"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_same_thing(pair: Pair) -> None:
    _does_the_same(pair)
    first, second = grouped(pair.first, pair.args()), grouped(pair.second, pair.args())
    assert first.kernels.total() > 0 and second.kernels.total() > 0
    assert (first.kernels == second.kernels) is not bool(pair.differs)
    if pair.mended_by:
        (choice,) = (made for (made,) in variants("cpu") if made.name == pair.mended_by)
        mended = [grouped(f, pair.args(), (choice,)) for f in (pair.first, pair.second)]
        assert mended[0].kernels == mended[1].kernels


def _does_the_same(pair: Pair) -> None:
    """In eager mode, results and overwritten arguments alike."""
    found: list[list[Any]] = []
    for function in (pair.first, pair.second):
        args = pair.args()
        result = function(*args)
        tensors = pytree.tree_leaves((result, args))
        found.append([value for value in tensors if isinstance(value, torch.Tensor)])
    assert len(found[0]) == len(found[1])
    for value, wanted in zip(*found, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-4)


def test_other_things_are_told_apart() -> None:
    """A comparison that finds everything the same would pass all of the above."""
    x = torch.randn(32, 64)
    one = grouped(lambda x: x.exp().sum(-1), (x,))
    two = grouped(lambda x: (x.exp().sum(-1), x.exp()), (x,))
    apart = grouped(lambda x: x.exp().t().matmul(x).relu(), (x,))
    assert one.kernels != two.kernels
    assert one.kernels != apart.kernels
    assert grouped(lambda x: x.sum(0), (x,)).kernels != one.kernels


def test_a_choice_that_changes_nothing_here() -> None:
    x = torch.randn(32, 64)
    choice = Choice("cat_at_once", True)
    assert grouped(torch.sin, (x,), (choice,)).kernels == grouped(torch.sin, (x,)).kernels
