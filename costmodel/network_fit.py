"""Fits a :class:`~fusewise.costmodel.network.Network`, to the same bits on every processor.

Steps of Adam with decoupled weight decay (Loshchilov and Hutter 2019) on parts of the rows, at a
rate that rises and falls in straight lines (Smith 2018), with some of what layers pass on left
out at random (Srivastava et al. 2014). Weights are kept in full and used on their grid, and
slopes have a grid too, so all sums are exact; all else is done number by number, in operations that
IEEE 754 rounds alike everywhere. Only the exponential of an error is not, and is rounded itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.network import (
    INPUTS,
    PASSED,
    WEIGHTS,
    Grid,
    Layer,
    Network,
    together,
)

#: Slopes of the loss: summed over 512 rows, with what is passed on, they have 23 + 9 + 9 bits.
_SLOPES: Final = Grid(20, 8.0)
#: Layers but the last, and the fewest sums of each.
_LAYERS: Final = 3
_LEAST_WIDTH: Final = 16
#: Rows of a step: a part of all of them, that small data gets as many steps for each row, at most.
_ROWS_OF_A_STEP: Final = (16, 512)
_STEPS_AT_LEAST: Final = 8
#: The highest rate, which is reached after this part of the steps; and what weights lose for each
#: unit of it.
_RATE: Final = 4e-3
_RISE: Final = 0.3
_DECAY: Final = 0.05
#: What is left out is so many of as many as this.
_DRAWN_OF: Final = 256
#: Adam's: how much of the last mean slope and mean square is kept, and what bounds a step.
_KEPT_SLOPE, _KEPT_SQUARE, _LEAST_ROOT = 0.9, 0.999, 1e-8

#: Slope of the loss along each ratio [n] that was guessed for a target [n].
Slope = Callable[[FloatArray, FloatArray], FloatArray]
Rows = npt.NDArray[np.intp]


def fit_network(
    inputs: FloatArray,
    parts: FloatArray,
    target: FloatArray,
    slope: Slope,
    *,
    epochs: int,
    width: int,
    dropout: float,
    seed: tuple[int, ...],
) -> Network:
    """A network that guesses ``target`` [n] from ``inputs`` [n, D].

    Args:
        inputs: what it sees, as ``Scaling.inputs`` gives it.
        parts: logs [n, S] of what it shall have factors of, none of these for one that guesses
            the target itself.
        target: what it shall guess, finite; within a few units of nought.
        slope: of the loss.
        epochs: times that it goes through the rows.
        width: sums of each layer but the last. There are no more than the root of n, or than 16
            where that is less.
        dropout: part of what layers pass on that is left out of a step, from 0 to less than 1, in
            whole parts of 256.
        seed: of the first weights, the order of the rows and what is left out.
    """
    inputs = inputs * INPUTS.tick
    chance = np.random.default_rng(seed)
    width = min(max(math.isqrt(len(inputs)), _LEAST_WIDTH), width)
    # Rounded up it could be all of them, for which nothing makes up.
    left_out = math.floor(dropout * _DRAWN_OF)
    fitting = _Fitting.start(inputs.shape[1], width, 1 + parts.shape[1], left_out, chance)
    rows = _rows_of_a_step(len(inputs))
    steps = epochs * (len(inputs) // rows)
    done = 0
    for _ in range(epochs):
        for part in _parts(chance.permutation(len(inputs)), rows):
            done += 1
            slopes = fitting.slopes(inputs[part], parts[part], target[part], slope, chance)
            fitting.step(slopes, _rate(done / steps))
    layers = tuple(
        Layer(_ticks(weights.T), _ticks(offsets[None])[0])
        for weights, offsets in zip(fitting.weights, fitting.offsets, strict=True)
    )
    return Network(layers)


@dataclass
class _Fitting:
    """Weights [inputs, sums] and offsets [sums] of each layer while they are fitted."""

    weights: list[FloatArray]
    offsets: list[FloatArray]
    #: Adam's mean slopes and mean squares, of the weights and then of the offsets.
    means: list[FloatArray]
    squares: list[FloatArray]
    #: Of what layers pass on, so many of ``_DRAWN_OF``; the others make up for them.
    left_out: int
    #: What the means' start at nought still takes from them.
    slope_left: float = 1.0
    square_left: float = 1.0

    @classmethod
    def start(
        cls, inputs: int, width: int, last: int, left_out: int, chance: np.random.Generator
    ) -> _Fitting:
        """Weights drawn evenly, the less the more of them there are in a sum."""
        weights: list[FloatArray] = []
        offsets: list[FloatArray] = []
        for at, sums in enumerate((*[width] * _LAYERS, last)):
            most = float(np.sqrt(1.0 / inputs))
            weights.append(chance.uniform(-most, most, (inputs, sums)))
            offsets.append(chance.uniform(-most, most, sums) if at < _LAYERS else np.zeros(sums))
            inputs = sums
        every = [*weights, *offsets]
        nought = [np.zeros_like(one) for one in every]
        return cls(weights, offsets, nought, [one.copy() for one in nought], left_out)

    def slopes(
        self,
        inputs: FloatArray,
        parts: FloatArray,
        target: FloatArray,
        slope: Slope,
        chance: np.random.Generator,
    ) -> list[FloatArray]:
        """Mean slope of the loss along each weight and then each offset, over rows [n, D]."""
        weights = [WEIGHTS.nearest(one) for one in self.weights]
        offsets = [WEIGHTS.nearest(one) for one in self.offsets]
        passed, kept = [inputs], []
        for inner, shift in zip(weights[:-1], offsets[:-1], strict=True):
            sums = passed[-1] @ inner + shift
            factor = self._kept(sums, chance)
            kept.append(factor)
            passed.append(PASSED.nearest(sums * factor))
        guess, weighed = together(passed[-1] @ weights[-1] + offsets[-1], parts)
        back = _SLOPES.nearest(slope(guess, target)[:, None] * weighed)
        of_weights, of_offsets = [], []
        for at in reversed(range(len(weights))):
            of_weights.append(passed[at].T @ back / len(inputs))
            of_offsets.append(back.sum(axis=0) / len(inputs))
            if at:
                back = _SLOPES.nearest(back @ weights[at].T * kept[at - 1])
        return [*reversed(of_weights), *reversed(of_offsets)]

    def _kept(self, sums: FloatArray, chance: np.random.Generator) -> FloatArray:
        """What ``sums`` of any shape are multiplied by: nought, or what makes up for those."""
        kept = sums > 0.0
        if self.left_out:
            kept &= chance.integers(0, _DRAWN_OF, sums.shape, dtype=np.uint8) >= self.left_out
        return np.where(kept, _DRAWN_OF / (_DRAWN_OF - self.left_out), 0.0)

    def step(self, slopes: list[FloatArray], rate: float) -> None:
        """Move all weights and offsets."""
        self.slope_left *= _KEPT_SLOPE
        self.square_left *= _KEPT_SQUARE
        every = [*self.weights, *self.offsets]
        for values, mean, square, slope in zip(
            every, self.means, self.squares, slopes, strict=True
        ):
            np.multiply(mean, _KEPT_SLOPE, out=mean)
            np.add(mean, (1.0 - _KEPT_SLOPE) * slope, out=mean)
            np.multiply(square, _KEPT_SQUARE, out=square)
            np.add(square, (1.0 - _KEPT_SQUARE) * (slope * slope), out=square)
            root = np.sqrt(square / (1.0 - self.square_left)) + _LEAST_ROOT
            np.multiply(values, 1.0 - rate * _DECAY, out=values)
            np.subtract(values, rate * (mean / (1.0 - self.slope_left) / root), out=values)


def _rows_of_a_step(rows: int) -> int:
    """So many that there are some steps even for few rows, and at most what sums can hold."""
    least, most = _ROWS_OF_A_STEP
    return min(max(rows // _STEPS_AT_LEAST, least), most, rows)


def _parts(order: Rows, rows: int) -> Iterator[Rows]:
    """Of so many rows each; the few that are left over have their turn in another epoch."""
    for start in range(0, len(order) - rows + 1, rows):
        yield order[start : start + rows]


def _rate(done: float) -> float:
    """Rate after this part of the steps."""
    return _RATE * (done / _RISE if done < _RISE else (1.0 - done) / (1.0 - _RISE))


def _ticks(values: FloatArray) -> tuple[tuple[int, ...], ...]:
    """Rows [n, m] in ticks of the weights' grid."""
    return tuple(tuple(map(int, row)) for row in WEIGHTS.ticks(values).tolist())
