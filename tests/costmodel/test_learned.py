"""The learned model on kernels that follow a known law: accuracy, intervals, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import COLUMN
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.objective import relative
from fusewise.costmodel.roofline import Roofline, roofline_us
from fusewise.schedule.errors import ModelError

MakeKernels = Callable[[int, int], Any]


def test_it_beats_the_roofline_on_kernels_it_has_not_seen(
    kernels: MakeKernels, profile: DeviceProfile
):
    train, test = kernels(1200, 1), kernels(600, 2)
    # One network of each sort: more of them guess better, and what is asked for is reached without.
    model = LearnedCostModel(networks=2, seed=3).fit(train.features, train.us, train.graph)
    error = np.abs(np.log(model.predict(test.features) / test.us))
    analytic = np.abs(np.log(roofline_us(test.features, profile) / test.us))
    assert np.median(error) < 0.12
    assert np.median(error) < np.median(analytic) / 4


def test_nine_of_ten_times_lie_within_the_interval(kernels: MakeKernels):
    train, test = kernels(1500, 4), kernels(2000, 5)
    # Whatever it is that guesses, intervals are by what it errs.
    model = LearnedCostModel(networks=2).fit(train.features, train.us)
    predicted = model.predict_interval(test.features)
    within = (test.us >= predicted.low_us) & (test.us <= predicted.high_us)
    # Exchangeable rows: four standard deviations of 1500 that calibrate and 2000 that judge.
    assert 0.86 < within.mean() < 0.94
    assert (predicted.low_us < predicted.us).all()
    assert (predicted.us < predicted.high_us).all()


def test_outside_the_training_range_the_roofline_answers(
    kernels: MakeKernels, profile: DeviceProfile
):
    train = kernels(600, 6)
    model = LearnedCostModel(epochs=5).fit(train.features, train.us, train.graph)
    rows = train.features[:4].copy()
    rows[1, COLUMN["numel"]] += 20.0
    predicted = model.predict_interval(rows)
    assert predicted.source[0] == "learned"
    assert predicted.source[1] == "roofline"
    # Scaled by what the roofline was off by on this device.
    factor = predicted.us[1] / roofline_us(rows)[1]
    assert 1.0 < factor < 4.0
    elsewhere = train.features[:4].copy()
    elsewhere[:, COLUMN["device_copy"]] += 3.0
    elsewhere[:, COLUMN["is_cuda"]] = 1.0
    foreign = model.predict_interval(elsewhere)
    assert set(foreign.source) == {"roofline"}
    assert np.allclose(foreign.us, roofline_us(elsewhere))


def test_where_trees_are_no_better_the_roofline_answers(
    profile: DeviceProfile, kernels: MakeKernels
):
    some = kernels(400, 7)
    noise = np.random.default_rng(0).normal(0, 1, len(some.us))
    model = LearnedCostModel(n_estimators=200, reg_lambda=0.0, subsample=1.0, networks=0)
    model.fit(some.features, roofline_us(some.features) * np.exp(noise))
    share = np.mean([s == "roofline" for s in model.predict_interval(some.features).source])
    assert share > 0.3


def test_equal_seeds_give_equal_models_and_batches_do_not_matter(kernels: MakeKernels):
    some = kernels(300, 8)
    first, again, other = (
        LearnedCostModel(seed=seed, epochs=5).fit(some.features, some.us, some.graph).model_
        for seed in (5, 5, 6)
    )
    assert first.id == again.id != other.id
    whole = first.predict(some.features)
    alone = [first.predict(row[None]) for row in some.features[:40]]
    assert np.array_equal(whole.us[:40], [one.us[0] for one in alone])
    assert np.array_equal(whole.high_us[:40], [one.high_us[0] for one in alone])
    assert len(first.predict(some.features[:0])) == 0


def test_processes_fit_what_threads_fit(kernels: MakeKernels, monkeypatch: pytest.MonkeyPatch):
    train = kernels(400, 11)
    small = LearnedCostModel(n_estimators=10, epochs=2, folds=2, networks=2)
    by_threads = clone(small).fit(train.features, train.us, train.graph)
    monkeypatch.setattr("fusewise.costmodel.learned._ROWS_FOR_PROCESSES", 0)
    by_processes = clone(small).fit(train.features, train.us, train.graph)
    assert by_processes.model_.id == by_threads.model_.id


def test_it_follows_the_conventions_of_estimators(kernels: MakeKernels, profile: DeviceProfile):
    model = LearnedCostModel(num_leaves=7, epochs=2, seed=2)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(num_leaves=9).num_leaves == 9
    some = kernels(80, 9)
    with pytest.raises(NotFittedError):
        model.predict(some.features)
    model.fit(some.features, some.us)
    assert isinstance(model.model_, CostModel)
    assert isinstance(Roofline(profile), CostModel)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, y: (x[:10], y[:10]), "10 rows are too few"),
        (lambda x, y: (x[:, :5], y), "not \\[n, "),
        (lambda x, y: (x, y[:-1]), "times have shape"),
        (lambda x, y: (x, np.where(y == y[0], 0.0, y)), "times that are not finite and positive"),
        (lambda x, y: (x * np.where(x == x.max(), np.nan, 1.0), y), "features that are not finite"),
    ],
)
def test_bad_training_data_is_refused(kernels: MakeKernels, spoil: Any, message: str):
    some = kernels(60, 10)
    with pytest.raises(ModelError, match=message):
        LearnedCostModel().fit(*spoil(some.features, some.us))


def test_the_roofline_knows_its_device(profile: DeviceProfile):
    other = msgspec.structs.replace(profile, copy_gbs=80.0)
    assert Roofline(profile).id != Roofline(other).id
    assert Roofline(profile).id == Roofline(profile).id


class _Labelled:
    def __init__(self, label: list[float]) -> None:
        self._label = np.array(label)

    def get_label(self) -> Any:
        return self._label


@given(st.lists(st.floats(-3.5, 1.4), min_size=1, max_size=8), st.floats(-3, 3))
def test_the_objective_is_the_slope_of_a_loss_of_relative_errors(over: list[float], label: float):
    def loss(ratio: Any) -> Any:
        error = np.abs(np.exp(ratio - label) - 1) / 0.2
        return 0.2**2 * (error - np.log1p(error))

    ratio, step = np.array(over) + label, 1e-5
    slope, curvature = relative(ratio, _Labelled([label] * len(over)))
    expected = (loss(ratio + step) - loss(ratio - step)) / (2 * step)
    # It is told in 16 bits.
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=2e-4)
    assert (curvature > 0).all()


def test_of_times_that_differ_the_one_is_foretold_that_errs_least_in_percent(kernels: MakeKernels):
    train = kernels(600, 21)
    # Alike by all that the features tell, half of them take three times as long. By the roofline
    # they take about as long: where it is far off, trees are not trusted.
    near = np.abs(np.log(roofline_us(train.features) / 15.0)).argmin()
    features = np.repeat(train.features[near, None], 400, axis=0)
    us = np.where(np.arange(400) % 2, 30.0, 10.0)

    def error(objective: str) -> float:
        model = LearnedCostModel(objective=objective, subsample=1.0, networks=0)
        model.fit(np.concatenate([features, train.features]), np.concatenate([us, train.us]))
        return float(np.mean(np.abs(model.predict(features) / us - 1)))

    # Always 10 us: none of half of them, two thirds of the others.
    assert error("relative") == pytest.approx(1 / 3, abs=0.03)
    assert error("regression") > error("relative") + 0.1


def test_few_trees_are_kept_where_networks_have_the_say(kernels: MakeKernels):
    train = kernels(300, 1)
    # Trees that learn next to nothing, and networks that do.
    slow = LearnedCostModel(n_estimators=13, learning_rate=1e-4, networks=2, width=16)
    quick = LearnedCostModel(n_estimators=13, networks=2, width=16, epochs=1)
    kept = {}
    for estimator in (slow, quick):
        model = estimator.fit(train.features, train.us).model_
        kept[model.networks.share >= 0.9] = model.trees.count("Tree=")
    assert kept == {True: 3, False: 13}


def test_a_kernel_that_takes_next_to_nothing_does_not_decide_who_has_the_say(kernels: MakeKernels):
    train = kernels(600, 18)
    us = train.us.copy()
    shares = []
    for _ in range(2):
        model = LearnedCostModel(networks=2, epochs=20).fit(train.features, us, train.graph).model_
        assert model.networks is not None
        shares.append(model.networks.share)
        us[7] = train.us[7] * 1e-6
    assert min(shares) > 0.0
    assert shares[1] == pytest.approx(shares[0], abs=0.2)


def test_kernels_that_no_feature_tells_apart(kernels: MakeKernels):
    features = np.repeat(kernels(1, 22).features, 60, axis=0)
    model = LearnedCostModel().fit(features, np.full(60, 20.0))
    np.testing.assert_allclose(model.predict(features), 20.0, rtol=0.02)
