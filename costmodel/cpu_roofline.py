"""The analytic time of a C++ kernel: threads that start, bytes of each, and what each of them does.

Part of the roofline. Constants fit the kernels of the x86 dataset's training families best, on two
processors with 1, 2 and 16 threads. It never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fusewise.costmodel.interface import FloatArray

#: A kernel on one thread is part of a function: nothing starts. Several are sent off and waited
#: for: so much of the device's launch cost, and so many microseconds for each thread; each further
#: loop nest waits once more.
_SERIAL_US: Final = 0.0064
_FORK_SHARE, _FORK_EACH_US, _BARRIER_EACH_US = 0.782, 0.353, 0.1
#: Bytes of a thread that stay in its own cache, and what it moves from there in a microsecond.
_OWN_BYTES, _OWN_RATE = 2.0e6, 100e3
#: Bandwidths that kernels reach, over those of copies: they read more than they write.
_CACHE_SHARE, _COPY_SHARE = 0.79, 3.24
#: Part of the last-level cache from which on kernels wait for memory.
_SHARED_PART: Final = 0.055
#: How fast the bounds pass over into each other.
_SHARPNESS: Final = 3.0
#: Bytes of lines, of stretches across, looked up and of what is overwritten, over copied bytes.
_LINE, _ACROSS, _RANDOM, _IN_PLACE = 0.405, 0.714, 0.976, 0.487
#: Exponent at which memory and arithmetic add up: 1 would be one after the other.
_OVERLAP: Final = 3.14
_NS: Final = 1e-3


def _part_above(amount: FloatArray, bound: FloatArray | float) -> FloatArray:
    """How far an amount is beyond a bound: 0 well below, 1 well above."""
    result: FloatArray = 1.0 / (1.0 + (bound / np.maximum(amount, 1.0)) ** _SHARPNESS)
    return result


def cpu_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Launch, memory and arithmetic time of each kernel, three arrays [n] in microseconds.

    The last two are each as much longer as they do not overlap.

    Args:
        amount: a feature [n] as a plain number.
        rate: a rate of the device [n], for a microsecond.
    """
    threads = np.maximum(amount("device_threads"), 1.0)
    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    workers = np.where(finished, threads, np.maximum(amount("workers"), 1.0))
    nests = np.where(finished & (threads > 1.0), 1.0, amount("shared_nests"))
    fork = _FORK_SHARE * amount("device_launch") + _FORK_EACH_US * threads
    fork += _BARRIER_EACH_US * threads * (nests - 1.0)
    launch = np.where(nests > 0, fork, _SERIAL_US)

    copy = rate("device_copy")
    cache = np.maximum(rate("device_cache"), copy) / threads
    fresh = np.where(finished, amount("distinct"), amount("each_worker") * workers)
    moved = fresh + amount("cached") + amount("reread")
    each = moved / workers
    beyond = _part_above(each, _OWN_BYTES)
    near = each * ((1.0 - beyond) / _OWN_RATE + beyond / (_CACHE_SHARE * cache))
    far = np.maximum(near, moved / (_COPY_SHARE * copy))
    outside = _part_above(fresh, _SHARED_PART * amount("device_cache_bytes"))
    memory = (1.0 - outside) * near + outside * far
    lines = _LINE * amount("line_bytes") + _ACROSS * amount("across_bytes")
    lines += _IN_PLACE * amount("in_place")
    memory += lines / (workers * cache)
    memory += _RANDOM * amount("random_bytes") * threads / (workers * rate("device_gather"))

    work = _NS * amount("instructions") + amount("flops") / rate("device_flops")
    together = (memory**_OVERLAP + work**_OVERLAP) ** (1.0 / _OVERLAP)
    stretch = together / np.maximum(np.maximum(memory, work), 1e-12)
    return launch, memory * stretch, work * stretch
