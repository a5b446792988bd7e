"""A small network beside the trees, in numbers on which every processor agrees.

Trees are flat between their thresholds. What a kernel takes mostly rises and falls steadily with
what it does, and of families that nobody has measured such a guess is the better one. The network
is a plain one: sums, of which what is below nought is cut off, layer upon layer (Rosenblatt 1958;
Nair and Hinton 2010).

Each input, weight and sum that is passed on is a multiple of a power of two, and bounded, so that
every sum of products is exact in 64-bit floats: in whatever order and with whatever instructions a
library of linear algebra adds, the result has the same bits. Predicts only; ``network_fit`` fits.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np

from fusewise.costmodel.interface import FloatArray


class Grid(NamedTuple):
    """Multiples of ``2**-bits`` from ``-most`` to ``most``."""

    bits: int
    most: float

    def nearest(self, values: FloatArray) -> FloatArray:
        """``values``, of any shape, each taken to the nearest of the grid."""
        ticks = self.ticks(values)
        ticks *= self.tick
        return ticks

    def ticks(self, values: FloatArray) -> FloatArray:
        """The same as whole numbers: how often ``2**-bits`` goes into them."""
        ticks = np.rint(values * float(1 << self.bits))
        np.clip(ticks, *self.ends, out=ticks)
        return ticks

    @property
    def tick(self) -> float:
        """From one to the next."""
        return 1.0 / (1 << self.bits)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest, in ticks."""
        most = self.most * (1 << self.bits)
        return -most, most


#: What is put in, in standard deviations; what layers pass on; and weights. A product has 18 + 16
#: bits at most, a 64-bit float 53: sums of half a million products are exact.
INPUTS: Final = Grid(12, 4.0)
PASSED: Final = Grid(12, 64.0)
WEIGHTS: Final = Grid(14, 4.0)
#: Points between the usual kernel and the one at hand at which slopes are taken.
_STEPS: Final = 64


class Layer(msgspec.Struct, frozen=True, array_like=True):
    """Sums of what comes in, each with weights of its own, in ticks of :data:`WEIGHTS`."""

    #: By sum, a weight for each number that comes in.
    weights: tuple[tuple[int, ...], ...]
    #: Added to each sum.
    offsets: tuple[int, ...]


class Network(msgspec.Struct, frozen=True, dict=True):
    """Layers, the last of which has a single sum: the log of time over roofline."""

    #: Of each column that it sees, what is subtracted, and what is then multiplied by.
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        """Refuse layers that do not fit upon each other.

        Raises:
            ValueError: which do not.
        """
        widths = [len(self.centre), *(len(layer.offsets) for layer in self.layers)]
        shapes = [{len(row) for row in layer.weights} for layer in self.layers]
        fits = all(
            len(layer.weights) == after and shape == {before}
            for layer, shape, (before, after) in zip(
                self.layers, shapes, pairwise(widths), strict=True
            )
        )
        if not fits or widths[-1] != 1 or len(self.scale) != len(self.centre):
            raise ValueError(f"a network whose layers do not fit upon each other: {widths}")

    def predict(self, matrix: FloatArray) -> FloatArray:
        """Log ratios, shape [n], of rows [n, D]."""
        # In ticks, which saves going to and fro; of inputs and what is passed on they are equal.
        *layers, (weights, offsets) = self._ticks
        passed = INPUTS.ticks(self._deviations(matrix))
        for inner, shift in layers:
            sums = passed @ inner
            sums += shift
            sums *= WEIGHTS.tick
            passed = np.rint(np.clip(sums, 0.0, PASSED.ends[1], out=sums), out=sums)
        ratio: FloatArray = (passed @ weights + offsets)[:, 0]
        return ratio * (WEIGHTS.tick * PASSED.tick)

    def contributions(self, matrix: FloatArray) -> FloatArray:
        """What each column adds to the log ratio, shape [n, D + 1], the usual kernel's ratio last.

        Slopes along the straight line from the mean of all kernels trained on to the row, times the
        way gone (integrated gradients, Sundararajan et al. 2017). What the steps leave over, and
        what rounding does, stands with the usual kernel, so that rows add up.

        Args:
            matrix: rows [n, D].
        """
        inputs = INPUTS.nearest(self._deviations(matrix))
        middles = (np.arange(_STEPS) + 0.5) / _STEPS
        slopes = np.zeros_like(inputs)
        for part in middles:
            slopes += self._slopes(inputs * part)
        found = inputs * slopes / _STEPS
        usual = self.predict(matrix) - found.sum(axis=1)
        return np.column_stack([found, usual])

    def _slopes(self, inputs: FloatArray) -> FloatArray:
        """Of the log ratio along each input, at ``inputs`` [n, D]."""
        layers = self._arrays
        passed, gone_on = inputs, []
        for weights, offsets in layers[:-1]:
            sums = passed @ weights + offsets
            gone_on.append(sums > 0.0)
            passed = np.maximum(sums, 0.0)
        slope = np.broadcast_to(layers[-1][0][:, 0], passed.shape)
        for (weights, _), on in zip(reversed(layers[:-1]), reversed(gone_on), strict=True):
            slope = (slope * on) @ weights.T
        return slope

    def _deviations(self, matrix: FloatArray) -> FloatArray:
        centre, scale = self._seen
        return (matrix - centre) * scale

    @cached_property
    def _seen(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.centre), np.array(self.scale)

    @cached_property
    def _ticks(self) -> list[tuple[FloatArray, FloatArray]]:
        """Of each layer the weights, [inputs, sums], and what is added, in ticks of a product."""
        return [
            (
                np.array(layer.weights, dtype=np.float64).T.copy(),
                np.array(layer.offsets, dtype=np.float64) * (1 << PASSED.bits),
            )
            for layer in self.layers
        ]

    @cached_property
    def _arrays(self) -> list[tuple[FloatArray, FloatArray]]:
        """The same as numbers."""
        both = WEIGHTS.tick * PASSED.tick
        return [(weights * WEIGHTS.tick, added * both) for weights, added in self._ticks]


class Networks(msgspec.Struct, frozen=True):
    """Networks from different first weights, and how much of their mean is taken beside trees."""

    members: tuple[Network, ...]
    #: From 0 to 1; the rest is the trees'.
    share: float = 1.0

    def ratio(self, matrix: FloatArray) -> FloatArray:
        """Mean of the members' log ratios, shape [n], of rows [n, D]."""
        return np.asarray(np.mean([one.predict(matrix) for one in self.members], axis=0))

    def contributions(self, matrix: FloatArray) -> FloatArray:
        """Mean of the members' :meth:`Network.contributions`, shape [n, D + 1]."""
        return np.asarray(np.mean([one.contributions(matrix) for one in self.members], axis=0))

    def beside(self, trees: FloatArray, own: FloatArray) -> FloatArray:
        """What ``trees`` say and what these say of their ``own``, of any shape, together."""
        return (1.0 - self.share) * trees + self.share * own
