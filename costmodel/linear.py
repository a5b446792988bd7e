"""The straight part of the learned model: a ridge regression that the trees start from.

Trees are poor at trends over many features at once and know none beyond what they saw; a few
percent of their error on families not seen goes away when they only have to learn what a straight
line leaves. Values are cut off some way outside of what was seen, so that nothing runs away.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec
import numpy as np

from fusewise.costmodel.interface import FloatArray

#: Decimals that numbers are kept to, so that they do not depend on how a machine adds up.
_DECIMALS: Final = 6
#: Standard deviations from the mean at which a value is cut off.
_FURTHEST: Final = 4.0


class Linear(msgspec.Struct, frozen=True, eq=False):
    """Offset and weights of m columns, each measured from its mean in standard deviations."""

    offset: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weight: tuple[float, ...]

    @classmethod
    def fit(cls, matrix: FloatArray, target: FloatArray, strength: float) -> Self:
        """To ``target`` [n] from ``matrix`` [n, m]; ``strength`` is that of the ridge, in rows."""
        mean = np.round(matrix.mean(axis=0), _DECIMALS)
        deviation = np.round(matrix.std(axis=0), _DECIMALS)
        # A column that never changes has nothing to say.
        deviation = np.where(deviation > 0.0, deviation, np.inf)
        offset = round(float(target.mean()), _DECIMALS)
        z = _standard(matrix, mean, deviation)
        gram = z.T @ z + strength * np.eye(z.shape[1])
        weight = np.round(np.linalg.solve(gram, z.T @ (target - offset)), _DECIMALS)
        flat = np.isinf(deviation)
        return cls(
            offset=offset,
            mean=tuple(mean.tolist()),
            deviation=tuple(np.where(flat, 1.0, deviation).tolist()),
            weight=tuple(np.where(flat, 0.0, weight).tolist()),
        )

    def parts(self, matrix: FloatArray) -> FloatArray:
        """What each column of ``matrix`` [n, m] adds to the offset, shape [n, m]."""
        z = _standard(matrix, np.array(self.mean), np.array(self.deviation))
        parts: FloatArray = z * np.array(self.weight)
        return parts

    def predict(self, matrix: FloatArray) -> FloatArray:
        """Shape [n]; a row's value does not depend on the rows beside it, to the last bit."""
        parts = np.ascontiguousarray(self.parts(matrix))
        told: FloatArray = self.offset + parts.sum(axis=1)
        return told


def _standard(matrix: FloatArray, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    z: FloatArray = np.clip((matrix - mean) / deviation, -_FURTHEST, _FURTHEST)
    return z
