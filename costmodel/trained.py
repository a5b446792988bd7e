"""The trained model: trees, networks and what is known of their errors, ready to predict.

The counterpart of ``LearnedCostModel``, which makes it. Immutable; the trees are LightGBM's own
text and the networks' sums are exact, so equal models predict equal bits.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.block_model import BlockModel
from fusewise.costmodel.booster import Booster, BoosterError
from fusewise.costmodel.calibration import Calibration
from fusewise.costmodel.familiar import DEVICE, Familiar
from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.costmodel.gains import Gains
from fusewise.costmodel.interface import FloatArray, Prediction, Source
from fusewise.costmodel.network import Networks
from fusewise.costmodel.overheads import Overheads
from fusewise.costmodel.plan_margins import PlanMargins
from fusewise.costmodel.roofline import INTERVAL_FACTOR, check_features, roofline_parts
from fusewise.costmodel.roofline_parts import TERMS, RooflineParts
from fusewise.schedule.errors import ModelError

#: Names and units of what trees and networks see.
DESIGN: Final = (
    *((feature.name, feature.unit) for feature in FEATURES),
    ("roofline", "log us"),
    *((f"roofline_{name}", "log share") for name in TERMS),
)
#: Where the log of the roofline stands.
ROOFLINE_AT: Final = len(FEATURES)


class TrainedModel:
    """A fitted model. Implements ``CostModel``; immutable, and equal ones predict equal bits."""

    features_version = FEATURES_VERSION

    def __init__(
        self,
        trees: str,
        difficulty: str,
        calibration: Calibration,
        familiar: Familiar,
        *,
        networks: Networks | None = None,
        gains: Gains | None = None,
        blocks: BlockModel | None = None,
        name: str = "learned",
    ) -> None:
        """``trees`` and ``difficulty`` are texts of LightGBM boosters.

        The trees see what ``design`` tells, and give the log of time over roofline, as ``networks``
        beside them do; the difficulty sees what both say together as well, and gives the absolute
        error to expect.
        """
        self.trees = trees
        self.networks = networks
        self.difficulty = difficulty
        self.calibration = calibration
        self.familiar = familiar
        #: What may be taken by its predictions; None where nothing was found out about it.
        self.gains = gains
        #: What it knows about block sizes; None where no kernels were timed with several.
        self.blocks = blocks
        self.name = name
        parts = (trees.encode(), difficulty.encode(), calibration.encode())
        text = b"".join((*parts, msgspec.json.encode(familiar)))
        if networks is not None:
            text += msgspec.json.encode(networks)
        if gains is not None:
            text += msgspec.json.encode(gains, order="deterministic")
        if blocks is not None:
            text += blocks.id.encode()
        self.id = f"learned-{FEATURES_VERSION}-{hashlib.sha256(text).hexdigest()[:16]}"

    @property
    def plans(self) -> PlanMargins | None:
        """How far whole plans lie from the sums over their groups, where that is known."""
        return None if self.gains is None else self.gains.plans

    @property
    def overheads(self) -> Overheads | None:
        """What plans take beyond their kernels, where that is known."""
        return None if self.gains is None else self.gains.overheads

    def renamed(self, name: str) -> TrainedModel:
        """The same model under another name; its ``id`` stays."""
        return self._but(self.gains, self.blocks, name)

    def with_gains(self, gains: Gains) -> TrainedModel:
        """The same model with another record, which its ``id`` tells."""
        return self._but(gains, self.blocks, self.name)

    def with_blocks(self, blocks: BlockModel | None) -> TrainedModel:
        """The same model with another block model, which its ``id`` tells."""
        return self._but(self.gains, blocks, self.name)

    def _but(self, gains: Gains | None, blocks: BlockModel | None, name: str) -> TrainedModel:
        return TrainedModel(
            self.trees,
            self.difficulty,
            self.calibration,
            self.familiar,
            networks=self.networks,
            gains=gains,
            blocks=blocks,
            name=name,
        )

    @cached_property
    def _booster(self) -> Booster:
        return self._read(self.trees)

    @cached_property
    def _difficulty(self) -> Booster:
        return self._read(self.difficulty)

    def _read(self, text: str) -> Booster:
        try:
            return Booster(text)
        except BoosterError as error:
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
        matrix = design(features, roofline_parts(features))
        log_base = matrix[:, ROOFLINE_AT]
        ratio = self._booster.predict(matrix)
        if self.networks is not None:
            ratio = self.networks.beside(ratio, self.networks.ratio(matrix))
        difficulty = self._difficulty.predict(np.column_stack([matrix, ratio]))
        cal = self.calibration
        at = cal.bins(log_base)
        learned_width = cal.learned_width(log_base, difficulty, features[:, DEVICE])
        roofline_width = np.array(cal.roofline_width)[at]
        covered = self.familiar.covers(features, log_base)
        learned = covered & np.array(cal.trusted)[at]
        roofline_width = np.where(
            covered, roofline_width, np.maximum(roofline_width, cal.strange_width)
        )
        # On the device that was trained for, the roofline is known to be off by a factor, and by
        # how much its errors spread; on another one nothing is known.
        known = self.familiar.known_device(features)
        shift = np.where(learned, ratio, np.where(known, np.array(cal.roofline_shift)[at], 0.0))
        width = np.where(
            learned, learned_width, np.where(known, roofline_width, np.log(INTERVAL_FACTOR))
        )
        middle = log_base + shift
        source: tuple[Source, ...] = tuple(
            "learned" if flag else "roofline" for flag in learned.tolist()
        )
        return Prediction(np.exp(middle), np.exp(middle - width), np.exp(middle + width), source)

    def contributions(self, matrix: FloatArray) -> FloatArray:
        """What each column adds to the log ratio, shape [n, D + 1], what is usual last.

        SHAP values of the trees, and what the networks say of theirs
        (:meth:`~fusewise.costmodel.network.Network.contributions`), each by their share.
        ``matrix`` is as :func:`design` makes it; rows add up to the log ratio that is predicted.
        """
        import lightgbm

        booster = lightgbm.Booster(model_str=self.trees)
        values: FloatArray = np.asarray(
            booster.predict(matrix, num_threads=1, pred_contrib=True), dtype=np.float64
        )
        if self.networks is None:
            return values
        return self.networks.beside(values, self.networks.contributions(matrix))


def design(features: FloatArray, parts: RooflineParts) -> FloatArray:
    """What the trees see, shape [n, D] as in ``DESIGN``: the features, and what ``parts`` tell."""
    return np.column_stack([features, parts.told])
