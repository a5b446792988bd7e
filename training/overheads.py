"""What plans take beyond their kernels, fitted to schedules that were measured.

The rates are those with the least sum of absolute relative errors, none below zero: least squares
weighed anew by the errors left (Huber and Ronchetti, Robust Statistics, 2009, section 7.8). Of
kernels that a model misses by far, schedules tell nothing about what lies between them; the sum of
absolute errors hardly heeds them. Predicts no kernels itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from sklearn.linear_model import LinearRegression

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.overheads import Amounts, Overheads

#: Schedules below which nothing is fitted.
LEAST: Final = 60
#: Factors over the sum of its kernels beyond which a schedule tells of these only.
_LOWEST, _HIGHEST = 0.5, 5.0
#: Relative errors below it count alike.
_NEAR: Final = 0.03
_ROUNDS: Final = 30


def overheads_from(measured: FloatArray, amounts: Sequence[Amounts]) -> Overheads | None:
    """Rates from n schedules, their kernels predicted by models that saw nothing of them.

    None where there are too few.

    Args:
        measured: [n], in microseconds.
        amounts: of each.
    """
    if len(measured) < LEAST:
        return None
    matrix = np.array(amounts, dtype=np.float64)
    kernels = matrix[:, -2] + matrix[:, -1]
    fair = (measured > _LOWEST * kernels) & (measured < _HIGHEST * kernels)
    if np.count_nonzero(fair) < LEAST:
        return None
    measured, matrix, kernels = measured[fair], matrix[fair], kernels[fair]
    scale = np.maximum(matrix.max(axis=0), np.finfo(np.float64).tiny)
    shares = matrix / scale / measured[:, np.newaxis]
    wanted = (measured - kernels) / measured
    weights = np.ones(len(wanted))
    fitted = LinearRegression(fit_intercept=False, positive=True)
    for _ in range(_ROUNDS):
        fitted.fit(shares, wanted, sample_weight=weights)
        weights = 1.0 / np.maximum(np.abs(fitted.predict(shares) - wanted), _NEAR)
    rates = (fitted.coef_ / scale).tolist()
    return Overheads(**dict(zip(Overheads.__struct_fields__, rates, strict=True)))
