"""Which features drive a prediction: the share of each in the predicted time of a group.

For a learned model these are Shapley values: of its trees as LightGBM computes them (Lundberg et
al. 2020, "From local explanations to global understanding"), of its networks those of Aumann and
Shapley (Sundararajan et al. 2017). For the roofline they are the parts that it adds up. Explains
predictions, and changes none.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fusewise.costmodel.feature_table import COLUMN, FEATURES
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.roofline import check_features, roofline_parts
from fusewise.costmodel.trained import DESIGN, TrainedModel, design


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one feature, or term of the roofline, does to a prediction."""

    feature: str
    #: Value and unit of the feature, as in the table of features; of a term the log of its share.
    value: float
    unit: str
    #: Shapley value: added to the log of the time, so the time is multiplied by exp of it.
    shap: float
    #: The time is multiplied by this.
    factor: float


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """How the prediction of one group came about. Times are in microseconds."""

    #: Roofline time, and what it is made of; the greater of memory and arithmetic counts.
    roofline_us: float
    launch_us: float
    memory_us: float
    arithmetic_us: float
    #: Factor for a kernel of average features; 1 without a learned model.
    base_factor: float = 1.0
    #: The features, those that do most first; empty where nothing was learned.
    contributions: tuple[Contribution, ...] = ()

    @property
    def bound_by(self) -> str:
        """What takes most of the time: ``memory``, ``arithmetic`` or ``launch``."""
        parts = {
            "memory": self.memory_us,
            "arithmetic": self.arithmetic_us,
            "launch": self.launch_us,
        }
        return max(parts, key=lambda name: parts[name])

    @property
    def learned_us(self) -> float | None:
        """What the learned model predicts; None without one."""
        if not self.contributions:
            return None
        log = sum(c.shap for c in self.contributions) + float(np.log(self.base_factor))
        return self.roofline_us * float(np.exp(log))


def attribute(model: CostModel, features: FloatArray, *, trees: bool = True) -> list[Attribution]:
    """Attributions of groups with ``features`` [n, F].

    The trees tell of themselves even where the model gives another answer because a feature is
    outside of the range that it was trained on.

    Args:
        model: a trained model, or any other, of which only the roofline's parts are known.
        features: as ``Featurizer.batch`` gives them.
        trees: whether to ask the trees at all.

    Raises:
        ModelError: the shape is not [n, F].
    """
    check_features(features, f"model {model.name}")
    parts = roofline_parts(features)
    base, matrix = parts.us, design(features, parts)
    shap = _shap(model, matrix) if trees and isinstance(model, TrainedModel) else None
    return [
        Attribution(
            roofline_us=float(base[i]),
            launch_us=float(parts.launch[i]),
            memory_us=float(parts.memory[i]),
            arithmetic_us=float(parts.arithmetic[i]),
            base_factor=1.0 if shap is None else float(np.exp(shap[i, -1])),
            contributions=() if shap is None else _ranked(matrix[i], shap[i]),
        )
        for i in range(len(features))
    ]


def amounts(features: FloatArray) -> dict[str, float]:
    """Values of one group's ``features`` [F] in plain units: bytes, operations, counts, shares."""
    plain = {}
    for feature, value in zip(FEATURES, features.tolist(), strict=True):
        plain[feature.name] = 2.0**value - 1.0 if feature.logarithmic else value
    return plain


def moved_bytes(features: FloatArray) -> tuple[int, int]:
    """Distinct bytes that a group with ``features`` [F] reads, and that it stores."""
    plain = amounts(features)

    def total(start: str) -> int:
        return round(sum(plain[name] for name in COLUMN if name.startswith(start)))

    return total("read_"), total("written_")


def masked_turns(features: FloatArray) -> int:
    """Turns of the loop over rows of a group with ``features`` [F] that look where these end.

    0 where rows are held whole, or end where a turn does.
    """
    plain = amounts(features)
    held = plain["persistent"] > 0.0 or plain["even"] > 0.0
    return 0 if held or not plain["reductions"] else round(plain["turns"])


def _shap(model: TrainedModel, matrix: FloatArray) -> FloatArray:
    """Shape [n, D + 1]: what the trees see, and the mean."""
    if not len(matrix):
        return np.empty((0, len(DESIGN) + 1))
    return model.contributions(matrix)


def _ranked(values: FloatArray, shap: FloatArray) -> tuple[Contribution, ...]:
    found = [
        Contribution(
            feature=name,
            value=value,
            unit=unit,
            shap=float(added),
            factor=float(np.exp(added)),
        )
        for (name, unit), value, added in zip(
            DESIGN, values.tolist(), shap[:-1].tolist(), strict=True
        )
    ]
    return tuple(sorted(found, key=lambda c: (-abs(c.shap), c.feature)))
