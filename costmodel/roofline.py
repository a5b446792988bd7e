"""The roofline: the analytic time of a kernel, from its features and the device's rates.

It is what a kernel would take if it did nothing but move its bytes or do its arithmetic, whichever
is slower (Williams, Waterman, Patterson 2009), extended by access pattern, parallelism and launch
cost. It is the denominator of the learned target, and stands in wherever no trained model holds.
It never learns anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.cpu_roofline import cpu_parts
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN, FEATURES, FEATURES_VERSION
from fusewise.costmodel.interface import FloatArray, Prediction, Source
from fusewise.costmodel.meeting import DISTINCT
from fusewise.costmodel.partials import device_amounts
from fusewise.schedule.errors import ModelError

#: The 90 % interval of an analytic estimate: a factor of four either way. Published analytic models
#: of fused kernels are off by 31 % on average (Kaufman et al. 2021) on the device they were made
#: for; this one is made for no device in particular.
INTERVAL_FACTOR: Final = 4.0

#: Cost of one operation of each class in fp32 additions (half a fused multiply-add each) on a CUDA
#: device. Like all constants of CUDA kernels here, they fit the kernels of the H200 dataset's
#: training families best. Transcendentals have a measured rate of their own.
_ADDITIONS: Final = {
    "arithmetic": 1.0,
    "division": 1.0,
    "selection": 0.5,
    "indexing": 2.5,
    "conversion": 0.5,
    "random": 70.0,
    "reducing": 12.0,
}
#: Matrix products of 2-byte elements on a GPU, over those of 4-byte ones (H200: 989 to 67 TFLOP/s).
_TENSOR_CORES: Final = 14.8
#: Microseconds until what a block of a CUDA kernel loads has arrived.
_ROUND_US: Final = 0.15
#: In each turn of a loop besides: where the end of rows is masked, for each value loaded but one,
#: for each reduction that keeps several values, for each operation of a thread.
_MASKED_US, _LOAD_US, _FUSED_US, _OPERATION_US = 0.04, 0.033, 0.05, 0.0014
#: Cache lines that a multiprocessor looks up in a microsecond: one a clock.
_WAVEFRONTS_US: Final = 1500.0
#: Part of the sectors beyond the distinct bytes that comes from beyond a multiprocessor.
_SECTOR_SHARE: Final = 0.13
#: Part of the cache's copy bandwidth that kernels reach.
_CACHE_SHARE: Final = 0.7
_LOGARITHMIC: Final = frozenset(f.name for f in FEATURES if f.unit.startswith("log2"))


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


@dataclass(frozen=True, slots=True)
class RooflineParts:
    """What the analytic time is made of, each of shape [n] in microseconds."""

    launch: FloatArray
    #: Of the next two the greater one counts.
    memory: FloatArray
    arithmetic: FloatArray
    #: Until what blocks of a CUDA kernel load has arrived, turn after turn; nothing else counts in
    #: a kernel of few blocks.
    waiting: FloatArray

    @property
    def us(self) -> FloatArray:
        """The whole."""
        result: FloatArray = self.launch + np.maximum(self.memory, self.arithmetic) + self.waiting
        return result


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
    It grows with every kind of byte and operation. On a CPU see :mod:`.cpu_roofline`.

    Rates are the ones the rows carry, so that rows of several devices can be mixed, or those of
    ``profile`` where one is given.

    Raises:
        ModelError: the shape is not [n, F].
    """
    check_features(features, "roofline")

    given = {} if profile is None else device_amounts(profile)

    def amount(name: str) -> FloatArray:
        if name in given:
            return np.full(len(features), given[name])
        # Contiguous, as numpy rounds exp2 of a strided array otherwise than of a single number.
        column: FloatArray = np.ascontiguousarray(features[:, COLUMN[name]])
        return np.exp2(column) - 1.0 if name in _LOGARITHMIC else column

    def rate(name: str) -> FloatArray:
        # 10^9 a second are 10^3 a microsecond.
        return np.maximum(amount(name), 1e-6) * 1e3

    cuda = amount("is_cuda") > 0
    if not cuda.any():
        return RooflineParts(*cpu_parts(amount, rate), np.zeros(len(features)))
    found = _cuda_parts(amount, rate)
    if not cuda.all():
        host = (*cpu_parts(amount, rate), np.zeros(len(features)))
        found = tuple(
            np.where(cuda, ours, theirs) for ours, theirs in zip(found, host, strict=True)
        )
    return RooflineParts(*found)


def _cuda_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> tuple[FloatArray, ...]:
    """The parts of kernels on a CUDA device."""
    copy = rate("device_copy")
    cache = np.maximum(rate("device_cache"), copy)
    spread = np.maximum(amount("device_cores"), 1.0)

    main = sum((amount(name) for name in DISTINCT), np.zeros(len(spread)))
    near = np.minimum(main, amount("device_cache_bytes"))
    memory = near / (cache * _CACHE_SHARE) + (main - near) / copy
    memory += amount("random_bytes") / rate("device_gather")
    memory += np.maximum(amount("sector_bytes") - main, 0.0) * _SECTOR_SHARE / cache

    additions = rate("device_flops") / 2.0
    work = sum((each * amount(name) for name, each in _ADDITIONS.items()), np.zeros(len(spread)))
    # Eight-byte lanes are half as many.
    work *= 1.0 + amount("wide")
    arithmetic = work / additions + amount("transcendental") / rate("device_transcendental")
    matrices = 1.0 + (_TENSOR_CORES - 1.0) * amount("half")
    arithmetic += amount("flops") / (2.0 * additions * matrices)

    memory = np.maximum(memory, amount("wavefronts") / (spread * _WAVEFRONTS_US))
    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    filled = np.clip(amount("programs") / spread, 1.0 / spread, 1.0)
    memory /= np.where(finished, 1.0, filled)
    waves, rounds = amount("waves"), amount("rounds")
    turn = _MASKED_US * (1.0 - amount("even")) + _LOAD_US * np.maximum(amount("loads") - 1.0, 0.0)
    turn += _FUSED_US * amount("fused_reductions") + _OPERATION_US * amount("turn_operations")
    # In a loop a block waits for what it loads before it goes on.
    waiting = rounds * _ROUND_US + np.maximum(rounds - waves, 0.0) * turn
    return amount("device_launch"), memory, arithmetic, waiting


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
