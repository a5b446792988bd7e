"""Correcting a cost model on one graph by what was measured of that graph.

A program's measured time says something about each of its kernels, and so about every other plan
that shares them or has others like them. What a kernel really takes is held to be its predicted
time plus an error, normally distributed: as wide as the model's own interval says, shared in part
by all kernels (a device that is slower than the model thinks), in part by those with similar
features, in part by none. Given the measured programs, sums of such kernels, the errors have a
posterior in closed form (Gaussian process regression on sums; Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, section 2.2).

Measures nothing and trains nothing: the model beneath stays as it is.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np

from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.costmodel.interface import CostModel, FloatArray, Prediction

#: Variance of a kernel's error over that which its interval says: what kernels with like features
#: share, what is its own, and what all of a graph share. The last is a device that is slower or
#: faster than the model thinks; it would else be put down to the kernels that were measured first.
_ALIKE: Final = 0.5
_OWN: Final = 0.2
_SHARED: Final = 1.0
#: Relative standard deviation of a measured median at the least, of what a graph takes beyond the
#: sum of its kernels, and of kernels that are predicted without a model of their own (extern ones).
_NOISE, _BEYOND, _REST = 0.01, 0.05, 0.5
#: Relative standard deviation of what a choice changes that no feature tells.
_MARK: Final = 0.05
#: A corrected time is within this factor of the predicted one.
_MOST: Final = 4.0
#: Standard deviations that half a 90 % interval is.
_HALF_90: Final = 1.6449


@dataclass(frozen=True)
class Parts:
    """A program as the model sees it."""

    #: Shape [n, F]: features of its generated kernels, one row for each.
    rows: FloatArray
    #: Predicted microseconds of all else, such as extern kernels.
    rest_us: float
    #: What else its time may depend on and no feature tells, such as a codegen choice.
    marks: tuple[str, ...] = ()


class Measured(NamedTuple):
    """A program that was measured."""

    parts: Parts
    #: Median time in microseconds.
    us: float
    #: Relative standard deviation of that median.
    noise: float = _NOISE


class _Lesson(msgspec.Struct, frozen=True, omit_defaults=True):
    """A measured program as it is kept between the sittings of a search."""

    #: Rows of doubles, compressed, and the version of the features that they are.
    rows: bytes
    version: int
    rest_us: float
    us: float
    noise: float
    marks: tuple[str, ...] = ()


def written(measured: Iterable[Measured]) -> str:
    """Measured programs as text, to be :func:`read` again."""
    lessons = [
        _Lesson(
            zlib.compress(np.ascontiguousarray(parts.rows, dtype=np.float64).tobytes()),
            FEATURES_VERSION,
            parts.rest_us,
            us,
            noise,
            parts.marks,
        )
        for parts, us, noise in measured
    ]
    return msgspec.json.encode(lessons).decode()


def read(text: str) -> list[Measured]:
    """What :func:`written` wrote; programs described by features of another version are left out.

    Raises:
        msgspec.DecodeError: the text is something else.
    """
    return [
        Measured(
            Parts(
                np.frombuffer(zlib.decompress(lesson.rows)).reshape(-1, len(FEATURES)),
                lesson.rest_us,
                lesson.marks,
            ),
            lesson.us,
            lesson.noise,
        )
        for lesson in msgspec.json.decode(text, type=list[_Lesson])
        if lesson.version == FEATURES_VERSION
    ]


class Feedback:
    """What was measured of one graph, and what it says of programs not measured."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        #: Distinct rows that were measured, with their predicted times and errors, by their bytes.
        self._index: dict[bytes, int] = {}
        self._rows: list[FloatArray] = []
        self._us: list[float] = []
        self._sigma: list[float] = []
        self._marks: list[str] = []
        #: Programs with how often each row occurs in them, and with what the model leaves over.
        self._seen: list[tuple[Measured, dict[int, float], float]] = []
        self._solved: _Solved | None = None

    @property
    def count(self) -> int:
        """Programs measured so far."""
        return len(self._seen)

    def observe(self, parts: Parts, us: float, noise: float = _NOISE) -> None:
        """Take in that a program takes ``us`` microseconds, give or take ``noise``, relative."""
        predicted = self._model.predict(parts.rows) if len(parts.rows) else None
        counts: dict[int, float] = {}
        total = parts.rest_us
        for at, row in enumerate(parts.rows):
            assert predicted is not None
            key = row.tobytes()
            if key not in self._index:
                self._index[key] = len(self._rows)
                self._rows.append(row)
                self._us.append(float(predicted.us[at]))
                self._sigma.append(_sigma(predicted, at))
            index = self._index[key]
            counts[index] = counts.get(index, 0.0) + 1.0
            total += self._us[index]
        self._marks += [mark for mark in parts.marks if mark not in self._marks]
        self._seen.append((Measured(parts, us, max(noise, _NOISE)), counts, us - total))
        self._solved = None

    def corrected(self) -> CostModel:
        """The model as what was measured so far corrects it; itself where nothing was."""
        return CorrectedModel(self._model, self._solution()) if self._seen else self._model

    def plain_us(self, parts: Parts) -> float:
        """Microseconds of a program as the model alone has it."""
        kernels = self._model.predict(parts.rows).us.sum() if len(parts.rows) else 0.0
        return float(kernels) + parts.rest_us

    def beyond_us(self, marks: tuple[str, ...] = ()) -> float:
        """Microseconds beyond the corrected kernels: what is launched around them, and marks."""
        if not self._seen:
            return 0.0
        solved = self._solution()
        return solved.beyond_us + sum(solved.mark_us.get(mark, 0.0) for mark in marks)

    def difference(self, parts: Parts, other: Parts) -> tuple[float, float]:
        """By how much one program takes longer than another, in microseconds.

        Something has to have been measured.

        Returns:
            The expectation and its standard deviation.
        """
        return self._solution().difference(self._model, parts, other)

    def _solution(self) -> _Solved:
        if self._solved is None:
            seen, n = self._seen, len(self._rows)
            marks = {mark: n + i for i, mark in enumerate(self._marks)}
            sums = np.zeros((len(seen), n + len(marks)))
            for at, (one, counts, _) in enumerate(seen):
                sums[at, list(counts)] = list(counts.values())
                sums[at, [marks[mark] for mark in one.parts.marks]] = 1.0
            self._solved = _Solved(
                rows=np.array(self._rows).reshape(n, seen[0][0].parts.rows.shape[1]),
                errors=np.array(self._us) * np.array(self._sigma),
                marks=tuple(self._marks),
                sums=sums,
                times=np.array([one.us for one, _, _ in seen]),
                noise=np.array([one.noise for one, _, _ in seen]),
                left=np.array([left for _, _, left in seen]),
                rest=np.array([one.parts.rest_us for one, _, _ in seen]),
            )
        return self._solved


