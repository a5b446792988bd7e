"""Predictions of one graph corrected by what was measured of it."""

from __future__ import annotations

import numpy as np
import pytest

from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.costmodel.feedback import Feedback, Measured, Parts, read, written
from fusewise.costmodel.interface import CostModel, FloatArray, Prediction

COLUMNS = 20


class Model:
    """Time is the first column, give or take a factor of two."""

    id = "model"
    name = "model"
    features_version = 0

    def predict(self, features: FloatArray) -> Prediction:
        us = features[:, 0]
        return Prediction(us, us / 2, us * 2, ("learned",) * len(us))


class Device:
    """Twenty kernels, each off its prediction by a factor of its own, and plans made of them."""

    def __init__(self, seed: int, shared: float = 1.0, own: float = 0.2) -> None:
        self.draw = np.random.default_rng(seed)
        self.rows = self.draw.uniform(1, 10, (20, COLUMNS))
        self.factor = shared * np.exp(self.draw.normal(0, own, 20))

    def plan(self) -> list[int]:
        return sorted(self.draw.choice(20, 6, replace=False).tolist())

    def parts(self, plan: list[int]) -> Parts:
        return Parts(self.rows[plan], 3.0)

    def us(self, plan: list[int]) -> float:
        """Kernels, what the model has for the rest, and launches that it knows nothing of."""
        return float(self.rows[plan, 0] @ self.factor[plan]) + 3.0 + 1.5


def model() -> CostModel:
    return Model()


def kernels_us(found: CostModel, parts: Parts) -> float:
    return float(found.predict(parts.rows).us.sum()) + parts.rest_us


def test_nothing_measured_changes_nothing() -> None:
    feedback, device = Feedback(model()), Device(0)
    parts = device.parts(device.plan())
    assert feedback.count == 0 and feedback.beyond_us() == 0
    assert kernels_us(feedback.corrected(), parts) == feedback.plain_us(parts)


@pytest.mark.parametrize("seed", range(4))
def test_plans_not_measured_are_foreseen_better(seed: int) -> None:
    device, feedback = Device(seed), Feedback(model())
    for _ in range(40):
        plan = device.plan()
        feedback.observe(device.parts(plan), device.us(plan))
    plain, better = [], []
    for _ in range(50):
        one, other = device.plan(), device.plan()
        true = device.us(one) - device.us(other)
        mean, deviation = feedback.difference(device.parts(one), device.parts(other))
        before = feedback.plain_us(device.parts(one)) - feedback.plain_us(device.parts(other))
        plain.append(abs(before - true))
        better.append(abs(mean - true))
        assert deviation >= 0
    assert np.mean(better) < np.mean(plain) / 3
    # What is beyond the kernels' own errors is told apart from them, at least in sum.
    plan = device.plan()
    total = kernels_us(feedback.corrected(), device.parts(plan)) + feedback.beyond_us()
    assert total == pytest.approx(device.us(plan), rel=0.05)


def test_doubt_shrinks_with_what_is_measured() -> None:
    device, feedback = Device(7), Feedback(model())
    one, other = device.parts([0, 1, 2]), device.parts([3, 4, 5])
    feedback.observe(device.parts([0, 3, 6]), device.us([0, 3, 6]))
    _, before = feedback.difference(one, other)
    for plan in ([0, 1, 2], [3, 4, 5]):
        feedback.observe(device.parts(plan), device.us(plan))
    mean, after = feedback.difference(one, other)
    assert after < before / 5
    assert mean == pytest.approx(device.us([0, 1, 2]) - device.us([3, 4, 5]), abs=3 * after)
    # The same kernels take the same time, whatever is known of them.
    assert feedback.difference(one, one) == (0.0, 0.0)


def test_a_noisy_time_teaches_less() -> None:
    device = Device(8)
    quiet, noisy = Feedback(model()), Feedback(model())
    for plan in ([0, 1], [2, 3], [0, 3]):
        quiet.observe(device.parts(plan), device.us(plan))
        noisy.observe(device.parts(plan), device.us(plan), noise=0.3)
    one, other = device.parts([0, 2]), device.parts([1, 3])
    assert quiet.difference(one, other)[1] < noisy.difference(one, other)[1]


