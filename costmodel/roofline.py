"""The roofline: the analytic time of a kernel, from its features and the device's rates.

It is what a kernel would take if it did nothing but move its bytes or do its arithmetic, whichever
is slower (Williams, Waterman, Patterson 2009), extended by access pattern, parallelism and launch
cost. It is the denominator of the learned target, and stands in wherever no trained model holds.
It never learns anything.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.cpu_roofline import cpu_parts
from fusewise.costmodel.cuda_roofline import cuda_parts
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN, FEATURES, FEATURES_VERSION, LOGARITHMIC
from fusewise.costmodel.interface import FloatArray, Prediction, Source
from fusewise.costmodel.partials import device_amounts
from fusewise.costmodel.roofline_parts import RooflineParts
from fusewise.costmodel.settled import without_last_bits
from fusewise.schedule.errors import ModelError

#: The 90 % interval of an analytic estimate: a factor of four either way. Published analytic models
#: of fused kernels are off by 31 % on average (Kaufman et al. 2021) on the device they were made
#: for; this one is made for no device in particular.
INTERVAL_FACTOR: Final = 4.0


def check_features(features: FloatArray, subject: str) -> None:
    """Refuse an array that cannot be a batch of features.

    Raises:
        ModelError: the shape is not [n, F].
    """
    if features.ndim != 2 or features.shape[1] != len(FEATURES):  # noqa: PLR2004
        raise ModelError(
            f"features have shape {features.shape}, not [n, {len(FEATURES)}]",
            subject=subject,
            remedy=f"compute them with Featurizer of features version {FEATURES_VERSION}",
        )


def roofline_us(features: FloatArray, profile: DeviceProfile | None = None) -> FloatArray:
    """Analytic time in microseconds, shape [n], of groups with ``features`` [n, F].

    See :func:`roofline_parts`.

    Raises:
        ModelError: the shape is not [n, F].
    """
    return roofline_parts(features, profile).us


def roofline_parts(features: FloatArray, profile: DeviceProfile | None = None) -> RooflineParts:
    """Parts of the analytic time of groups with ``features`` [n, F].

    ``launch + max(memory, arithmetic) / utilisation``: memory is each kind of byte over its
    bandwidth (what fits the last-level cache moves at the cache's), arithmetic each class of
    operation over its rate, and utilisation the part of the device that the iterations can fill.
    It grows with every kind of byte and operation. See ``cpu_roofline`` and
    ``cuda_roofline``.

    Rates are the ones the rows carry, so that rows of several devices can be mixed, or those of
    ``profile`` where one is given.

    Raises:
        ModelError: the shape is not [n, F].
    """
    check_features(features, "roofline")

    given = {} if profile is None else device_amounts(profile)

    columns = _plain(features)

    def amount(name: str) -> FloatArray:
        if name in given:
            return np.full(len(features), given[name])
        column: FloatArray = columns[COLUMN[name]]
        return column

    def rate(name: str) -> FloatArray:
        # 10^9 a second are 10^3 a microsecond.
        return np.maximum(amount(name), 1e-6) * 1e3

    cuda = amount("is_cuda") > 0
    if not cuda.any():
        return cpu_parts(amount, rate)
    found = cuda_parts(amount, rate)
    return found if cuda.all() else found.where(cuda, cpu_parts(amount, rate))


def _plain(features: FloatArray) -> FloatArray:
    """Columns [F, n] of ``features`` [n, F] as plain numbers, to be read only."""
    # Contiguous, as numpy rounds exp2 of a strided array otherwise than of a single number.
    columns: FloatArray = np.array(features.T, dtype=np.float64, order="C")
    # What is not there must not seem to be by the last bit of a power.
    columns[LOGARITHMIC] = without_last_bits(np.exp2(columns[LOGARITHMIC])) - 1.0
    columns.flags.writeable = False
    return columns


class Roofline:
    """The analytic cost model of one device. Implements ``CostModel``."""

    name = "roofline"
    features_version = FEATURES_VERSION

    def __init__(self, profile: DeviceProfile) -> None:
        self.profile = profile
        rates = hashlib.sha256(msgspec.json.encode(profile)).hexdigest()[:8]
        self.id = f"roofline-{FEATURES_VERSION}-{profile.key}-{rates}"

    def predict(self, features: FloatArray) -> Prediction:
        """Times of groups with ``features`` [n, F]; the interval is a factor of four either way.

        Raises:
            ModelError: the shape is not [n, F].
        """
        us = roofline_us(features, self.profile)
        source: Source = "roofline"
        return Prediction(us, us / INTERVAL_FACTOR, us * INTERVAL_FACTOR, (source,) * len(features))