class _Solved:
    """The posterior of all errors, given some programs."""

    def __init__(
        self,
        *,
        rows: FloatArray,
        errors: FloatArray,
        marks: tuple[str, ...],
        sums: FloatArray,
        times: FloatArray,
        noise: FloatArray,
        left: FloatArray,
        rest: FloatArray,
    ) -> None:
        self._rows, self._errors, self._marks = rows, errors, marks
        varying = rows.std(axis=0) if len(rows) else np.ones(rows.shape[1])
        # A column that is the same in all that was measured counts in its own unit.
        self._scale = np.where(varying > 0, varying, 1.0)
        self._mark_sigma = _MARK * float(times.max())
        n = len(rows)
        prior = np.zeros((sums.shape[1], sums.shape[1]))
        prior[:n, :n] = self._covariance(rows, errors)
        prior[range(n, len(prior)), range(n, len(prior))] = self._mark_sigma**2
        #: What all programs of the graph have in common is one unknown.
        self._common = float((_BEYOND * times.max()) ** 2 + (_REST * rest.max()) ** 2)
        among = sums @ prior @ sums.T + self._common + np.diag((noise * times) ** 2)
        self._inverse = np.linalg.inv(among)
        self._sums, self._prior, self._n = sums, prior, n
        weights = self._inverse @ left
        self.beyond_us = float(self._common * weights.sum())
        #: Shape [distinct rows and marks]: how programs pull at what they are made of.
        self._pull = sums.T @ weights
        self.mark_us = {
            mark: float(self._mark_sigma**2 * self._pull[n + i]) for i, mark in enumerate(marks)
        }
        told = [array.tobytes() for array in (rows, times, noise, sums, left)]
        self.digest = hashlib.sha256(b"".join(told)).hexdigest()[:12]

    def error_us(self, rows: FloatArray, errors: FloatArray) -> FloatArray:
        """Shape [n]: expected error of kernels, in microseconds."""
        if not self._n:
            return np.zeros(len(rows))
        return self._covariance(rows, errors)[:, : self._n] @ self._pull[: self._n]

    def difference(self, model: CostModel, one: Parts, other: Parts) -> tuple[float, float]:
        """See :meth:`Feedback.difference`."""
        rows = np.concatenate([one.rows, other.rows])
        sign = np.array([1.0] * len(one.rows) + [-1.0] * len(other.rows))
        keys = [row.tobytes() for row in rows]
        # Kernels that both have cancel out, and with them what is not known of them.
        net = {
            key: sum(s for k, s in zip(keys, sign, strict=True) if k == key) for key in set(keys)
        }
        kept = [keys.index(key) for key in sorted(net) if net[key]]
        rows, sign = rows[kept], np.array([net[keys[at]] for at in kept])
        mean, variance = one.rest_us - other.rest_us, 0.0
        across = np.zeros(self._sums.shape[1])
        if kept:
            predicted = model.predict(rows)
            errors = predicted.us * np.array([_sigma(predicted, i) for i in range(len(kept))])
            mean += float(sign @ (predicted.us + self.error_us(rows, errors)))
            variance += float(sign @ self._covariance(rows, errors, rows, errors) @ sign)
            across[: self._n] = sign @ self._covariance(rows, errors)
        for mark in {*one.marks} ^ {*other.marks}:
            way = 1.0 if mark in one.marks else -1.0
            variance += self._mark_sigma**2
            if mark in self._marks:
                mean += way * self.mark_us[mark]
                across[self._n + self._marks.index(mark)] += way * self._mark_sigma**2
        known = self._sums @ across
        variance -= float(known @ self._inverse @ known)
        return mean, math.sqrt(max(variance, 0.0))

    def _covariance(
        self,
        rows: FloatArray,
        errors: FloatArray,
        others: FloatArray | None = None,
        other_errors: FloatArray | None = None,
    ) -> FloatArray:
        """Shape [n, m]: of the errors of kernels with those of others, else of the measured."""
        others = self._rows if others is None else others
        other_errors = self._errors if other_errors is None else other_errors
        a, b = rows / self._scale, others / self._scale
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T
        apart = np.maximum(squares, 0.0) / rows.shape[1]
        alike = _SHARED + _ALIKE * np.exp(-apart / 2)
        alike += _OWN * (rows[:, None] == others[None]).all(2)
        return np.asarray(errors[:, None] * other_errors[None] * alike)


