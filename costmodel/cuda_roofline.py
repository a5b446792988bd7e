"""The analytic time of a Triton kernel: what its blocks move and compute, and what they wait for.

Part of the roofline. Constants fit the kernels of the H200 dataset's training families best. It
never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.meeting import DISTINCT

#: Cost of one operation of each class in fp32 additions (half a fused multiply-add each), where all
#: but the dearest are done while memory is waited for. Transcendentals have a measured rate.
_ADDITIONS: Final = {
    "arithmetic": 0.05,
    "division": 0.5,
    "selection": 0.3,
    "indexing": 1.4,
    "conversion": 1.7,
    "random": 48.0,
    "reducing": 0.05,
    "address": 2.4,
    "combined": 1.2,
}
#: The same for reductions that keep several values, on a CUDA device: in a loop each step puts
#: them together anew, where rows are held whole it is one reduction after the other.
_LOOPED: Final = {"welford": (14.0, 0.5), "online_softmax": (42.0, 12.0)}
#: Matrix products of 2-byte elements on a GPU, over those of 4-byte ones (H200: 989 to 67 TFLOP/s).
_TENSOR_CORES: Final = 14.8
#: Part of the cache's copy bandwidth that CUDA kernels reach.
_CACHE_SHARE: Final = 0.7
#: Part of the sectors beyond the distinct bytes that comes from beyond a multiprocessor.
_SECTOR_SHARE: Final = 0.05
#: Time of a sector that blocks touch over that of its bytes in a copy within the cache.
_TOUCHED_SHARE: Final = 0.4
#: Random reads of compiled kernels over those of the eager operation that was probed, and the
#: shares of the device's bandwidths that a single multiprocessor can draw.
_GATHER_GAIN: Final = 2.8
_DRAWS: Final = 1.75
#: Time of an exponential in a CUDA kernel over that of the eager operation that was probed.
_EXPONENTIAL_SHARE: Final = 0.42
#: Cache lines that a multiprocessor looks up in a microsecond.
_WAVEFRONTS_US: Final = 4000.0
#: Exponent of the norm that memory and arithmetic are put together by, since they do not quite
#: overlap: a large one would take the greater of the two, 1 their sum.
_NORM: Final = 1.7
#: Microseconds until what a wave of blocks loads has arrived; what the next turn of a loop waits
#: for, and more where the end of rows is masked, for each value loaded but one, and for each
#: operation of a thread.
_WAVE_US, _TURN_US = 0.08, 0.19
_MASKED_US, _LOAD_US, _OPERATION_US = 0.011, 0.038, 0.0005
#: A step in which threads put their results together, and one of means with variances in a loop.
_STEP_US, _WELFORD_STEP_US = 0.011, 0.032
#: An atomic update, and one of an element that others update too.
_UPDATE_US, _HIT_US = 1.1e-6, 0.01


def cuda_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Launch, memory and arithmetic time of each kernel and what it waits besides, in microseconds.

    Args:
        amount: a feature [n] as a plain number.
        rate: a rate of the device [n], for a microsecond.
    """
    copy = rate("device_copy")
    cache = np.maximum(rate("device_cache"), copy)
    spread = np.maximum(amount("device_cores"), 1.0)
    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    filled = np.where(finished, 1.0, np.clip(amount("programs") / spread, 1.0 / spread, 1.0))
    drawn = np.minimum(_DRAWS * filled, 1.0)

    main = sum((amount(name) for name in DISTINCT), np.zeros(len(spread)))
    near = np.minimum(main, amount("device_cache_bytes"))
    sectors = amount("sector_bytes")
    moved = near / (cache * _CACHE_SHARE) + (main - near) / copy
    moved += np.maximum(sectors - main, 0.0) * _SECTOR_SHARE / cache
    moved += amount("random_bytes") / (rate("device_gather") * _GATHER_GAIN)
    lines = amount("wavefronts") / (spread * _WAVEFRONTS_US * filled)
    memory = np.maximum(moved, sectors * _TOUCHED_SHARE / cache) / drawn
    memory = np.maximum(memory, lines)

    additions = rate("device_flops") / 2.0
    work = sum((each * amount(name) for name, each in _ADDITIONS.items()), np.zeros(len(spread)))
    held = np.clip(amount("persistent"), 0.0, 1.0)
    for name, (looped, whole) in _LOOPED.items():
        work += (looped * (1.0 - held) + whole * held) * amount(name)
    # Eight-byte lanes are half as many.
    work *= 1.0 + amount("wide")
    exponentials = amount("transcendental") / rate("device_transcendental")
    arithmetic = work / additions + exponentials * _EXPONENTIAL_SHARE
    matrices = 1.0 + (_TENSOR_CORES - 1.0) * amount("half")
    arithmetic += amount("flops") / (2.0 * additions * matrices)

    more, less = np.maximum(memory, arithmetic), np.minimum(memory, arithmetic)
    ratio = less / np.maximum(more, 1e-12)
    apart = more * ((1.0 + ratio**_NORM) ** (1.0 / _NORM) - 1.0)
    return amount("device_launch"), memory, arithmetic, apart + _waiting(amount)


def _waiting(amount: Callable[[str], FloatArray]) -> FloatArray:
    """Microseconds that blocks of CUDA kernels spend waiting, one after the other."""
    waves = amount("waves")
    loads = np.maximum(amount("loads") - 1.0, 0.0)
    turn = _TURN_US + _MASKED_US * (1.0 - np.minimum(amount("even"), 1.0)) + _LOAD_US * loads
    turn += _OPERATION_US * amount("turn_operations")
    # In a loop a block waits for what it loads before it goes on.
    waiting = _WAVE_US * waves + np.maximum(amount("rounds") - waves, 0.0) * turn
    means = (amount("welford") > 0) & (amount("persistent") == 0)
    waiting += amount("combining") * np.where(means, _WELFORD_STEP_US, _STEP_US)
    updates = amount("atomic_updates") * _UPDATE_US
    result: FloatArray = waiting + np.maximum(updates, amount("atomic_hits") * _HIT_US)
    return result
