"""Hyper-parameters of the learned cost model by Optuna, in grouped cross-validation.

Sees the training part only; what is held out for judging never comes here. Trials run one after
the other and every generator is seeded, so equal data, seeds and numbers of trials give equal
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.base import clone

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import Split, folds_by_family
from fusewise.schedule.errors import ModelError
from fusewise.training.metrics import relative_errors
from fusewise.training.scores import LARGE_US
from fusewise.training.split import Labels

if TYPE_CHECKING:
    import optuna

Parameters = dict[str, bool | int | float | str]

_FOLDS: Final = 5
#: Parts of each fit's own intervals.
_PARTS: Final = 2
#: Kernels of 5 us and more in all folds, for the objective to be over these alone.
_LEAST_LARGE: Final = 100
#: Trees and leaves that a search can afford at 15 us a row, networks beside them: many small trees,
#: or fewer large ones.
_MANY, _SMALL = 120, 40
_FEW, _LARGE = 60, 100
#: Trials before any is cut short: what they are compared with.
_STARTUP: Final = 5


def _space(trial: optuna.Trial) -> Parameters:
    """Parameters of one trial."""
    trees = trial.suggest_int("n_estimators", 30, _MANY, step=10)
    leaves = trial.suggest_int("num_leaves", 7, _LARGE if trees <= _FEW else _SMALL)
    return {
        "n_estimators": trees,
        "num_leaves": leaves,
        "learning_rate": trial.suggest_float("learning_rate", 0.03, 0.3, log=True),
        "min_child_samples": trial.suggest_int("min_child_samples", 3, 40, log=True),
        "subsample": trial.suggest_float("subsample", 0.6, 1.0),
        "colsample_bytree": trial.suggest_float("colsample_bytree", 0.3, 1.0),
        "reg_lambda": trial.suggest_float("reg_lambda", 0.01, 30.0, log=True),
        "objective": trial.suggest_categorical(
            "objective", ["relative", "regression", "regression_l1"]
        ),
    }


#: What is searched.
SEARCHED: Final = (
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
    estimator: LearnedCostModel | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Parameters:
    """Parameters of the estimator with the least error on families left out.

    The objective is the mean absolute percentage error of kernels of 5 us and more (of all
    kernels, where those are fewer than 100), over five folds in each of which whole families are
    left out. A trial is given up after a fold where the median of the earlier trials was better.
    What is asked for is the estimator's answer without networks, the roofline's where that takes
    over.

    Args:
        samples: to train on; n kernels.
        labels: [n], family or graph of each.
        trials: how many parameters are tried; the first are the estimator's own.
        seed: of the search and of each fit.
        estimator: whose other parameters are kept; by default a new one.
        progress: told of each trial.

    Raises:
        ModelError: fewer than two groups, or too few rows in a fold.
    """
    import optuna

    start = clone(estimator or LearnedCostModel()).set_params(seed=seed)
    # Which answer is the roofline's can be told from two parts as well, in half the time; and
    # networks have none of the parameters that are searched.
    quick = clone(start).set_params(folds=_PARTS, networks=0)
    splits = _folds(labels)

    def objective(trial: optuna.Trial) -> float:
        candidate = clone(quick).set_params(**_space(trial))
        progress(_told(trial))
        errors: list[FloatArray] = []
        for number, split in enumerate(splits):
            errors.append(_errors(candidate, samples, labels, split))
            so_far = _mean(errors, samples.median_us, splits)
            if so_far is None:
                continue
            trial.report(so_far, number)
            if trial.should_prune():
                raise optuna.TrialPruned
        assert so_far is not None, "the folds together have kernels that count"
        return so_far

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * _STARTUP),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP),
        )
        # The estimator's own are the first trial: tuning never does worse than leaving them, by
        # its own measure.
        own = start.get_params()
        study.enqueue_trial({name: own[name] for name in SEARCHED})
        study.optimize(objective, n_trials=trials, n_jobs=1)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(study.best_params)


def _folds(labels: Labels) -> list[Split]:
    folds = min(_FOLDS, len(set(labels)))
    if folds < 2:  # noqa: PLR2004 - two folds are the least
        raise ModelError(
            "tuning needs kernels of at least two groups to train on",
            subject="training data",
            remedy="collect more graphs, or leave --tune out",
        )
    return folds_by_family(labels, folds=folds)


def _errors(
    estimator: LearnedCostModel, samples: KernelSamples, labels: Labels, split: Split
) -> FloatArray:
    """Relative errors on the kernels that a fold leaves out."""
    features, us = samples.features, samples.median_us
    fitted = clone(estimator).fit(features[split.train], us[split.train], labels[split.train])
    return relative_errors(us[split.test], fitted.predict(features[split.test]))


def _mean(errors: list[FloatArray], us: FloatArray, splits: list[Split]) -> float | None:
    """The objective over the folds gone through, None while these have no kernel that counts."""
    every = np.concatenate(errors)
    measured = np.concatenate([us[split.test] for split in splits[: len(errors)]])
    large = measured >= LARGE_US
    counted = large if np.count_nonzero(us >= LARGE_US) >= _LEAST_LARGE else np.ones_like(large)
    return float(every[counted].mean()) if counted.any() else None


def _told(trial: optuna.Trial) -> str:
    study: Any = trial.study
    done = [one.value for one in study.trials if one.value is not None]
    best = f", best error {min(done):.1%}" if done else ""
    return f"tuning, trial {trial.number + 1}{best}"
