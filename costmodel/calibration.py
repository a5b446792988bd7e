"""How far to trust a trained model: conformal widths of its intervals, and of the roofline's.

Made once from errors on kernels whose family the trees did not see; saved with the trees. It never
changes a median that the learned model gives.

Families are taken to be exchangeable, kernels within one are not: near copies of each other err
alike (Dunn, Wasserman, Ramdas 2023, "Distribution-free prediction sets for two-layer hierarchical
models"). So errors are only taken from families that were not seen, and n kernels of one count as
much as the root of n families. Families that a number tells apart are draws of one grammar, which
counts as one: however many were drawn, they say nothing of families of other kinds.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.familiar import DEVICE_MARGIN
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.roofline import INTERVAL_FACTOR

Labels = npt.NDArray[Any]

#: Kernels that each range of times should have, for a 90 % quantile that means something.
_ROWS_A_BIN: Final = 60
_MOST_BINS: Final = 6
#: Labels that a device should have been seen on, for intervals of its own width.
_LABELS_A_DEVICE: Final = 10
#: Kernels of a kind that are enough to ask how the roofline does on it.
_ROWS_A_KIND: Final = 20
#: What tells draws of one grammar apart.
_DRAW: Final = re.compile(r"_\d+$")
#: Least difficulty: what two measurements of one kernel differ by.
_LEAST_DIFFICULTY: Final = 0.02


class Calibration(msgspec.Struct, frozen=True, eq=False):
    """Widths are half widths of the log of time; ranges of times are over the log roofline."""

    #: Inner edges between the b ranges of times, length b - 1.
    edges: tuple[float, ...]
    #: Half width of the learned model's interval over the difficulty of the kernel, in each range.
    scale: tuple[float, ...]
    #: What tells each device that was measured, d of them, and how many times as wide intervals are
    #: on it as the scale says: times are noisier on some, and what was learned fits some better.
    devices: tuple[tuple[float, ...], ...]
    device_scale: tuple[float, ...]
    #: Whether trees do better than the roofline in each range.
    trusted: tuple[bool, ...]
    #: Median of log(measured / roofline) in each range.
    roofline_shift: tuple[float, ...]
    #: Half width of the interval of the roofline times that factor.
    roofline_width: tuple[float, ...]
    #: Least half width of it for kernels unlike those trained on: from kinds of kernels left out.
    strange_width: float
    confidence: float

    def encode(self) -> bytes:
        """Canonical text."""
        return msgspec.json.encode(self)

    def bins(self, log_base: FloatArray) -> npt.NDArray[np.intp]:
        """Range of times of each row, shape [n], from the log of the roofline in microseconds."""
        return np.searchsorted(np.array(self.edges), log_base)

    def learned_width(
        self, log_base: FloatArray, difficulty: FloatArray, device: FloatArray
    ) -> FloatArray:
        """Half widths of the learned model's intervals, shape [n].

        ``device`` [n, c] are the columns that tell on what each row runs.
        """
        scale = np.array(self.scale)[self.bins(log_base)] * self._scale_of(device)
        width: FloatArray = scale * np.maximum(difficulty, _LEAST_DIFFICULTY)
        return width

    def _scale_of(self, device: FloatArray) -> FloatArray:
        """Of the nearest device, shape [n]; as for all together where none is near."""
        away = np.abs(device[:, None] - np.array(self.devices)).max(axis=2)
        nearest = away.argmin(axis=1)
        near = away.min(axis=1) <= DEVICE_MARGIN
        return np.where(near, np.array(self.device_scale)[nearest], 1.0)


def calibrate(
    *,
    log_base: FloatArray,
    log_ratio: FloatArray,
    learned_error: FloatArray,
    difficulty: FloatArray,
    labels: Labels,
    kinds: npt.NDArray[np.int64],
    devices: FloatArray,
    confidence: float,
) -> Calibration:
    """Calibration from n kernels, each predicted by trees that saw nothing of its label.

    Args:
        log_base: [n], log of the roofline time.
        log_ratio: [n], log of measured over roofline time.
        learned_error: [n], error of the learned log ratio.
        difficulty: [n], the absolute error that was expected, by other labels.
        labels: [n], family or graph.
        kinds: [n], kind of each kernel, as of ``fusewise.costmodel.familiar``.
        devices: [n, c], the columns that tell on what each was measured.
        confidence: part of measured times that intervals should hold.
    """
    count = int(np.clip(len(log_base) // _ROWS_A_BIN, 1, _MOST_BINS))
    edges = np.unique(np.quantile(log_base, np.arange(1, count) / count))
    labels = np.array([_DRAW.sub("", str(label)) for label in labels], dtype=object)
    at = np.searchsorted(edges, log_base)
    scores = np.abs(learned_error) / np.maximum(difficulty, _LEAST_DIFFICULTY)
    scale, trusted, shift, roofline = [], [], [], []
    for b in range(len(edges) + 1):
        # Equal roofline times can leave a range empty; it then borrows all rows.
        rows = at == b if (at == b).any() else np.ones(len(at), dtype=bool)
        middle = float(np.median(log_ratio[rows]))
        width = grouped_quantile(np.abs(log_ratio[rows] - middle), labels[rows], confidence)
        scale.append(grouped_quantile(scores[rows], labels[rows], confidence))
        # By the mean: of two that err alike as a rule, the tail of a few kernels must not decide.
        learned = float(np.abs(learned_error[rows]).mean())
        trusted.append(learned <= float(np.abs(log_ratio[rows] - middle).mean()))
        shift.append(middle)
        roofline.append(width)
    found, on = np.unique(devices, axis=0, return_inverse=True)
    of_all = np.array(scale)[at]
    relative = np.divide(scores, of_all, out=np.ones_like(scores), where=of_all > 0.0)
    return Calibration(
        edges=tuple(edges.tolist()),
        scale=tuple(scale),
        devices=tuple(map(tuple, found.tolist())),
        device_scale=tuple(
            _device_scale(relative[on == d], labels[on == d], confidence) for d in range(len(found))
        ),
        trusted=tuple(trusted),
        roofline_shift=tuple(shift),
        roofline_width=tuple(roofline),
        strange_width=_strange_width(log_ratio, at, kinds, confidence),
        confidence=confidence,
    )


def _device_scale(scores: FloatArray, labels: Labels, confidence: float) -> float:
    """What scores [n] of one device stay below, over what those of all do; 1 where few tell."""
    few = len(scores) < _ROWS_A_BIN or len(np.unique(labels.astype(str))) < _LABELS_A_DEVICE
    return 1.0 if few else grouped_quantile(scores, labels, confidence)


def grouped_quantile(scores: FloatArray, labels: Labels, confidence: float) -> float:
    """What a score of a label not seen stays below with that confidence, if labels exchange.

    The quantile of scores [n], those of one label weighing together the root of their number:
    between kernels that are all alike, of which one says it all, and kernels that are not. Where
    there are as many labels as scores, this is split conformal (Lei et al. 2018, eq. 6). Else
    nothing is added for the number of labels being finite: that the model which is kept saw more
    of them than the ones that erred does as much.
    """
    _, at, counts = np.unique(
        np.asarray(labels, dtype=str), return_inverse=True, return_counts=True
    )
    single = len(counts) == len(scores)
    level = confidence * (len(counts) + 1) / len(counts) if single else confidence
    order = np.argsort(scores, kind="stable")
    weight = np.cumsum(1.0 / np.sqrt(counts[at[order]]))
    # Rounding must not ask for one score more than the rank says.
    rank = int(np.searchsorted(weight, level * weight[-1] * (1.0 - 1e-12)))
    return float(scores[order[min(rank, len(scores) - 1)]])


def _strange_width(
    log_ratio: FloatArray,
    at: npt.NDArray[np.intp],
    kinds: npt.NDArray[np.int64],
    confidence: float,
) -> float:
    """Half width of the roofline for a kind of kernels that nothing was learned of.

    Each kind in turn gets the shift of all others; kinds are what is exchanged.
    """
    errors, labels = [], []
    for kind in np.unique(kinds).tolist():
        mine = kinds == kind
        if np.count_nonzero(mine) < _ROWS_A_KIND or mine.all():
            continue
        error = np.empty(len(log_ratio))
        for b in np.unique(at[mine]).tolist():
            others = ~mine & (at == b)
            others = others if others.any() else ~mine
            error[at == b] = log_ratio[at == b] - np.median(log_ratio[others])
        errors.append(np.abs(error[mine]))
        labels.append(np.full(len(errors[-1]), kind))
    if len(errors) < 2:  # noqa: PLR2004 - of one kind nothing is known of others
        return float(np.log(INTERVAL_FACTOR))
    # Kinds are few, so that their number counts: as much more is asked for, half of what is left.
    level = min(confidence * (len(errors) + 1) / len(errors), (1.0 + confidence) / 2.0)
    return grouped_quantile(np.concatenate(errors), np.concatenate(labels), level)
