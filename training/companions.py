"""Kernels of other devices of one kind, to be trained on beside those of the device itself.

What a kernel costs over its roofline is much the same on processors that run the same code, and the
features say which device a row is of. A device with few kernels of its own gains most. What a model
is judged by stays that of its device alone.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import split_groups
from fusewise.training.refeature import profile_of
from fusewise.training.source import Source
from fusewise.training.split import Labels, concatenate, take


class Companions:
    """Kernels of the other devices of a source."""

    def __init__(self, source: Source, profile: DeviceProfile) -> None:
        """Take all that may be trained on.

        Args:
            source: with kernels of several devices.
            profile: of the device itself, whose kernels are left out.

        Raises:
            ModelError: a device's profile is of another form, or its features cannot be computed.
        """
        measured = source.measured_devices()
        profiles = [
            profile_of(row, source.subject)
            for row in source.devices()
            if row.kind == profile.kind and row.key != profile.key and row.key in measured
        ]
        parts = [source.kernels(other) for other in profiles]
        parts = [take(part, np.flatnonzero(part.split != "test")) for part in parts]
        self._samples = concatenate([part for part in parts if len(part)])
        #: The devices.
        self.profiles = tuple(
            other for other, part in zip(profiles, parts, strict=True) if len(part)
        )

    def beside(
        self, samples: KernelSamples, labels: Labels, leave_out: Collection[str]
    ) -> tuple[KernelSamples, Labels]:
        """``samples`` with their ``labels``, and after them those of the other devices.

        ``leave_out``: families that the model is judged by.
        """
        if self._samples is None:
            return samples, labels
        others = take(
            self._samples, np.flatnonzero(~np.isin(self._samples.family, sorted(leave_out)))
        )
        theirs = np.array(split_groups(others.family, others.graph_key), dtype=np.object_)
        joined = concatenate([samples, others])
        assert joined is not None
        return joined, np.concatenate([labels, theirs])
