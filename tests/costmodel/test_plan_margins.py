"""Intervals of whole plans, from schedules that were measured."""

from __future__ import annotations

import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.plan_cost import PlanCost, is_unsure
from fusewise.costmodel.plan_margins import PlanMargins, plan_margins
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Problem


def schedules(count: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Predicted and measured times: short ones take longer than their kernels together."""
    rng = np.random.default_rng(seed)
    us = np.exp(rng.uniform(1.0, 7.0, count))
    return us, (us + 3.0) * np.exp(rng.normal(0.0, 0.2, count))


def margins_of(us: FloatArray, measured: FloatArray, unsure: bool = False) -> PlanMargins | None:
    return plan_margins(
        measured=measured,
        us=us,
        low_us=us / 1.05,
        high_us=us * 1.05,
        unsure=np.full(len(us), unsure),
        labels=np.array([f"family {i % 50}" for i in range(len(us))], dtype=object),
    )


def test_intervals_hold_as_many_as_they_promise() -> None:
    found = margins_of(*schedules(1000, 0))
    assert found is not None
    us, measured = schedules(1000, 1)
    ends = [found.ends(t, t / 1.05, t * 1.05, unsure=False) for t in us.tolist()]
    inside = [low <= t <= high for (low, high), t in zip(ends, measured.tolist(), strict=True)]
    assert 0.87 <= np.mean(inside) <= 0.93
    # What is added between kernels is a larger part of a short time.
    assert found.upper[0] > found.upper[-1]


def test_of_few_schedules_nothing_is_told() -> None:
    assert margins_of(*schedules(40, 0)) is None


def test_where_the_roofline_has_a_part_in_most_plans_all_are_taken_together() -> None:
    assert margins_of(*schedules(1000, 0), unsure=True) == margins_of(*schedules(1000, 0))


def test_of_few_unsure_plans_nothing_else_is_told() -> None:
    us, measured = schedules(1000, 0)
    found = plan_margins(
        measured=measured,
        us=us,
        low_us=us / 1.05,
        high_us=us * 1.05,
        unsure=np.arange(len(us)) < 50,
        labels=np.array([f"family {i % 50}" for i in range(len(us))], dtype=object),
    )
    assert found is not None and found.unsure is None
    # A long one has the margins of long ones, not those of short ones, where launches count.
    assert found.ends(900.0, 300.0, 2700.0, unsure=True) == found.ends(
        900.0, 300.0, 2700.0, unsure=False
    )


class Knowing(Roofline):
    """A roofline that knows of plans."""

    def __init__(self, profile: DeviceProfile, plans: PlanMargins) -> None:
        super().__init__(profile)
        self.plans = plans


def test_a_plan_has_the_ends_that_its_model_knows(profile: DeviceProfile, softmax: Problem) -> None:
    plan = unfused([node.name for node in softmax.nodes])
    known = PlanMargins(edges=(), lower=(0.0,), upper=(0.0,), unsure=(1.0, 2.0))
    plain = PlanCost(softmax, profile, Roofline(profile))
    moved = PlanCost(softmax, profile, Knowing(profile, known)).plan(plan)
    sums = plain.plan(plan)
    assert is_unsure(plain.breakdown(plan))
    assert moved.us == sums.us
    assert moved.low_us == pytest.approx(sums.low_us * np.exp(-1.0))
    assert moved.high_us == pytest.approx(sums.high_us * np.exp(2.0))


def test_an_interval_holds_its_prediction() -> None:
    narrow = PlanMargins(edges=(), lower=(-9.0,), upper=(-9.0,), unsure=(0.0, 0.0))
    assert narrow.ends(10.0, 5.0, 20.0, unsure=False) == (10.0, 10.0)
