"""The devices of a published dataset with the kernels that were measured on them."""

from __future__ import annotations

from collections.abc import Iterator

from fusewise.costmodel.device import DeviceProfile
from fusewise.datasets.samples import KernelSamples
from fusewise.schedule.errors import ModelError
from fusewise.training.devices import choose_profile
from fusewise.training.source import Source


def measured(source: Source) -> Iterator[tuple[DeviceProfile, KernelSamples]]:
    """Each device that there are kernels of, with them."""
    for key in source.measured_devices():
        profile = choose_profile(source, key)
        try:
            samples = source.kernels(profile)
        except ModelError:
            continue
        yield profile, samples
