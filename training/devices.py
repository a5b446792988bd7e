"""Which device is trained for: the one asked for, the one at hand, or the one measured most.

Measures a device only where it is at hand and its profile was not kept.
"""

from __future__ import annotations

import torch

from fusewise.costmodel.device import DeviceProfile, device_key, device_profile
from fusewise.schedule.errors import ModelError
from fusewise.training.refeature import profile_of
from fusewise.training.source import Source


def choose_profile(source: Source, key: str | None) -> DeviceProfile:
    """Profile of the device of that key, as the source has it.

    Raises:
        ModelError: it has no such device.
    """
    present = _present_keys()
    if key is None:
        known = source.measured_devices()
        here = [one for one in known if one in present]
        # With none measured, the search for samples says so for the device at hand.
        key = (here or known or list(present))[0]
    for row in source.devices():
        if row.key == key and row.profile:
            return profile_of(row, source.subject)
    if key in present:
        return device_profile(present[key], source.home)
    raise ModelError(
        f"it has no profile of device {key!r}, "
        f"but of: {', '.join(row.key for row in source.devices()) or 'none'}",
        subject=source.subject,
        remedy="choose one of these with --device",
    )


def _present_keys() -> dict[str, torch.device]:
    """Devices of this process by key, the accelerator first."""
    devices = [torch.device("cuda")] if torch.cuda.is_available() else []
    return {device_key(device): device for device in (*devices, torch.device("cpu"))}
