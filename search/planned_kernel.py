"""A generated kernel of a plan: what it takes, and what might be saved of it.

Offers nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Part of a kernel's time that tuning takes off at most, from experience.
MOST_GAIN: Final = 0.15
#: Part that it takes off where the model sees nothing to gain, from experience.
_HOPED: Final = 0.05


@dataclass(frozen=True)
class PlannedKernel:
    """A generated kernel of a plan."""

    names: tuple[str, ...]
    us: float
    #: What it would take well tuned, at the least.
    least_us: float
    signature: str
    #: Kernels that may share a launch have it in common.
    family: tuple[str, bool, bool]
    #: Elements that it goes through.
    iterations: int
    #: That it reads of what others wrote.
    read_bytes: int
    #: Part of its time that other block sizes are predicted to save; None where nothing is known.
    saving: float | None = None

    @property
    def gain_us(self) -> float:
        """What tuning might save."""
        if self.saving is not None:
            return self.saving * self.us
        return min(max(self.us - self.least_us, 0.0), MOST_GAIN * self.us)

    @property
    def hoped_us(self) -> float:
        """The same, with what was gained elsewhere where nothing is known of the kernel."""
        return self.gain_us if self.saving is not None else max(self.gain_us, _HOPED * self.us)

    @property
    def possible_us(self) -> float:
        """What tuning might save at the most."""
        return self.gain_us if self.saving is not None else MOST_GAIN * self.us
