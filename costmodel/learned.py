"""The learned cost model: LightGBM, and networks, on the log of measured over roofline time.

:class:`LearnedCostModel` is an estimator after scikit-learn's conventions, from arrays to arrays.
What it becomes once fitted is a ``TrainedModel``. It reads no store, does not split training from
test data, and knows nothing of plans.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed, parallel_config
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import GroupKFold
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from fusewise.costmodel.booster import text_of
from fusewise.costmodel.calibration import calibrate
from fusewise.costmodel.familiar import DEVICE, familiarise, kinds_of
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.costmodel.network import Network, Networks, Scaling, mixed, parts_of
from fusewise.costmodel.network_fit import fit_network
from fusewise.costmodel.objective import relative, slope_of
from fusewise.costmodel.roofline import check_features, roofline_parts
from fusewise.costmodel.roofline_parts import TERMS
from fusewise.costmodel.settled import settled, settled_record
from fusewise.costmodel.trained import DESIGN, ROOFLINE_AT, TrainedModel, design
from fusewise.schedule.errors import ModelError

if TYPE_CHECKING:
    import lightgbm

#: Fewest rows that a model can be fitted to: below, trees of any use have no leaves.
MIN_ROWS: Final = 50
#: Rows, of all fits together, from which on processes fit and not threads.
_ROWS_FOR_PROCESSES: Final = 100_000
#: Parts of the log ratio that the networks may have.
_SHARES: Final = tuple(step / 20 for step in range(21))
#: Where that is as large as this, the first one of so many trees is kept beside them: the others
#: take as long to ask as two networks, and all trees together have a tenth of the say.
_MOSTLY, _FEWER = 0.9, 6
#: Parameters that suit kernels of a CPU better than the estimator's own, which suit a GPU's: there
#: are fewer of them, of several devices, and their times are noisier.
_OF_CPUS: Final[Mapping[str, Any]] = {
    "learning_rate": 0.15,
    "colsample_bytree": 0.7,
    "extra_trees": False,
    "n_estimators": 100,
    "num_leaves": 40,
    "networks": 3,
    "width": 160,
    "dropout": 1 / 16,
}
#: Relative error that one kernel counts at most where the part of the networks is chosen.
_FURTHEST: Final = 1000.0
_DIFFICULTY_TREES: Final = 40
_DIFFICULTY: Final = {
    "objective": "regression",
    "num_leaves": 7,
    "learning_rate": 0.06,
    "min_data_in_leaf": 40,
    "feature_fraction": 0.5,
    "lambda_l2": 1.0,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
}

Labels = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]
#: From rows [n, D] to numbers [n].
Guess = Callable[[FloatArray], Any]


class LearnedCostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Estimator of kernel times in microseconds from features [n, F].

    The target is log(measured / roofline): sizes that span decades become one scale, errors are
    relative, and where nothing is known the answer is the roofline's. Intervals are conformal
    (Vovk et al. 2005; Lei et al. 2018) on the log errors of groups that the trees did not see,
    each over the error that a second, small booster expects of such a kernel.

    Small networks guess beside the trees, and as much of each is taken as serves groups best that
    neither saw.

    The roofline takes over, and the prediction says so, where a kernel is unlike those trained on
    (``fusewise.costmodel.familiar``), or where the calibration showed the trees to err by
    more than the roofline.
    """

    def __init__(
        self,
        *,
        n_estimators: int = 60,
        num_leaves: int = 100,
        learning_rate: float = 0.2,
        min_child_samples: int = 10,
        subsample: float = 0.9,
        colsample_bytree: float = 0.9,
        reg_lambda: float = 1.0,
        objective: str = "relative",
        extra_trees: bool = True,
        networks: int = 6,
        width: int = 96,
        dropout: float = 0.0,
        epochs: int = 30,
        confidence: float = 0.9,
        folds: int = 5,
        margin: float = 1.0,
        false_alarms: float = 0.03,
        seed: int = 0,
    ) -> None:
        """Parameters.

        n_estimators, num_leaves, learning_rate, min_child_samples, subsample, colsample_bytree,
            reg_lambda, objective, extra_trees: as LightGBM has them. The objective ``relative`` is
            :func:`~fusewise.costmodel.objective.relative`. Thresholds that are drawn at random
            (Geurts, Ernst, Wehenkel 2006) fit single families less closely. A sixth of the
            trees is kept where networks have nine tenths of the say.
        networks: how many networks beside the trees, from none.
        width: numbers that their layers pass on at most. Many narrow networks that fit closely
            guess better together than a few wide ones, each of which guesses better alone.
        dropout: part of these that is left out of each step, from 0 to less than 1.
        epochs: times that these go through the kernels.
        confidence: part of measured times that the interval should hold.
        folds: parts that the groups (or rows) are cut into for the intervals, each of which is
            predicted by trees of the others; two at least. The trees that are kept saw all.
        margin: doublings that a size may lie outside of what was seen.
        false_alarms: part of the kernels of groups not seen that may be taken to be unlike those
            trained on.
        seed: of the sampling.
        """
        self.n_estimators = n_estimators
        self.num_leaves = num_leaves
        self.learning_rate = learning_rate
        self.min_child_samples = min_child_samples
        self.subsample = subsample
        self.colsample_bytree = colsample_bytree
        self.reg_lambda = reg_lambda
        self.objective = objective
        self.extra_trees = extra_trees
        self.networks = networks
        self.width = width
        self.dropout = dropout
        self.epochs = epochs
        self.confidence = confidence
        self.folds = folds
        self.margin = margin
        self.false_alarms = false_alarms
        self.seed = seed

    def fit(
        self,
        features: npt.ArrayLike,
        us: npt.ArrayLike,
        groups: Sequence[object] | npt.NDArray[Any] | None = None,
    ) -> Self:
        """Fit to measured times ``us`` [n] in microseconds of kernels with ``features`` [n, F].

        ``groups`` [n] are labels of rows that are alike (the graph or family of each kernel), which
        the parts that are held out for the intervals keep together; rows are taken one by one where
        it is None or has a single label.

        Raises:
            ModelError: shapes do not fit, fewer than ``MIN_ROWS`` rows, or times or features that
                are not finite or not positive.
        """
        x = np.asarray(features, dtype=np.float64)
        y = np.asarray(us, dtype=np.float64)
        check_features(x, "training data")
        _check_targets(x, y)
        parts = roofline_parts(x)
        matrix, target = design(x, parts), settled(np.log(y / parts.us))
        log_base = matrix[:, ROOFLINE_AT]
        labels = _labels(len(y), groups)
        folds = self._folds(labels)
        everything = np.arange(len(y))
        (booster, networks), *parts_of = self._learn(
            matrix, target, [everything, *(fitted for fitted, _ in folds)]
        )
        rows = np.sort(np.concatenate([held for _, held in folds]))
        trees, others = zip(*parts_of, strict=True)
        count = self.n_estimators
        ratio = _of_unseen(matrix, folds, _asked(trees, count))
        if networks is not None:
            guess = _of_unseen(matrix, folds, [other.ratio for other in others])
            share = _best_share(ratio[rows], guess[rows], target[rows])
            networks = msgspec.structs.replace(networks, share=share)
            if share >= _MOSTLY:
                count = -(-count // _FEWER)
                ratio = _of_unseen(matrix, folds, _asked(trees, count))
            ratio = networks.beside(ratio, guess)
        error = target - ratio
        seen = np.column_stack([matrix, ratio])
        before = [np.setdiff1d(rows, held) for _, held in folds]
        judges = [self._train_difficulty(seen[those], np.abs(error[those])) for those in before]
        expected = _of_unseen(seen, folds, _asked(judges))
        difficulty = self._train_difficulty(seen[rows], np.abs(error[rows]))
        calibration = calibrate(
            log_base=log_base[rows],
            log_ratio=target[rows],
            learned_error=error[rows],
            difficulty=expected[rows],
            labels=labels[rows],
            kinds=kinds_of(x[rows]),
            devices=x[rows][:, DEVICE],
            confidence=self.confidence,
        )
        familiar = familiarise(
            x, log_base, labels, folds, margin=self.margin, false_alarms=self.false_alarms
        )
        self.model_ = TrainedModel(
            text_of(booster, count),
            text_of(difficulty),
            settled_record(calibration),
            settled_record(familiar),
            networks=networks,
        )
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

    def _folds(self, labels: Labels) -> list[tuple[Rows, Rows]]:
        """Row numbers to fit to and held out; rows that are never held out give no intervals."""
        return folds_of(labels, self.folds)

    def _learn(
        self, matrix: FloatArray, target: FloatArray, parts: Sequence[Rows]
    ) -> list[tuple[lightgbm.Booster, Networks | None]]:
        """Trees and networks of each of these parts of the rows, side by side."""
        scalings = [Scaling.of(matrix[rows]) for rows in parts]
        # Networks come first, which take longest.
        jobs = [
            delayed(self._network)(matrix, target, rows, scaling, number)
            for rows, scaling in zip(parts, scalings, strict=True)
            for number in range(self.networks)
        ]
        jobs += [delayed(self._train)(matrix, target, rows) for rows in parts]
        # Steps of a network are so short that threads wait for each other; processes start slowly.
        own = "loky" if len(target) * len(parts) >= _ROWS_FOR_PROCESSES else "threading"
        # Products this small take longer with several threads, and far longer on a busy machine.
        with threadpool_limits(1, "blas"):
            limit = {"inner_max_num_threads": 1} if own == "loky" else {}
            with parallel_config(own, n_jobs=os.cpu_count(), **limit):
                found = iter(Parallel()(jobs))
        networks = [tuple(itertools.islice(found, self.networks)) for _ in parts]
        return [
            (booster, Networks(scaling, some) if some else None)
            for booster, scaling, some in zip(found, scalings, networks, strict=True)
        ]

    def _network(
        self, matrix: FloatArray, target: FloatArray, rows: Rows, scaling: Scaling, number: int
    ) -> Network:
        matrix, target = matrix[rows], target[rows]
        # All but each second one weigh the roofline's parts: two sorts err differently, which evens
        # out.
        parts = parts_of(matrix, 0 if number % 2 else len(TERMS))
        inputs, seed = scaling.inputs(matrix), (self.seed, number)
        return fit_network(
            inputs,
            parts,
            target,
            slope_of,
            epochs=self.epochs,
            width=self.width,
            dropout=self.dropout,
            seed=seed,
        )

    def _train(self, matrix: FloatArray, target: FloatArray, rows: Rows) -> lightgbm.Booster:
        import lightgbm

        matrix, target = matrix[rows], target[rows]

        parameters = {
            "objective": relative if self.objective == "relative" else self.objective,
            "num_leaves": self.num_leaves,
            "learning_rate": self.learning_rate,
            "min_data_in_leaf": self.min_child_samples,
            "bagging_fraction": self.subsample,
            "bagging_freq": 1 if self.subsample < 1.0 else 0,
            "feature_fraction": self.colsample_bytree,
            "lambda_l2": self.reg_lambda,
            "extra_trees": self.extra_trees,
            "seed": self.seed,
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        names = [name for name, _ in DESIGN]

        def train(**instead: Any) -> lightgbm.Booster:
            data = lightgbm.Dataset(matrix, label=target, feature_name=names, free_raw_data=True)
            return lightgbm.train(parameters | instead, data, num_boost_round=self.n_estimators)

        try:
            return train()
        except lightgbm.basic.LightGBMError:
            if self.objective != "relative":
                raise
            # Where no feature tells two kernels apart, LightGBM takes no objective but its own.
            return train(objective="regression_l1")

    def _train_difficulty(self, matrix: FloatArray, error: FloatArray) -> lightgbm.Booster:
        """A booster of the absolute error [n] of the log ratio, from the design and the ratio."""
        import lightgbm

        parameters = {**_DIFFICULTY, "seed": self.seed}
        names = [*(name for name, _ in DESIGN), "ratio"]
        data = lightgbm.Dataset(matrix, label=error, feature_name=names, free_raw_data=True)
        return lightgbm.train(parameters, data, num_boost_round=_DIFFICULTY_TREES)


def _asked(boosters: Sequence[lightgbm.Booster], trees: int | None = None) -> list[Guess]:
    """What the first ``trees`` of each say, or all of them."""
    return [partial(each.predict, num_iteration=trees, num_threads=1) for each in boosters]


def _of_unseen(
    matrix: FloatArray, folds: Sequence[tuple[Rows, Rows]], guesses: Sequence[Guess]
) -> FloatArray:
    """Of each row of ``matrix`` [n, D] the guess of the one that saw nothing of its group."""
    found = np.zeros(len(matrix))
    for guess, (_, held) in zip(guesses, folds, strict=True):
        found[held] = guess(matrix[held])
    return found


def _best_share(trees: FloatArray, networks: FloatArray, target: FloatArray) -> float:
    """The part of the networks' log ratios [n], beside those of trees, with the least error."""
    mixtures = [mixed(trees, networks, share) for share in _SHARES]
    errors = [np.abs(settled(np.exp(mixture - target)) - 1.0) for mixture in mixtures]
    # A kernel that takes next to nothing, as one does that has nothing to do, would decide alone.
    told = [np.minimum(error, _FURTHEST).mean() for error in errors]
    return _SHARES[int(np.argmin(told))]


def estimator_for(kind: str, *, seed: int = 0) -> LearnedCostModel:
    """An estimator with parameters that suit kernels of a kind of device (``cpu`` or ``cuda``)."""
    return LearnedCostModel(seed=seed, **(_OF_CPUS if kind == "cpu" else {}))


def folds_of(labels: Labels, count: int) -> list[tuple[Rows, Rows]]:
    """Row numbers to fit to and held out, ``count`` times or as often as there are labels.

    Rows of one label [n] stand on one side, each row is held out once, and the parts are about
    equal in size. There must be two labels at least.
    """
    numbers = np.unique(np.asarray(labels, dtype=str), return_inverse=True)[1]
    splitter = GroupKFold(min(count, int(numbers.max()) + 1))
    return list(splitter.split(np.empty((len(numbers), 0)), groups=numbers))


def _labels(n: int, groups: Sequence[object] | npt.NDArray[Any] | None) -> Labels:
    """Labels as text; each row its own where there are none, or only one."""
    labels = [str(row) for row in range(n)]
    if groups is not None and len({str(group) for group in groups}) > 1:
        labels = [str(group) for group in groups]
    return np.array(labels, dtype=object)


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
