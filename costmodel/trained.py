"""The trained model: the trees and what is known of their errors, ready to predict.

The counterpart of ``LearnedCostModel``, which makes it. Immutable; the trees are LightGBM's own
text, so equal texts predict equal bits. LightGBM itself is imported at the first prediction, as
that takes a second.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fusewise.costmodel.calibration import Calibration
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.interface import FloatArray, Prediction, Source
from fusewise.costmodel.roofline import INTERVAL_FACTOR, check_features, roofline_us
from fusewise.schedule.errors import ModelError

if TYPE_CHECKING:
    import lightgbm


class TrainedModel:
    """A fitted model. Implements ``CostModel``; immutable, and equal texts predict equal bits."""

    features_version = FEATURES_VERSION

    def __init__(self, trees: str, calibration: Calibration, *, name: str = "learned") -> None:
        """``trees`` is the text of a LightGBM booster over the features and the log roofline."""
        self.trees = trees
        self.calibration = calibration
        self.name = name
        text = trees.encode() + calibration.encode()
        self.id = f"learned-{FEATURES_VERSION}-{hashlib.sha256(text).hexdigest()[:16]}"

    @cached_property
    def _booster(self) -> lightgbm.Booster:
        import lightgbm

        try:
            return lightgbm.Booster(model_str=self.trees)
        except lightgbm.basic.LightGBMError as error:
            raise ModelError(
                f"its trees cannot be read: {error}",
                subject=f"model {self.name}",
                remedy="train it again with train-costmodel",
            ) from error

    def predict(self, features: FloatArray) -> Prediction:
        """Times of groups with ``features`` [n, F].

        ``LearnedCostModel`` says when the roofline takes over.

        Raises:
            ModelError: the shape is not [n, F].
        """
        check_features(features, f"model {self.name}")
        if not len(features):
            empty = np.empty(0)
            return Prediction(empty, empty, empty, ())
        base = roofline_us(features)
        log_base = np.log(base)
        ratio = np.asarray(self._booster.predict(design(features, base), num_threads=1))
        cal = self.calibration
        at = cal.bins(log_base)
        learned_width, roofline_width = cal.learned[at], cal.roofline[at]
        inside = cal.inside(features)
        learned = inside & (learned_width <= roofline_width)
        # On the device that was trained for, the roofline is known to be off by a factor, and by
        # how much its errors spread; on another one nothing is known.
        known = cal.known_device(features)
        shift = np.where(learned, ratio, np.where(known, cal.shift[at], 0.0))
        width = np.where(
            learned, learned_width, np.where(known, roofline_width, np.log(INTERVAL_FACTOR))
        )
        middle = log_base + shift
        source: tuple[Source, ...] = tuple(
            "learned" if flag else "roofline" for flag in learned.tolist()
        )
        return Prediction(np.exp(middle), np.exp(middle - width), np.exp(middle + width), source)

    def contributions(self, matrix: FloatArray) -> FloatArray:
        """SHAP values of the trees' log ratio, shape [n, F + 2], the mean of all rows last.

        ``matrix`` is as :func:`design` makes it; each row adds up to what the trees predict.
        """
        values: FloatArray = np.asarray(
            self._booster.predict(matrix, num_threads=1, pred_contrib=True), dtype=np.float64
        )
        return values


def design(features: FloatArray, base_us: FloatArray) -> FloatArray:
    """What the trees see, shape [n, F + 1]: the features and the log of the roofline."""
    return np.column_stack([features, np.log(base_us)])
