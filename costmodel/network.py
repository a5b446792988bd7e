"""A small network beside the trees, in numbers on which every processor agrees.

Trees are flat between their thresholds. What a kernel takes mostly rises and falls steadily with
what it does, and of families that nobody has measured such a guess is the better one. The network
is a plain one: sums, of which what is below nought is cut off, layer upon layer (Rosenblatt 1958;
Nair and Hinton 2010). Some give the log ratio themselves; others a factor for each of the parts
that the roofline is made of, which then come together as roots of sums of squares do: parts that
overlap in part.

Each input, weight and sum that is passed on is a multiple of a power of two, and bounded, so that
every sum of products is exact in 64-bit floats, and mostly in 32-bit ones, which take half as long:
in whatever order and with whatever instructions a library of linear algebra adds, the result has
the same bits. Predicts only; ``network_fit`` fits.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.settled import settled


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
        return self.whole(values * float(1 << self.bits))

    def whole(self, ticks: FloatArray) -> FloatArray:
        """``ticks`` themselves, rounded to whole numbers between the ends."""
        np.rint(ticks, out=ticks)
        return np.clip(ticks, *self.ends, out=ticks)

    @property
    def tick(self) -> float:
        """From one to the next."""
        return 1.0 / (1 << self.bits)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest, in ticks."""
        most = self.most * (1 << self.bits)
        return -most, most


#: What is put in, in standard deviations; what layers pass on; and weights. A product has 9 + 12
#: bits at most, a 64-bit float 53. Weights of which several count are small: then 24 bits will do.
INPUTS: Final = Grid(7, 4.0)
PASSED: Final = Grid(6, 8.0)
WEIGHTS: Final = Grid(10, 4.0)
#: Whole numbers up to this, and no larger ones, are all 32-bit floats.
_SINGLE: Final = float(1 << 24)
#: Added to deviations, so that columns that are all but constant do not fill the grid.
_LEAST_DEVIATION: Final = 1e-3
#: Of a part over the largest: finer is nothing, and sums of such are exact.
_SHARES: Final = Grid(16, 1.0)
#: Points between the usual kernel and the one at hand at which slopes are taken.
_STEPS: Final = 64


def parts_of(matrix: FloatArray, count: int) -> FloatArray:
    """Logs [n, S] of so many parts, which are the last columns of rows [n, D]."""
    return matrix[:, matrix.shape[1] - count :]