def test_kernels_never_seen_share_what_is_common() -> None:
    device, feedback = Device(3, shared=2.0, own=0.0), Feedback(model())
    for plan in ([0, 1, 2], [3, 4], [5, 6, 7, 8], [0, 5, 9]):
        feedback.observe(device.parts(plan), device.us(plan))
    new = device.parts([15, 16])
    corrected, true = kernels_us(feedback.corrected(), new), device.us([15, 16])
    assert abs(corrected - true) < abs(feedback.plain_us(new) - true) / 2


def test_a_mark_takes_what_no_feature_tells() -> None:
    device, feedback = Device(5, own=0.0), Feedback(model())
    parts = device.parts([0, 1, 2])
    marked = Parts(parts.rows, parts.rest_us, ("loop_ordering=False",))
    feedback.observe(parts, device.us([0, 1, 2]))
    feedback.observe(marked, device.us([0, 1, 2]) * 1.05)
    mean, _ = feedback.difference(marked, parts)
    assert mean == pytest.approx(0.05 * device.us([0, 1, 2]), rel=0.2)
    assert feedback.beyond_us(marked.marks) > feedback.beyond_us()
    unknown = Parts(parts.rows, parts.rest_us, ("never seen",))
    assert feedback.difference(unknown, parts)[0] == 0
    assert feedback.difference(unknown, parts)[1] > feedback.difference(marked, parts)[1]


def test_equal_features_give_equal_corrected_times_in_any_batch() -> None:
    device, feedback = Device(1), Feedback(model())
    for _ in range(5):
        plan = device.plan()
        feedback.observe(device.parts(plan), device.us(plan))
    corrected = feedback.corrected()
    together = corrected.predict(device.rows)
    alone = [corrected.predict(device.rows[i : i + 1]) for i in range(20)]
    np.testing.assert_allclose(together.us, [one.us[0] for one in alone], rtol=1e-12)
    assert (together.low_us < together.us).all() and (together.us < together.high_us).all()
    assert corrected.id != model().id and corrected.name == model().name
    feedback.observe(device.parts([0]), 5.0)
    assert feedback.corrected().id != corrected.id


def test_a_wild_measurement_moves_a_kernel_only_so_far() -> None:
    device, feedback = Device(2), Feedback(model())
    feedback.observe(device.parts([0, 1]), 1e6)
    us = feedback.corrected().predict(device.rows).us
    assert (us <= 4 * device.rows[:, 0]).all() and (us > 0).all()


def test_what_was_measured_outlives_a_sitting() -> None:
    draw = np.random.default_rng(4)
    measured = [
        Measured(Parts(draw.uniform(1, 9, (n, len(FEATURES))), 2.0, marks), 10.0 * n + 5, 0.02)
        for n, marks in ((2, ()), (3, ("combo_kernels=True",)), (0, ()))
    ]
    first, second = Feedback(model()), Feedback(model())
    again = read(written(measured))
    for one, other in zip(measured, again, strict=True):
        first.observe(*one)
        second.observe(*other)
    assert first.corrected().id == second.corrected().id
    assert first.beyond_us(("combo_kernels=True",)) == second.beyond_us(("combo_kernels=True",))
    # Features of another version mean something else.
    changed = written(measured).replace(
        f'"version":{FEATURES_VERSION}', f'"version":{FEATURES_VERSION - 1}'
    )
    assert read(changed) == []


def test_programs_without_generated_kernels() -> None:
    feedback = Feedback(model())
    nothing = Parts(np.empty((0, COLUMNS)), 50.0)
    feedback.observe(nothing, 60.0)
    feedback.observe(nothing, 62.0)
    assert 50.0 + feedback.beyond_us() == pytest.approx(61.0, rel=0.02)
    assert feedback.difference(nothing, nothing) == (0.0, 0.0)
    parts = Parts(np.full((1, COLUMNS), 2.0), 50.0)
    assert feedback.difference(parts, nothing)[0] == pytest.approx(2.0)
