"""The analytic time of a C++ loop nest: when it runs on several threads, and what keeps it slow.

Part of the roofline. Constants fit the kernels of the x86 dataset's training families best, on two
processors with 1, 2 and 16 threads. It never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.meeting import DISTINCT

#: Iterations for each thread from which Inductor runs a loop nest on several
#: (``torch._inductor.config.cpp.min_chunk_size``).
_CHUNK: Final = 512.0
#: A loop nest on one thread is part of a function: nothing starts. Several are sent off and waited
#: for: so much of the device's launch cost, and so many microseconds for each.
_SERIAL_US: Final = 0.02
_FORK_SHARE, _FORK_EACH_US = 0.95, 0.35
#: One thread of n draws n to the minus this of what all together draw from memory.
_MEMORY_EXPONENT: Final = 0.65
#: Part of the cache's copy bandwidth that kernels reach: they read more than they write.
_CACHE_SHARE: Final = 1.3
#: Bytes that are not moved as vectors over those that are; in stretches that lie across.
_STRIDED, _ACROSS = 1.9, 0.2
#: Cost of one operation of each class in vectorised fp32 additions.
_ADDITIONS: Final = {
    "arithmetic": 0.7,
    "division": 3.4,
    "selection": 2.9,
    "conversion": 0.6,
    "random": 40.0,
    "reducing": 1.7,
}
_TRANSCENDENTAL: Final = 1.5
#: Elements of one byte beside wider ones are taken one by one.
_NARROW: Final = 90.0
#: Reductions that keep several values, such as Welford's.
_FUSED: Final = 10.0
#: Elements of the shortest innermost loop at which what is around it costs as much as it does.
_INNER: Final = 18.0
#: Microseconds for each element that is added to what other threads may add to.
_ATOMIC_US: Final = 2.6e-3


def cpu_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Launch, memory and arithmetic time of each kernel, three arrays [n] in microseconds.

    Args:
        amount: a feature [n] as a plain number.
        rate: a rate of the device [n], for a microsecond.
    """
    threads = np.maximum(amount("device_threads"), 1.0)
    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    several = ((amount("iterations") >= _CHUNK * threads) | finished) & (threads > 1.0)
    share = np.where(several, 1.0, 1.0 / threads)
    launch = np.where(
        several, _FORK_SHARE * amount("device_launch") + _FORK_EACH_US * threads, _SERIAL_US
    )

    copy = rate("device_copy") * np.where(several, 1.0, threads**-_MEMORY_EXPONENT)
    cache = np.maximum(rate("device_cache"), rate("device_copy")) * share
    main = sum((amount(name) for name in DISTINCT), np.zeros(len(threads)))
    near = np.minimum(main, amount("device_cache_bytes"))
    strided = amount("read_strided") + amount("written_strided")
    memory = near / (_CACHE_SHARE * cache) + (main - near) / copy
    memory += (amount("cached") + amount("reread") + amount("line_bytes")) / cache
    memory += (_STRIDED * strided + _ACROSS * amount("across_bytes")) / cache
    memory += amount("random_bytes") / (rate("device_gather") * share)

    additions = rate("device_flops") / 2.0 * share
    work = sum((each * amount(name) for name, each in _ADDITIONS.items()), np.zeros(len(threads)))
    # Eight-byte lanes are half as many.
    work *= 1.0 + amount("wide") + _NARROW * amount("narrow")
    work /= additions
    work += _TRANSCENDENTAL * amount("transcendental") / (rate("device_transcendental") * share)
    work *= np.where(amount("fused_reductions") > 0, _FUSED, 1.0)
    work *= 1.0 + _INNER / np.maximum(amount("inner_extent"), 1.0)
    work += amount("flops") / (2.0 * additions)
    atomic = amount("written_atomic") > 0
    work += np.where(atomic, _ATOMIC_US * amount("iterations") / (threads * share), 0.0)
    return launch, memory, work
