"""A generated kernel of a plan: what it takes, and what might be saved of it.

Offers nothing itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
    #: Turns of its loop over rows that look where these end.
    masked_turns: int
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


def in_one_launch(kernels: Sequence[PlannedKernel]) -> PlannedKernel:
    """Kernels that share a launch, one at least, as the one that they are: nothing is known of it.

    It takes what they take together; that a launch is saved does not count.
    """
    return replace(
        kernels[0],
        names=tuple(name for kernel in kernels for name in kernel.names),
        us=sum(kernel.us for kernel in kernels),
        least_us=sum(kernel.least_us for kernel in kernels),
        signature=" ".join(kernel.signature for kernel in kernels),
        iterations=sum(kernel.iterations for kernel in kernels),
        read_bytes=sum(kernel.read_bytes for kernel in kernels),
        masked_turns=max(kernel.masked_turns for kernel in kernels),
        saving=None,
    )


def alike(kernels: Iterable[PlannedKernel]) -> list[list[PlannedKernel]]:
    """Kernels by their code, those that take most time together first."""
    by_code: dict[str, list[PlannedKernel]] = defaultdict(list)
    for kernel in kernels:
        by_code[kernel.signature].append(kernel)
    return sorted(by_code.values(), key=lambda ks: (-sum(k.us for k in ks), ks[0].names))
