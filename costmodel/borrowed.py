"""A model of another device, for one that none was trained on: the nearest there is, and less sure.

What a kernel takes over its roofline is partly the kernel's doing and partly the device's. So it
gets the roofline of the new device, by its own rates, and of the factor that trees of the lender
give the part that was found to go along (docs/training.md): the less, the further the two devices
are apart, and the wider is the interval. Trains nothing, and adapts nothing to kernels of the new
device: ``train-costmodel --base`` does.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.block_model import BlockModel
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN, FEATURES, FEATURES_VERSION
from fusewise.costmodel.gains import Gains, gains_of
from fusewise.costmodel.interface import FloatArray, Prediction, Source
from fusewise.costmodel.overheads import Overheads
from fusewise.costmodel.partials import device_amounts
from fusewise.costmodel.roofline import INTERVAL_FACTOR, check_features, roofline_us
from fusewise.costmodel.trained import TrainedModel

#: Added to the log half widths of intervals, for each doubling that the devices are apart. With
#: that, nine of ten kernels lie within on nine of ten pairs of devices held back, or nearly so.
WIDTH_A_DOUBLING: Final = 0.2

#: Rates that devices are compared by.
_RATES: Final = (
    "threads",
    "copy_gbs",
    "cache_gbs",
    "gather_gbs",
    "flops_gfs",
    "transcendental_gops",
    "launch_us",
    "cache_bytes",
    "cores",
)


def distance(one: DeviceProfile, other: DeviceProfile) -> float:
    """How unlike two devices are: the root mean square of the doublings between their rates.

    Infinite between a CPU and a GPU, whose kernels are not the same: nothing goes along.
    """
    if one.kind != other.kind:
        return float("inf")
    apart = []
    for name in _RATES:
        here, there = (
            float(getattr(each, name) or (each.copy_gbs if name == "cache_gbs" else 1.0))
            for each in (one, other)
        )
        apart.append(np.log2(here / there))
    return float(np.sqrt(np.mean(np.square(apart))))


class BorrowedModel:
    """A trained model of ``lender`` on the device of ``profile``. Implements ``CostModel``.

    Of the log of the factor over the roofline the part 1 / (1 + d) is kept, with d the
    :func:`distance` of the devices.
    """

    features_version = FEATURES_VERSION

    def __init__(self, model: TrainedModel, lender: DeviceProfile, profile: DeviceProfile) -> None:
        self.model = model
        self.lender = lender
        self.profile = profile
        self._apart = distance(lender, profile)
        #: Names what was borrowed, as it stands in reports.
        self.name = f"{model.name}, borrowed from {lender.key}"
        told = msgspec.json.encode((profile, lender, WIDTH_A_DOUBLING))
        self.id = f"borrowed-{model.id}-{hashlib.sha256(told).hexdigest()[:8]}"

    @property
    def gains(self) -> Gains:
        """What may be taken by its predictions: of what the lender's may, what is sure."""
        return gains_of(self.model, self.profile.kind).on_another_device()

    @property
    def overheads(self) -> Overheads | None:
        """What plans take beyond their kernels: calls and memory are of the program, mostly."""
        return self.model.overheads

    @property
    def blocks(self) -> BlockModel | None:
        """What the lender knows about block sizes: kernels tell of their own device."""
        return self.model.blocks

    @property
    def width_added(self) -> float:
        """What is added to the log half widths of the lender's own intervals."""
        return WIDTH_A_DOUBLING * self._apart

    def predict(self, features: FloatArray) -> Prediction:
        """Times of groups with ``features`` [n, F] on the new device.

        The source is ``borrowed``; ``roofline`` where the lender does not know such kernels either.

        Raises:
            ModelError: the shape is not [n, F].
        """
        check_features(features, f"model {self.name}")
        if not len(features):
            return self.model.predict(features)
        told = features.copy()
        for name, amount in device_amounts(self.lender).items():
            at = COLUMN[name]
            told[:, at] = np.log2(1.0 + amount) if FEATURES[at].logarithmic else amount
        found = self.model.predict(told)
        learned = np.array([source == "learned" for source in found.source], dtype=bool)
        # Of what the lender does not know there is nothing to borrow.
        factor = np.where(learned, np.log(found.us / roofline_us(told)), 0.0)
        us = roofline_us(features, self.profile) * np.exp(factor / (1.0 + self._apart))
        width = np.log(found.high_us / found.us) + self.width_added
        width = np.where(learned, width, np.maximum(width, np.log(INTERVAL_FACTOR)))
        source: tuple[Source, ...] = tuple(
            "borrowed" if flag else "roofline" for flag in learned.tolist()
        )
        return Prediction(us, us * np.exp(-width), us * np.exp(width), source)
