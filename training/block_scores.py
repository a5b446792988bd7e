"""How good an order of block sizes is: what compiling and timing the first k of it would give.

Inductor's own are always among those that are timed, as they are when a kernel is tuned. Sizes
that could not be timed take up a place and give nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.block_model import BlockModel
from fusewise.costmodel.interface import FloatArray
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.training.metrics import mean, median
from fusewise.training.timed_blocks import FULL_US, TimedKernel

#: How many sizes are timed beside Inductor's own.
FIRST: Final = (1, 2, 4, 6)
#: Expected ratios from which on the first size is taken without being timed, and the relative time
#: by which it may be slower than Inductor's own and not count as slower.
EXPECTED: Final = (0.95, 0.9, 0.8, 0.7)
_TOLERATED: Final = 0.01

Order = Callable[[TimedKernel], npt.NDArray[np.intp]]


class FirstSizes(msgspec.Struct, frozen=True):
    """What the best of the first sizes comes to."""

    #: Its time over that of the best measured, less 1: mean and median over kernels.
    regret: float
    median_regret: float
    #: Part of the log gain over Inductor's own that there was to be had, of all kernels together.
    kept: float | None


class Untimed(msgspec.Struct, frozen=True):
    """What comes of taking the size expected to be the fastest, where that is below a ratio."""

    #: Kernels in which it is, and in which it was slower than the best of Inductor's own.
    taken: int
    slower: int
    #: Geometric mean of Inductor's time over its own, over all kernels.
    gain: float


class BlockScores(msgspec.Struct, frozen=True, kw_only=True):
    """An order of block sizes on some kernels."""

    kernels: int
    #: By the number of sizes beside Inductor's own, as text.
    first: dict[str, FirstSizes]


class BlockJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """Orders of block sizes on kernels of 3 us and more, or on all."""

    kernels: int
    #: Geometric mean of the time of Inductor's own over the best there is.
    best_gain: float
    #: Inductor's own alone.
    own: FirstSizes
    #: By the block model, and the nearest to Inductor's own.
    model: BlockScores
    nearest: BlockScores
    #: Without timing any, by the expected ratio, as text.
    untimed: dict[str, Untimed]


def judge_blocks(model: BlockModel, kernels: Sequence[TimedKernel]) -> BlockJudgement | None:
    """How good the order of ``model`` is on ``kernels``, which are usable; None of none."""
    if not kernels:
        return None
    predicted = [_expected(model, kernel) for kernel in kernels]
    own_us = np.array([kernel.own_us for kernel in kernels])
    best_us = np.array([kernel.times.min() for kernel in kernels])
    ratios = dict(zip(map(id, kernels), predicted, strict=True))
    return BlockJudgement(
        kernels=len(kernels),
        best_gain=float(np.exp(np.log(own_us / best_us).mean())),
        own=_first(own_us, own_us, best_us),
        model=_scores(kernels, lambda kernel: np.argsort(ratios[id(kernel)], kind="stable")),
        nearest=_scores(kernels, nearest_first),
        untimed={str(below): _untimed(kernels, predicted, below) for below in EXPECTED},
    )


def large(kernels: Sequence[TimedKernel]) -> list[TimedKernel]:
    """Kernels long enough that their blocks decide their time."""
    return [kernel for kernel in kernels if kernel.own_us >= FULL_US]


def nearest_first(kernel: TimedKernel) -> npt.NDArray[np.intp]:
    """Sizes by their doublings and halvings from the nearest of Inductor's own, own ones first."""
    distances = [
        min(_steps(sizes, own) for own in kernel.sizes[: kernel.own]) for sizes in kernel.sizes
    ]
    return np.argsort(distances, kind="stable")


def _steps(one: BlockSizes, other: BlockSizes) -> float:
    there = dict(other.constants)
    blocks = sum(abs(np.log2(size / there.get(name, size))) for name, size in one.constants)
    return float(blocks + abs(np.log2(one.warps / other.warps)) + abs(one.stages - other.stages))


def _expected(model: BlockModel, kernel: TimedKernel) -> FloatArray:
    """Expected times over that of the best of Inductor's own, [n]."""
    facts = kernel.facts
    assert facts is not None, "usable kernels are known"
    found = model.log_ratios(facts, kernel.sizes, kernel.sizes[0])
    ratios: FloatArray = np.exp(found - found[: kernel.own].min())
    return ratios


def _scores(kernels: Sequence[TimedKernel], order: Order) -> BlockScores:
    own_us = np.array([kernel.own_us for kernel in kernels])
    best_us = np.array([kernel.times.min() for kernel in kernels])
    first = {}
    others = [kernel.times[[at for at in order(kernel) if at >= kernel.own]] for kernel in kernels]
    for k in FIRST:
        found = np.array([times[:k].min(initial=np.inf) for times in others])
        first[str(k)] = _first(np.minimum(found, own_us), own_us, best_us)
    return BlockScores(kernels=len(kernels), first=first)


def _first(found_us: FloatArray, own_us: FloatArray, best_us: FloatArray) -> FirstSizes:
    regret = found_us / best_us - 1.0
    possible = float(np.log(own_us / best_us).sum())
    kept = float(np.log(own_us / found_us).sum()) / possible if possible > 0.0 else None
    return FirstSizes(mean(regret) or 0.0, median(regret) or 0.0, kept)


def _untimed(
    kernels: Sequence[TimedKernel], predicted: Sequence[FloatArray], below: float
) -> Untimed:
    gains = []
    for kernel, ratios in zip(kernels, predicted, strict=True):
        at = int(np.argmin(ratios))
        # What cannot run is found out when it is compiled, and Inductor's own are taken.
        if ratios[at] <= below and np.isfinite(kernel.times[at]):
            gains.append(float(np.log(kernel.own_us / kernel.times[at])))
    slower = sum(gain < -_TOLERATED for gain in gains)
    return Untimed(len(gains), slower, float(np.exp(sum(gains) / len(kernels))))
