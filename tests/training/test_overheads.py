"""Rates of what plans take beyond their kernels, fitted to schedules that follow a known law."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.overheads import Amounts, Overheads
from fusewise.training.overheads import LEAST, overheads_from

LAW = Overheads(
    graph_us=3.0, call_us=0.4, buffer_us=0.7, stored_us_mb=8.0, generated=0.1, library=0.25
)


def schedules(count: int, law: Overheads, noise: float = 0.02) -> tuple[FloatArray, list[Amounts]]:
    rng = np.random.default_rng(count)
    found, measured = [], []
    for _ in range(count):
        calls = int(rng.integers(1, 40))
        one = Amounts(
            1.0,
            calls,
            calls + int(rng.integers(0, 10)),
            float(np.exp(rng.uniform(-6.0, 3.0))),
            float(np.exp(rng.uniform(2.0, 7.0))),
            float(rng.choice([0.0, 1.0]) * np.exp(rng.uniform(2.0, 7.0))),
        )
        alone = one.generated_us + one.library_us
        found.append(one)
        measured.append((alone + law.around_us(one)) * np.exp(rng.normal(0.0, noise)))
    return np.array(measured), found


def test_the_law_is_found_whatever_some_kernels_take() -> None:
    measured, amounts = schedules(600, LAW)
    # Of one in ten the kernels take three times what was predicted.
    measured[::10] *= 3.0
    found = overheads_from(measured, amounts)
    assert found is not None
    for name in Overheads.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(LAW, name), rel=0.35, abs=0.02), name


def test_nothing_is_below_zero() -> None:
    measured, amounts = schedules(300, Overheads())
    found = overheads_from(measured * 0.9, amounts)
    assert found is not None
    assert all(rate >= 0.0 for rate in msgspec.structs.astuple(found))
    assert found.generated < 0.01


def test_of_few_schedules_nothing_is_told() -> None:
    measured, amounts = schedules(LEAST - 1, LAW)
    assert overheads_from(measured, amounts) is None
    assert overheads_from(np.array([]), []) is None
