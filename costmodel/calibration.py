"""What is known of a trained model's errors: conformal widths, and the range it was trained on.

Made once from rows that the trees did not see; saved with the trees. It never changes a median
that the learned model gives, it only says how far to trust it.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.feature_table import COLUMN, FEATURES
from fusewise.costmodel.interface import FloatArray

#: Rows that each range of times should have, for a 90 % quantile that means something.
_ROWS_A_BIN: Final = 60
_MOST_BINS: Final = 6
#: Least margin around a training range, in the feature's unit: a factor of two for logs.
_LEAST_MARGIN: Final = {"share": 0.1, "flag": 0.0, "log2": 1.0}
_OTHER_MARGIN: Final = 1.0
#: For device rates, which differ by less from one probe of a device to the next.
_DEVICE_MARGIN: Final = 0.4
_DEVICE: Final = [i for name, i in COLUMN.items() if name == "is_cuda" or name[:7] == "device_"]


class Calibration(msgspec.Struct, frozen=True, eq=False):
    """Widths are half widths of the log of time; ranges of times are over the log roofline."""

    #: Inner edges between the b ranges of times, length b - 1.
    edges: tuple[float, ...]
    #: Half width of the learned model's interval in each range.
    learned_width: tuple[float, ...]
    #: Median of log(measured / roofline) in each range.
    roofline_shift: tuple[float, ...]
    #: Half width of the interval of the roofline times that factor.
    roofline_width: tuple[float, ...]
    #: Range of each feature within which the trees may be asked, length F.
    lowest: tuple[float, ...]
    highest: tuple[float, ...]
    confidence: float

    def encode(self) -> bytes:
        """Canonical text."""
        return msgspec.json.encode(self)

    @property
    def learned(self) -> FloatArray:
        """Half widths of the learned model, shape [b]."""
        return np.array(self.learned_width)

    @property
    def shift(self) -> FloatArray:
        """Log factors of the roofline, shape [b]."""
        return np.array(self.roofline_shift)

    @property
    def roofline(self) -> FloatArray:
        """Half widths of the roofline, shape [b]."""
        return np.array(self.roofline_width)

    def bins(self, log_base: FloatArray) -> npt.NDArray[np.intp]:
        """Range of times of each row, shape [n], from the log of the roofline in microseconds."""
        return np.searchsorted(np.array(self.edges), log_base)

    def inside(self, features: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether all of a row's features lie within their ranges, shape [n]."""
        within = (features >= np.array(self.lowest)) & (features <= np.array(self.highest))
        return np.asarray(within.all(axis=1))

    def known_device(self, features: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether a row is of a device like those trained on, shape [n]."""
        device = features[:, _DEVICE]
        low, high = np.array(self.lowest)[_DEVICE], np.array(self.highest)[_DEVICE]
        return np.asarray(((device >= low) & (device <= high)).all(axis=1))


def calibrate(
    features: FloatArray,
    *,
    log_base: FloatArray,
    learned_error: FloatArray,
    log_ratio: FloatArray,
    confidence: float,
    margin: float,
) -> Calibration:
    """Calibration from held-out rows, and from the ``features`` [n, F] of all rows trained on.

    ``log_base``, ``learned_error`` and ``log_ratio`` [m] are of the held-out rows: the log of the
    roofline time, the error of the learned log ratio, and the log ratio itself.
    """
    count = int(np.clip(len(log_base) // _ROWS_A_BIN, 1, _MOST_BINS))
    edges = np.unique(np.quantile(log_base, np.arange(1, count) / count))
    at = np.searchsorted(edges, log_base)
    learned, shift, roofline = [], [], []
    for b in range(len(edges) + 1):
        # Equal roofline times can leave a range empty; it then borrows all rows.
        rows = at == b if (at == b).any() else np.ones(len(at), dtype=bool)
        middle = float(np.median(log_ratio[rows]))
        learned.append(_conformal_quantile(np.abs(learned_error[rows]), confidence))
        shift.append(middle)
        roofline.append(_conformal_quantile(np.abs(log_ratio[rows] - middle), confidence))
    low, high = features.min(axis=0), features.max(axis=0)
    least = np.array([_LEAST_MARGIN.get(f.unit.split()[0], _OTHER_MARGIN) for f in FEATURES])
    least[_DEVICE] = np.minimum(least[_DEVICE], _DEVICE_MARGIN)
    around = np.maximum(margin * (high - low), least)
    return Calibration(
        edges=tuple(edges.tolist()),
        learned_width=tuple(learned),
        roofline_shift=tuple(shift),
        roofline_width=tuple(roofline),
        lowest=tuple((low - around).tolist()),
        highest=tuple((high + around).tolist()),
        confidence=confidence,
    )


def _conformal_quantile(errors: FloatArray, confidence: float) -> float:
    """The ceil((n + 1) confidence)-th smallest error (Lei et al. 2018, eq. 6), n at most."""
    rank = int(np.ceil((len(errors) + 1) * confidence))
    return float(np.sort(errors)[min(rank, len(errors)) - 1])
