"""The learned cost model: LightGBM on the log of measured over roofline time.

:class:`LearnedCostModel` is an estimator after scikit-learn's conventions, from arrays to arrays.
What it becomes once fitted is a ``TrainedModel``. It reads no store, does not split training from
test data, and knows nothing of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit
from sklearn.utils.validation import check_is_fitted

from fusewise.costmodel.calibration import calibrate
from fusewise.costmodel.feature_table import FEATURES
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.costmodel.roofline import check_features, roofline_us
from fusewise.costmodel.trained import TrainedModel, design
from fusewise.schedule.errors import ModelError

if TYPE_CHECKING:
    import lightgbm

#: Fewest rows that a model can be fitted to: below, trees of any use have no leaves.
MIN_ROWS = 50


class LearnedCostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Estimator of kernel times in microseconds from features [n, F].

    The target is log(measured / roofline): sizes that span decades become one scale, errors are
    relative, and where nothing is known the answer is the roofline's. Intervals are split
    conformal (Vovk et al. 2005; Lei et al. 2018) on the log error of rows held out by group, with
    one quantile for each range of roofline times (Mondrian), since small kernels are noisier.

    The roofline takes over, and the prediction says so, where a feature lies outside its training
    range, or where the calibration showed the learned interval to be no narrower than the
    roofline's.
    """

    def __init__(
        self,
        *,
        n_estimators: int = 200,
        num_leaves: int = 31,
        learning_rate: float = 0.06,
        min_child_samples: int = 10,
        subsample: float = 0.9,
        colsample_bytree: float = 0.7,
        reg_lambda: float = 1.0,
        objective: str = "regression",
        confidence: float = 0.9,
        calibration_share: float = 0.2,
        margin: float = 0.25,
        refit: bool = True,
        seed: int = 0,
    ) -> None:
        """Parameters.

        n_estimators, num_leaves, learning_rate, min_child_samples, subsample, colsample_bytree,
        reg_lambda, objective: as LightGBM has them.
        confidence: part of measured times that the interval should hold.
        calibration_share: part of the groups (or rows) held out for the intervals.
        margin: how far a feature may lie outside its training range, in parts of the range.
        refit: fit the trees on all rows once the intervals are known. The intervals then belong to
            trees that saw less, so they are rather too wide.
        seed: of the sampling and of the split.
        """
        self.n_estimators = n_estimators
        self.num_leaves = num_leaves
        self.learning_rate = learning_rate
        self.min_child_samples = min_child_samples
        self.subsample = subsample
        self.colsample_bytree = colsample_bytree
        self.reg_lambda = reg_lambda
        self.objective = objective
        self.confidence = confidence
        self.calibration_share = calibration_share
        self.margin = margin
        self.refit = refit
        self.seed = seed

    def fit(
        self,
        features: npt.ArrayLike,
        us: npt.ArrayLike,
        groups: Sequence[object] | npt.NDArray[Any] | None = None,
    ) -> Self:
        """Fit to measured times ``us`` [n] in microseconds of kernels with ``features`` [n, F].

        ``groups`` [n] are labels that the calibration split keeps together (the graph or family of
        each kernel); rows are split one by one where it is None or has a single label.

        Raises:
            ModelError: shapes do not fit, fewer than ``MIN_ROWS`` rows, or times or features that
                are not finite or not positive.
        """
        x = np.asarray(features, dtype=np.float64)
        y = np.asarray(us, dtype=np.float64)
        check_features(x, "training data")
        _check_targets(x, y)
        base = roofline_us(x)
        matrix, target = design(x, base), np.log(y / base)
        fitted, held = self._split(len(y), groups)
        booster = self._train(matrix[fitted], target[fitted])
        error = target[held] - np.asarray(booster.predict(matrix[held], num_threads=1))
        calibration = calibrate(
            x,
            log_base=np.log(base[held]),
            learned_error=error,
            log_ratio=target[held],
            confidence=self.confidence,
            margin=self.margin,
        )
        if self.refit:
            booster = self._train(matrix, target)
        self.model_ = TrainedModel(booster.model_to_string(), calibration)
        self.n_features_in_ = x.shape[1]
        return self

    def predict(self, features: npt.ArrayLike) -> FloatArray:
        """Times in microseconds, shape [n], of kernels with ``features`` [n, F].

        Raises:
            ModelError: the shape is not [n, F].
            sklearn.exceptions.NotFittedError: before :meth:`fit`.
        """
        return self.predict_interval(features).us

    def predict_interval(self, features: npt.ArrayLike) -> Prediction:
        """As :meth:`predict`, with interval and source."""
        check_is_fitted(self, "model_")
        return self.model_.predict(np.asarray(features, dtype=np.float64))

    def _split(
        self, n: int, groups: Sequence[object] | npt.NDArray[Any] | None
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        kind, labels = ShuffleSplit, None
        if groups is not None:
            labels = np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1]
            if labels.max() > 0:
                kind = GroupShuffleSplit
        splitter = kind(n_splits=1, test_size=self.calibration_share, random_state=self.seed)
        fitted, held = next(splitter.split(np.empty((n, 0)), groups=labels))
        return fitted, held

    def _train(self, matrix: FloatArray, target: FloatArray) -> lightgbm.Booster:
        import lightgbm

        parameters = {
            "objective": self.objective,
            "num_leaves": self.num_leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.min_child_samples,
            "bagging_fraction": self.subsample,
            "bagging_freq": 1 if self.subsample < 1.0 else 0,
            "feature_fraction": self.colsample_bytree,
            "lambda_l2": self.reg_lambda,
            "seed": self.seed,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        names = [feature.name for feature in FEATURES] + ["roofline"]
        data = lightgbm.Dataset(matrix, label=target, feature_name=names, free_raw_data=True)
        return lightgbm.train(parameters, data, num_boost_round=self.n_estimators)


def _check_targets(features: FloatArray, us: FloatArray) -> None:
    if us.shape != (len(features),):
        cause, remedy = f"times have shape {us.shape}, not [{len(features)}]", "pass one a row"
    elif len(us) < MIN_ROWS:
        cause = f"{len(us)} rows are too few to train on, at least {MIN_ROWS} are needed"
        remedy = "measure more kernels"
    elif not np.isfinite(features).all():
        cause, remedy = "features that are not finite", "leave those rows out"
    elif not (np.isfinite(us).all() and (us > 0).all()):
        cause, remedy = "times that are not finite and positive", "leave those rows out"
    else:
        return
    raise ModelError(cause, subject="training data", remedy=remedy)
