"""Tuning: within the training families, reproducible, and never worse than leaving it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.learned import LearnedCostModel, estimator_for
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.source import StoreSource
from fusewise.training.split import Labels
from fusewise.training.tune import SEARCHED, tune


@pytest.fixture
def data(make_store: Callable[..., Path], profile: DeviceProfile) -> tuple[KernelSamples, Labels]:
    with Store.open(make_store(graphs=6)) as store:
        samples = StoreSource(store).kernels(profile)
    return samples, samples.family


def test_what_is_searched_are_parameters_of_the_estimator():
    assert set(SEARCHED) <= set(LearnedCostModel().get_params())


def test_equal_seeds_give_equal_parameters(data: tuple[KernelSamples, Labels]):
    samples, labels = data
    told: list[str] = []
    first = tune(samples, labels, trials=3, seed=3, progress=told.append)
    assert set(first) == set(SEARCHED)
    assert tune(samples, labels, trials=3, seed=3) == first
    assert len(told) == 3
    assert "best error" in told[-1]


@pytest.mark.filterwarnings("error:Fixed parameter")
@pytest.mark.parametrize(
    "own", [LearnedCostModel(num_leaves=9), *map(estimator_for, ("cpu", "cuda"))]
)
def test_one_trial_leaves_the_parameters_as_they_are(
    data: tuple[KernelSamples, Labels], own: LearnedCostModel
):
    found = tune(*data, trials=1, seed=0, estimator=own)
    assert found == {name: own.get_params()[name] for name in SEARCHED}


def test_whole_families_are_left_out(
    data: tuple[KernelSamples, Labels], monkeypatch: pytest.MonkeyPatch
):
    samples, labels = data
    fitted: list[set[str]] = []
    fit = LearnedCostModel.fit

    def watched(self: Any, features: Any, us: Any, groups: Any = None) -> Any:
        fitted.append(set(groups))
        return fit(self, features, us, groups)

    monkeypatch.setattr(LearnedCostModel, "fit", watched)
    tune(samples, labels, trials=1, seed=0)
    # Five folds over six families: each family is missing from exactly one.
    assert len(fitted) == 5
    assert all(sum(name not in one for one in fitted) == 1 for name in set(labels))


def test_trials_are_cut_short(data: tuple[KernelSamples, Labels], monkeypatch: pytest.MonkeyPatch):
    studies: list[optuna.Study] = []
    create = optuna.create_study

    def watched(**settings: Any) -> optuna.Study:
        studies.append(create(**settings))
        return studies[-1]

    monkeypatch.setattr(optuna, "create_study", watched)
    tune(*data, trials=10, seed=0)
    states = [trial.state.name for trial in studies[0].trials]
    assert set(states) == {"COMPLETE", "PRUNED"}
    best = studies[0].best_trial
    assert best.value is not None and np.isfinite(best.value)
    assert best.value <= studies[0].trials[0].value


def test_one_group_is_too_few(data: tuple[KernelSamples, Labels]):
    samples, labels = data
    with pytest.raises(ModelError, match="at least two groups"):
        tune(samples, np.full_like(labels, "one"), trials=1, seed=0)
