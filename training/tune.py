"""Hyper-parameters of the learned cost model by Optuna, in grouped cross-validation.

Sees the training part only; what is held out for judging never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optuna

from fusewise.costmodel.learned import LearnedCostModel
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import folds_by_family
from fusewise.schedule.errors import ModelError
from fusewise.training.split import Labels

_FOLDS = 4
_SEARCHED = (
    "n_estimators",
    "num_leaves",
    "learning_rate",
    "min_child_samples",
    "subsample",
    "colsample_bytree",
    "reg_lambda",
    "objective",
)


def tune(
    samples: KernelSamples,
    labels: Labels,
    *,
    trials: int,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, bool | int | float | str]:
    """Parameters of ``LearnedCostModel`` with the least mean absolute log error over the folds.

    Trees stay at most 300 x 31: what a prediction costs is part of what a search can do.

    Raises:
        ModelError: fewer than two groups.
    """
    folds = min(_FOLDS, len(set(labels)))
    if folds < 2:  # noqa: PLR2004 - two folds are the least
        raise ModelError(
            "tuning needs kernels of at least two groups to train on",
            subject="training data",
            remedy="collect more graphs, or leave --tune out",
        )
    splits = folds_by_family(labels, folds=folds)

    def objective(trial: optuna.Trial) -> float:
        parameters: dict[str, Any] = {
            "n_estimators": trial.suggest_int("n_estimators", 100, 300, step=50),
            "num_leaves": trial.suggest_int("num_leaves", 7, 31),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.2, log=True),
            "min_child_samples": trial.suggest_int("min_child_samples", 3, 40, log=True),
            "subsample": trial.suggest_float("subsample", 0.6, 1.0),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.3, 1.0),
            "reg_lambda": trial.suggest_float("reg_lambda", 0.01, 30.0, log=True),
            "objective": trial.suggest_categorical("objective", ["regression", "regression_l1"]),
        }
        progress(f"tuning, trial {trial.number + 1} of {trials}")
        errors = []
        for number, split in enumerate(splits):
            # The trees alone are judged, so nothing is held out for intervals twice over.
            estimator = LearnedCostModel(**parameters, seed=seed)
            error = estimator.log_error(
                samples.features[split.train],
                samples.median_us[split.train],
                samples.features[split.test],
                samples.median_us[split.test],
            )
            errors.append(error)
            trial.report(float(np.mean(np.concatenate(errors))), number)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(np.concatenate(errors)))

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        defaults = LearnedCostModel().get_params()
        # The defaults are the first trial: tuning never does worse than leaving them, by its
        # own measure.
        study.enqueue_trial({name: defaults[name] for name in _SEARCHED})
        study.optimize(objective, n_trials=trials)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(study.best_params)