class CorrectedModel:
    """A cost model whose times are corrected by what was measured of one graph."""

    def __init__(self, model: CostModel, solved: _Solved) -> None:
        self._model = model
        self._solved = solved

    @property
    def id(self) -> str:
        """See :class:`CostModel`."""
        return f"{self._model.id}+{self._solved.digest}"

    @property
    def name(self) -> str:
        """See :class:`CostModel`."""
        return self._model.name

    @property
    def features_version(self) -> int:
        """See :class:`CostModel`."""
        return self._model.features_version

    def predict(self, features: FloatArray) -> Prediction:
        """See :class:`CostModel`. The interval is moved with the time, and as wide as before."""
        before = self._model.predict(features)
        sigma = np.array([_sigma(before, at) for at in range(len(before))])
        error = self._solved.error_us(features, before.us * sigma)
        factor = np.clip(1 + error / np.maximum(before.us, 1e-9), 1 / _MOST, _MOST)
        return Prediction(
            before.us * factor, before.low_us * factor, before.high_us * factor, before.source
        )


def _sigma(predicted: Prediction, at: int) -> float:
    """Relative standard deviation that an interval stands for."""
    low, high = float(predicted.low_us[at]), float(predicted.high_us[at])
    if not 0 < low < high:
        return _REST
    return min(_REST, math.log(high / low) / 2 / _HALF_90)