def together(sums: FloatArray, parts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Log ratios [n] of the last sums of a network, [n, 1 + S], and the slopes along these.

    Args:
        sums: the first is added to the log; the others are logs of factors of parts.
        parts: logs of these, [n, S]; without any the ratio is the sum.
    """
    if not parts.shape[1]:
        return sums[:, 0], np.ones_like(sums)
    logs = 2.0 * (sums[:, 1:] + parts)
    largest = logs.max(axis=1)
    shares = _SHARES.nearest(np.exp(logs - largest[:, None]))
    whole = shares.sum(axis=1)
    ratio = sums[:, 0] + (largest + settled(np.log(whole))) / 2.0
    return ratio, np.column_stack([np.ones(len(sums)), shares / whole[:, None]])


class Layer(msgspec.Struct, frozen=True, array_like=True):
    """Sums of what comes in, each with weights of its own, in ticks of :data:`WEIGHTS`."""

    #: By sum, a weight for each number that comes in.
    weights: tuple[tuple[int, ...], ...]
    #: Added to each sum.
    offsets: tuple[int, ...]


class _Sums(NamedTuple):
    """A layer, of 32 bits where no sum needs more. Sums are counted in ticks of :data:`PASSED`.

    Their own ticks are finer by a power of two, which takes no bits of a float.
    """

    #: [inputs, sums].
    weights: npt.NDArray[Any]
    offsets: npt.NDArray[Any]

    @classmethod
    def of(cls, layer: Layer, comes_in: Grid, *, signed: bool) -> _Sums:
        """``layer``, into which ticks of a grid come; none below nought where not ``signed``."""
        weights = np.array(layer.weights, dtype=np.float64).T
        offsets = np.array(layer.offsets, dtype=np.float64) * (1 << comes_in.bits)
        above, below = np.maximum(weights, 0.0).sum(axis=0), np.maximum(-weights, 0.0).sum(axis=0)
        # Whatever is added first: what lies between all of one sign and all of the other.
        furthest = above + below if signed else np.maximum(above, below)
        largest = furthest * comes_in.ends[1] + np.abs(offsets)
        kind = np.float32 if (largest <= _SINGLE).all() else np.float64
        tick = comes_in.tick * WEIGHTS.tick / PASSED.tick
        return cls(np.ascontiguousarray(weights * tick, dtype=kind), (offsets * tick).astype(kind))

    def __call__(self, passed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sums: npt.NDArray[Any] = passed.astype(self.weights.dtype, copy=False) @ self.weights
        sums += self.offsets
        return sums


class Scaling(msgspec.Struct, frozen=True, dict=True):
    """How columns are brought to one scale: standard deviations from the mean kernel."""

    #: Of each column, what is subtracted, and what is then multiplied by.
    centre: tuple[float, ...]
    scale: tuple[float, ...]

    @classmethod
    def of(cls, matrix: FloatArray) -> Scaling:
        """That of rows [n, D] to be trained on."""
        scale = 1.0 / (matrix.std(axis=0) + _LEAST_DEVIATION)
        return cls(tuple(settled(matrix.mean(axis=0)).tolist()), tuple(settled(scale).tolist()))

    def inputs(self, matrix: FloatArray) -> FloatArray:
        """Rows [n, D] as networks see them: multiples of :data:`INPUTS`, counted."""
        centre, scale = self._arrays
        inputs = matrix - centre
        inputs *= scale
        return INPUTS.whole(inputs)

    @cached_property
    def _arrays(self) -> tuple[FloatArray, FloatArray]:
        """What is subtracted, and what then makes it ticks of the grid."""
        return np.array(self.centre), np.array(self.scale) / INPUTS.tick


class Network(msgspec.Struct, frozen=True, dict=True):
    """Layers, the last of which gives what :func:`together` takes.

    The last columns that a network sees are the logs of the parts that it has factors of.
    """

    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        """Refuse layers that do not fit upon each other.

        Raises:
            ValueError: which do not.
        """
        widths = [len(layer.offsets) for layer in self.layers]
        inputs = [{len(row) for row in layer.weights} for layer in self.layers]
        sums = [len(layer.weights) for layer in self.layers]
        if (
            sums != widths
            or not widths
            or not 0 < widths[-1] <= 1 + self.columns
            or any(len(each) != 1 for each in inputs)
            or any(each != {width} for width, each in zip(widths, inputs[1:], strict=False))
        ):
            raise ValueError(f"a network whose layers do not fit upon each other: {widths}")

    @property
    def columns(self) -> int:
        """Columns that it sees."""
        return len(self.layers[0].weights[0])

    @property
    def parts(self) -> int:
        """How many parts it has factors of."""
        return len(self.layers[-1].offsets) - 1

    def predict(self, inputs: npt.NDArray[Any], parts: FloatArray) -> FloatArray:
        """Log ratios, shape [n].

        Args:
            inputs: rows [n, D] as :meth:`Scaling.inputs` gives them.
            parts: logs [n, S] of the parts that it has factors of, as they are.
        """
        # In ticks, which saves going to and fro.
        *layers, last = self._ticks
        passed = inputs
        for sums_of in layers:
            sums = sums_of(passed)
            passed = np.rint(np.clip(sums, 0.0, PASSED.ends[1], out=sums), out=sums)
        return together(last(passed).astype(np.float64) * PASSED.tick, parts)[0]

    def contributions(self, inputs: FloatArray, parts: FloatArray, usual: FloatArray) -> FloatArray:
        """What each column adds to the log ratio, shape [n, D + 1], the usual kernel's ratio last.

        Slopes along the straight line from the mean of all kernels trained on to the row, times the
        way gone (integrated gradients, Sundararajan et al. 2017). What the steps leave over, and
        what rounding does, stands with the usual kernel, so that rows add up.

        Args:
            inputs: rows [n, D], as :meth:`predict` takes them.
            parts: so, too.
            usual: parts [S] of the mean kernel.
        """
        told = inputs * INPUTS.tick
        middles = (np.arange(_STEPS) + 0.5) / _STEPS
        slopes, of_parts = np.zeros_like(told), np.zeros_like(parts)
        for middle in middles:
            along, weighed = self._slopes(told * middle, usual + (parts - usual) * middle)
            slopes += along
            of_parts += weighed
        found = told * slopes / _STEPS
        found[:, found.shape[1] - self.parts :] += (parts - usual) * of_parts / _STEPS
        rest = self.predict(inputs, parts) - found.sum(axis=1)
        return np.column_stack([found, rest])

    def _slopes(self, told: FloatArray, parts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of the log ratio along each input, at ``told`` [n, D], and along each of ``parts``."""
        layers = self._arrays
        passed, gone_on = told, []
        for weights, offsets in layers[:-1]:
            sums = passed @ weights + offsets
            gone_on.append(sums > 0.0)
            passed = np.maximum(sums, 0.0)
        last, shift = layers[-1]
        _, weighed = together(passed @ last + shift, parts)
        slope = weighed @ last.T
        for (weights, _), on in zip(reversed(layers[:-1]), reversed(gone_on), strict=True):
            slope = (slope * on) @ weights.T
        return slope, weighed[:, 1:]

    @cached_property
    def _ticks(self) -> list[_Sums]:
        first, *others = self.layers
        inner = (_Sums.of(layer, PASSED, signed=False) for layer in others)
        return [_Sums.of(first, INPUTS, signed=True), *inner]

    @cached_property
    def _arrays(self) -> list[tuple[FloatArray, FloatArray]]:
        """Weights, [inputs, sums], and what is added, as numbers."""
        return [
            (
                np.array(layer.weights, dtype=np.float64).T * WEIGHTS.tick,
                np.array(layer.offsets, dtype=np.float64) * WEIGHTS.tick,
            )
            for layer in self.layers
        ]


class Networks(msgspec.Struct, frozen=True):
    """Networks from different first weights, and how much of their mean is taken beside trees."""

    scaling: Scaling
    members: tuple[Network, ...]
    #: From 0 to 1; the rest is the trees'.
    share: float = 1.0

    def __post_init__(self) -> None:
        """Refuse members that see other columns.

        Raises:
            ValueError: which do, or there is none.
        """
        columns = {one.columns for one in self.members}
        seen = {len(self.scaling.centre), len(self.scaling.scale)}
        if columns != seen or len(seen) != 1:
            raise ValueError(f"networks of {columns or 'no'} columns, scaled are {seen}")

    def ratio(self, matrix: FloatArray) -> FloatArray:
        """Mean of the members' log ratios, shape [n], of rows [n, D]."""
        # Whole numbers this small are so in 32 bits, too: once for all members.
        inputs = self.scaling.inputs(matrix).astype(np.float32)
        found = [one.predict(inputs, parts_of(matrix, one.parts)) for one in self.members]
        return np.asarray(np.mean(found, axis=0))

    def contributions(self, matrix: FloatArray) -> FloatArray:
        """Mean of the members' :meth:`Network.contributions`, shape [n, D + 1]."""
        inputs = self.scaling.inputs(matrix)
        centre = np.array(self.scaling.centre)[None]
        found = [
            one.contributions(inputs, parts_of(matrix, one.parts), parts_of(centre, one.parts)[0])
            for one in self.members
        ]
        return np.asarray(np.mean(found, axis=0))

    def beside(self, trees: FloatArray, own: FloatArray) -> FloatArray:
        """What ``trees`` say and what these say of their ``own``, of any shape, together."""
        return mixed(trees, own, self.share)


def mixed(trees: FloatArray, networks: FloatArray, share: float) -> FloatArray:
    """What both say, of any shape, with so great a share of the networks."""
    return (1.0 - share) * trees + share * networks
