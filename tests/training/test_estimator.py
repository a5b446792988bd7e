"""The estimators follow scikit-learn's conventions, as far as their data can.

Of scikit-learn's own checks those that bring data of their own are left out: ours has as many
columns as there are features, and times that are positive.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from fusewise.costmodel.features import FEATURES
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.roofline import roofline_us
from fusewise.training.adapt import AdaptedCostModel

pytestmark = pytest.mark.parametrize("kind", [LearnedCostModel, AdaptedCostModel])

CHECKS = (
    "check_parameters_default_constructible",
    "check_no_attributes_set_in_init",
    "check_get_params_invariance",
    "check_set_params",
)

Kind = type[LearnedCostModel]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = np.abs(rng.normal(8.0, 2.0, (240, len(FEATURES))))
    us = roofline_us(features) * np.exp(0.2 * features[:, 0] - 1.6)
    return features, us, np.array([f"g{i % 8}" for i in range(240)], dtype=object)


@pytest.mark.parametrize("check", CHECKS)
def test_checks_of_scikit_learn(kind: Kind, check: str):
    getattr(estimator_checks, check)(kind.__name__, kind())


def small(kind: Kind, trees: int) -> LearnedCostModel:
    """Of few trees and one network that goes through the data twice."""
    return kind(n_estimators=trees, networks=1, epochs=2)


def test_fit_predict_and_score(kind: Kind, data: tuple[np.ndarray, ...]):
    features, us, groups = data
    estimator = small(kind, 40)
    with pytest.raises(NotFittedError):
        estimator.predict(features)
    before = estimator.get_params()
    assert estimator.fit(features, us, groups) is estimator
    assert estimator.get_params() == before
    assert estimator.n_features_in_ == len(FEATURES)
    predicted = estimator.predict(features)
    assert predicted.shape == (240,)
    assert (predicted > 0).all()
    assert estimator.score(features, us) > 0.5
    # Fitting again forgets, and gives the same.
    assert np.array_equal(estimator.fit(features, us, groups).predict(features), predicted)
    copy = clone(estimator)
    assert not hasattr(copy, "model_")
    assert copy.get_params() == before
    assert np.array_equal(copy.fit(features, us, groups).predict(features), predicted)
    kept = pickle.loads(pickle.dumps(estimator))
    assert np.array_equal(kept.predict(features), predicted)


def test_input_is_left_alone(kind: Kind, data: tuple[np.ndarray, ...]):
    features, us, groups = (array.copy() for array in data)
    small(kind, 10).fit(features, us, groups).predict(features)
    assert all(np.array_equal(a, b) for a, b in zip((features, us, groups), data, strict=True))
    # Lists do as well, as everywhere.
    small(kind, 10).fit(features.tolist(), us.tolist(), list(groups))


def test_within_scikit_learn(kind: Kind, data: tuple[np.ndarray, ...]):
    features, us, groups = data
    found = cross_val_score(
        small(kind, 20),
        features,
        us,
        groups=groups,
        cv=GroupKFold(2),
        scoring="neg_mean_absolute_percentage_error",
    )
    assert found.shape == (2,) and np.isfinite(found).all()
    search = GridSearchCV(small(kind, 20), {"num_leaves": [7, 15]}, cv=2)
    assert set(search.fit(features, us).best_params_) == {"num_leaves"}
    assert make_pipeline(small(kind, 10)).fit(features, us).predict(features).shape == (240,)
