"""The loss of relative errors, which trees and networks are fitted by.

It is Fair's (1974, constant 0.2) of predicted over measured time less 1. Of a kernel that little is
known of a time too short is the better guess: it is wrong by all of the time at most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.settled import settled

if TYPE_CHECKING:
    import lightgbm

#: Relative error from which on the objective ``relative`` grows no longer by the square.
_FAIR: Final = 0.2
#: Its least curvature, which bounds steps where the prediction is a small part of the time, and the
#: logs of predicted over measured time beyond which it pulls no harder.
_LEAST_CURVATURE: Final = 0.05
_FARTHEST: Final = (-4.0, 1.5)
#: Significant bits of a gradient's errors: so few that in all the gradients of a training none lies
#: where processors would round it differently, and enough to tell 0.002 % of a time.
_BITS: Final = 16


def relative(ratio: FloatArray, data: lightgbm.Dataset) -> tuple[FloatArray, FloatArray]:
    """Gradient and curvature [n] of the loss, an objective of LightGBM's.

    The curvature is that of Gauss and Newton.

    Args:
        ratio: log of predicted over roofline time, [n].
        data: with the log of measured over roofline time as its label.
    """
    slope, root = _slope_and_root(ratio, np.asarray(data.get_label()))
    return slope, np.maximum(root**2, _LEAST_CURVATURE)


def slope_of(ratio: FloatArray, target: FloatArray) -> FloatArray:
    """Gradient [n] of the loss, by log ratios [n] that are predicted and measured."""
    return _slope_and_root(ratio, target)[0]


def _slope_and_root(ratio: FloatArray, target: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The gradient, and the root of the curvature, by Fair's weight of each error."""
    over = settled(np.exp(np.clip(ratio - target, *_FARTHEST)), _BITS)
    weight = _FAIR / (np.abs(over - 1) + _FAIR)
    return weight * (over - 1) * over, weight * over
