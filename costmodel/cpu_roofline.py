"""The analytic time of a C++ kernel: threads that start, bytes of each, and what each of them does.

Part of the roofline. Constants fit the kernels of the x86 dataset's training families best, on
four processors with 1, 2 and 16 threads. It never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from fusewise.costmodel.cpu_costs import TABLES, nearest
from fusewise.costmodel.interface import FloatArray


class Constants(NamedTuple):
    """What fits processors alike best, beside the rates that each was probed for."""

    #: A kernel on one thread is part of a function: nothing starts. Several are sent off and waited
    #: for: so much of the device's launch cost, and so many microseconds for each thread; each
    #: further loop nest waits once more.
    serial_us: float
    fork_share: float
    fork_each_us: float
    barrier_each_us: float
    #: Bytes of a thread that stay in its own cache, and what it moves from there in a microsecond.
    own_bytes: float
    own_rate: float
    #: Bandwidths that kernels reach, over those of copies: they read more than they write.
    cache_share: float
    copy_share: float
    #: Part of the last-level cache from which on kernels wait for memory.
    shared_part: float
    #: How fast the bounds pass over into each other.
    sharpness: float
    #: Bytes of lines, of stretches across, looked up and of what is overwritten, over copied bytes.
    line: float
    across: float
    random: float
    in_place: float
    #: Exponent at which memory and arithmetic add up: 1 would be one after the other.
    overlap: float


_OLDER: Final = Constants(
    serial_us=0.0064,
    fork_share=0.782,
    fork_each_us=0.353,
    barrier_each_us=0.1,
    own_bytes=2.0e6,
    own_rate=100e3,
    cache_share=0.79,
    copy_share=3.24,
    shared_part=0.055,
    sharpness=3.0,
    line=0.405,
    across=0.714,
    random=0.976,
    in_place=0.487,
    overlap=3.14,
)
_SWIFT: Final = Constants(
    serial_us=0.00407,
    fork_share=0.46,
    fork_each_us=0.21,
    barrier_each_us=0.238,
    own_bytes=9.68e5,
    own_rate=2.73e5,
    cache_share=0.862,
    copy_share=1.01,
    shared_part=1.54,
    sharpness=3.16,
    line=0.441,
    across=0.828,
    random=0.13,
    in_place=0.0911,
    overlap=3.08,
)
_KEEN: Final = Constants(
    serial_us=0.00395,
    fork_share=0.686,
    fork_each_us=0.317,
    barrier_each_us=0.218,
    own_bytes=2.36e6,
    own_rate=1.11e5,
    cache_share=0.993,
    copy_share=1.05,
    shared_part=1.47,
    sharpness=5.39,
    line=0.304,
    across=0.321,
    random=0.148,
    in_place=0.184,
    overlap=5.28,
)
#: By the name of the table of the processor that one is most like.
_CONSTANTS: Final = {"narrow": _OLDER, "wide": _OLDER, "swift": _SWIFT, "keen": _KEEN}
_NS: Final = 1e-3


def _part_above(amount: FloatArray, bound: FloatArray, sharpness: FloatArray) -> FloatArray:
    """How far an amount is beyond a bound: 0 well below, 1 well above."""
    result: FloatArray = 1.0 / (1.0 + (bound / np.maximum(amount, 1.0)) ** sharpness)
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
    copy = rate("device_copy")
    cache = np.maximum(rate("device_cache"), copy) / threads
    # What is 10^9 a second is 10^3 a microsecond.
    multiplied = rate("device_flops") * 1e-3 / threads
    exponentials = rate("device_transcendental") * 1e-3 / threads
    like = nearest(cache * 1e-3, multiplied, exponentials, TABLES)
    constants = [_CONSTANTS[table.name] for table in TABLES]

    def fitted(name: str) -> FloatArray:
        found: FloatArray = np.array([getattr(each, name) for each in constants])[like]
        return found

    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    workers = np.where(finished, threads, np.maximum(amount("workers"), 1.0))
    nests = np.where(finished & (threads > 1.0), 1.0, amount("shared_nests"))
    fork = fitted("fork_share") * amount("device_launch") + fitted("fork_each_us") * threads
    fork += fitted("barrier_each_us") * threads * (nests - 1.0)
    launch = np.where(nests > 0, fork, fitted("serial_us"))

    fresh = np.where(finished, amount("distinct"), amount("each_worker") * workers)
    moved = fresh + amount("cached") + amount("reread")
    each = moved / workers
    beyond = _part_above(each, fitted("own_bytes"), fitted("sharpness"))
    near = each * ((1.0 - beyond) / fitted("own_rate") + beyond / (fitted("cache_share") * cache))
    far = np.maximum(near, moved / (fitted("copy_share") * copy))
    outside = _part_above(
        fresh, fitted("shared_part") * amount("device_cache_bytes"), fitted("sharpness")
    )
    memory = (1.0 - outside) * near + outside * far
    lines = fitted("line") * amount("line_bytes") + fitted("across") * amount("across_bytes")
    lines += fitted("in_place") * amount("in_place")
    memory += lines / (workers * cache)
    memory += (
        fitted("random") * amount("random_bytes") * threads / (workers * rate("device_gather"))
    )

    work = _NS * amount("instructions") + amount("flops") / rate("device_flops")
    together = (memory ** fitted("overlap") + work ** fitted("overlap")) ** (
        1.0 / fitted("overlap")
    )
    stretch = together / np.maximum(np.maximum(memory, work), 1e-12)
    return launch, memory * stretch, work * stretch
