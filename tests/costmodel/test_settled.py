"""Rounding: far below what matters, and so that other instructions give the same model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.settled import settled, settled_record
from fusewise.datasets.dataset import load


def a_bit_more(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a processor may compute it that differs in the last bit."""
    return lambda *args, **kwargs: np.nextafter(function(*args, **kwargs), np.inf)


NUMBERS = st.floats(-1e300, 1e300, allow_subnormal=False)


@given(st.lists(NUMBERS, min_size=1), st.sampled_from((16, 24)))
def test_rounding_is_slight_and_done_once(values: list[float], bits: int):
    exact = np.array(values)
    rounded = settled(exact, bits)
    np.testing.assert_allclose(rounded, exact, rtol=2.0**-bits, atol=0.0)
    np.testing.assert_array_equal(settled(rounded, bits), rounded)


def test_numbers_a_last_bit_apart_come_out_alike():
    values = np.random.default_rng(7).lognormal(size=20_000)
    np.testing.assert_array_equal(settled(np.nextafter(values, np.inf)), settled(values))


class _Kept(msgspec.Struct, frozen=True):
    edges: tuple[float, ...]
    rates: dict[str, float | None]
    count: int
    sure: bool


def test_all_floats_of_a_record_are_rounded_and_nothing_else():
    kept = _Kept((1 / 3, 0.05), {"a": 2e9 / 3, "b": None}, 1234567890123, True)
    rounded = _Kept((0.3333333, 0.05), {"a": 666666700.0, "b": None}, 1234567890123, True)
    assert settled_record(kept) == rounded
    assert settled_record([kept, 1 / 3]) == [rounded, 0.3333333]


def test_a_processor_that_rounds_otherwise_trains_the_same_model(monkeypatch: pytest.MonkeyPatch):
    samples = load("x86").kernels(split="train")
    rows = np.arange(0, len(samples), len(samples) // 1500)
    features, us, labels = samples.features[rows], samples.median_us[rows], samples.family[rows]

    def trained() -> str:
        estimator = LearnedCostModel(n_estimators=30, epochs=5, seed=7)
        return estimator.fit(features, us, labels).model_.id

    here = trained()
    for name in ("exp", "exp2", "log", "log2"):
        monkeypatch.setattr(np, name, a_bit_more(getattr(np, name)))
    assert np.log2(8.0) > 3.0
    assert trained() == here
