"""LightGBM's library without its package: the same bits, errors in its words."""

from __future__ import annotations

import pickle

import lightgbm
import numpy as np
import pytest

from fusewise.costmodel.booster import Booster, BoosterError, text_of


@pytest.fixture(scope="module")
def trained() -> lightgbm.Booster:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 7))
    data = lightgbm.Dataset(rows, label=rows[:, 0] * rows[:, 1] + generator.normal(size=400))
    settings = {"num_leaves": 15, "num_threads": 1, "verbosity": -1}
    return lightgbm.train(settings, data, num_boost_round=30)


@pytest.mark.parametrize("count", [1, 3, 200])
def test_predictions_are_those_of_the_package_bit_for_bit(trained, count: int) -> None:
    rows = np.random.default_rng(1).normal(size=(count, 7))
    booster = Booster(trained.model_to_string())
    assert (booster.predict(rows) == trained.predict(rows, num_threads=1)).all()
    # Rows need not lie in memory as LightGBM reads them.
    assert (booster.predict(np.asfortranarray(rows)) == trained.predict(rows, num_threads=1)).all()


def test_a_copy_predicts_the_same(trained) -> None:
    rows = np.random.default_rng(2).normal(size=(5, 7))
    booster = Booster(trained.model_to_string())
    copy = pickle.loads(pickle.dumps(booster))
    expected = booster.predict(rows)
    del booster
    assert (copy.predict(rows) == expected).all()


def test_the_text_that_is_kept_is_shorter_and_tells_the_same(trained) -> None:
    rows = np.random.default_rng(3).normal(size=(50, 7))
    text, whole = text_of(trained), trained.model_to_string()
    assert len(text) < 0.9 * len(whole)
    assert (Booster(text).predict(rows) == Booster(whole).predict(rows)).all()
    again = lightgbm.Booster(model_str=text)
    assert (
        again.predict(rows, pred_contrib=True) == trained.predict(rows, pred_contrib=True)
    ).all()
    gains = [one.feature_importance("gain") for one in (again, trained)]
    np.testing.assert_allclose(*gains, rtol=1e-5)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(BoosterError, match="number of classes"):
        Booster("nonsense")


def test_other_columns_are_refused(trained) -> None:
    booster = Booster(trained.model_to_string())
    with pytest.raises(BoosterError, match="number of features"):
        booster.predict(np.zeros((2, 3)))
