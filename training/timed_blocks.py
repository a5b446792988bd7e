"""Triton kernels that were timed with several block sizes, as a block model is trained on them.

From sources and times to rows of features; where they come from and how trees are grown on them is
not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.triton_facts import KernelFacts
from fusewise.costmodel.triton_source import facts_of
from fusewise.schedule.block_sizes import BlockSizes

#: Microseconds from which on a kernel counts in full: of shorter ones the launch is most of it.
FULL_US: Final = 3.0
_LEAST_WEIGHT: Final = 0.1


@dataclass(frozen=True)
class TimedKernel:
    """A kernel with the times of some of its block sizes."""

    source: str
    #: Inductor's own come first, so many of them.
    sizes: tuple[BlockSizes, ...]
    own: int
    #: Microseconds of each; None where it could not be timed.
    us: tuple[float | None, ...]
    #: What holds kernels together that are alike: the family of its graph, or the graph.
    label: str = ""

    @property
    def facts(self) -> KernelFacts | None:
        """What its source tells; None where it is unknown."""
        return facts_of(self.source)

    @property
    def times(self) -> FloatArray:
        """Microseconds [n], infinite where it could not be timed."""
        return np.array([np.inf if one is None else one for one in self.us])

    @property
    def own_us(self) -> float:
        """The best of Inductor's own, in microseconds; infinite where none could be timed."""
        return float(self.times[: self.own].min(initial=np.inf))

    @property
    def weight(self) -> float:
        """How much it counts, 1 at the most."""
        return float(np.clip(self.own_us / FULL_US, _LEAST_WEIGHT, 1.0))

    @property
    def usable(self) -> bool:
        """Whether there is a time of Inductor's first, one of others, and its source is known."""
        times = self.times
        timed = np.count_nonzero(np.isfinite(times))
        return bool(self.own and np.isfinite(times[0]) and timed > 1 and self.facts is not None)


@dataclass(frozen=True)
class BlockRows:
    """Rows of several kernels, one for each of their block sizes that was timed."""

    #: [n, F]
    features: FloatArray
    #: Log of the time over that with Inductor's first sizes, [n].
    log_ratio: FloatArray
    weight: FloatArray
    #: Number of the kernel of each row, [n].
    kernel: npt.NDArray[np.intp]


def block_rows(kernels: Sequence[TimedKernel]) -> BlockRows:
    """Rows of ``kernels``, which are usable ones; one at least."""
    features, ratios, weights, numbers = [], [], [], []
    for number, kernel in enumerate(kernels):
        facts, times = kernel.facts, kernel.times
        assert facts is not None, "usable kernels are known"
        timed = np.flatnonzero(np.isfinite(times))
        sizes = [kernel.sizes[at] for at in timed]
        features.append(block_features(facts, sizes, kernel.sizes[0]))
        ratios.append(np.log(times[timed] / times[0]))
        weights.append(np.full(len(timed), kernel.weight))
        numbers.append(np.full(len(timed), number))
    return BlockRows(*map(np.concatenate, (features, ratios, weights, numbers)))


def usable(kernels: Iterable[TimedKernel]) -> list[TimedKernel]:
    """Those that can be trained on and judged by."""
    return [kernel for kernel in kernels if kernel.usable]
