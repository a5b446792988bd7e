"""The analytic time of a C++ kernel: threads that start, bytes of each, and what each of them does.

Part of the roofline. Constants fit the kernels of the x86 dataset's training families best, on
five processors with 1, 2 and 16 threads. It never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from fusewise.costmodel.cpu_costs import TABLES, nearest
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.roofline_parts import RooflineParts


class Constants(NamedTuple):
    """What fits processors alike best, beside the rates that each was probed for."""

    #: A kernel on one thread is part of a function: nothing starts. Several are sent off and waited
    #: for: so much of the device's launch cost, and so many microseconds for each thread; each
    #: further loop nest waits once more. Sent off again at once they are there sooner.
    serial_us: float
    fork_share: float
    fork_each_us: float
    again: float
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
    #: What a thread stores in a microsecond at most, and the exponent at which that and what it
    #: moves add up.
    store_rate: float
    store_overlap: float
    #: Exponent at which memory and arithmetic add up: 1 would be one after the other.
    overlap: float


_NARROW: Final = Constants(
    serial_us=0.00276,
    fork_share=0.375,
    fork_each_us=0.237,
    again=1.01,
    barrier_each_us=0.189,
    own_bytes=9.29e05,
    own_rate=1.99e05,
    cache_share=0.73,
    copy_share=3.25,
    shared_part=0.0405,
    sharpness=2.21,
    line=0.25,
    across=1.46,
    random=0.28,
    in_place=0.114,
    store_rate=6.92e04,
    store_overlap=2.11,
    overlap=7.68,
)
_WIDE: Final = Constants(
    serial_us=0.00152,
    fork_share=0.895,
    fork_each_us=0.333,
    again=1.16,
    barrier_each_us=0.0744,
    own_bytes=1.85e06,
    own_rate=3.32e05,
    cache_share=0.774,
    copy_share=2.28,
    shared_part=0.0918,
    sharpness=3.33,
    line=0.362,
    across=0.458,
    random=0.729,
    in_place=0.13,
    store_rate=8.55e04,
    store_overlap=2.53,
    overlap=5.19,
)
_SWIFT: Final = Constants(
    serial_us=0.00215,
    fork_share=0.347,
    fork_each_us=0.219,
    again=1.09,
    barrier_each_us=0.193,
    own_bytes=7.08e05,
    own_rate=8.55e05,
    cache_share=0.892,
    copy_share=0.964,
    shared_part=1.73,
    sharpness=2.7,
    line=0.262,
    across=0.531,
    random=0.086,
    in_place=0.0336,
    store_rate=2.23e05,
    store_overlap=2.5,
    overlap=2.82,
)
_KEEN: Final = Constants(
    serial_us=0.00101,
    fork_share=0.533,
    fork_each_us=0.34,
    again=1.08,
    barrier_each_us=0.253,
    own_bytes=2.18e06,
    own_rate=4.94e05,
    cache_share=1,
    copy_share=1.07,
    shared_part=1.39,
    sharpness=3.96,
    line=0.176,
    across=0.238,
    random=0.11,
    in_place=0.0769,
    store_rate=6.68e04,
    store_overlap=1.94,
    overlap=4.49,
)
_STEADY: Final = Constants(
    serial_us=0.0019,
    fork_share=0.494,
    fork_each_us=0.218,
    again=0.898,
    barrier_each_us=0.446,
    own_bytes=4.94e05,
    own_rate=4.48e05,
    cache_share=1.96,
    copy_share=0.85,
    shared_part=1.49,
    sharpness=3.33,
    line=0.0591,
    across=0.217,
    random=0.0857,
    in_place=0.0988,
    store_rate=1.61e05,
    store_overlap=0.874,
    overlap=1.64,
)
#: By the name of the table of the processor that one is most like.
_CONSTANTS: Final = {
    "narrow": _NARROW,
    "wide": _WIDE,
    "swift": _SWIFT,
    "keen": _KEEN,
    "steady": _STEADY,
}
_NS: Final = 1e-3


def _part_above(amount: FloatArray, bound: FloatArray, sharpness: FloatArray) -> FloatArray:
    """How far an amount is beyond a bound: 0 well below, 1 well above."""
    result: FloatArray = 1.0 / (1.0 + (bound / np.maximum(amount, 1.0)) ** sharpness)
    return result


def _together(one: FloatArray, other: FloatArray, exponent: FloatArray) -> FloatArray:
    """How long two things take that go on at a time, by how far they do."""
    result: FloatArray = (one**exponent + other**exponent) ** (1.0 / exponent)
    return result


def cpu_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> RooflineParts:
    """What the time of each kernel is made of.

    Memory and arithmetic are each as much longer as they do not overlap.

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
    sent = np.where(finished, 1.0, np.maximum(amount("sent_off"), 1.0))
    fork *= 1.0 + fitted("again") * (sent - 1.0)
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
    copied = (1.0 - outside) * near + outside * far
    lines = fitted("line") * amount("line_bytes") + fitted("across") * amount("across_bytes")
    lines += fitted("in_place") * amount("in_place")
    lines /= workers * cache
    lookups = fitted("random") * amount("random_bytes") * threads
    lookups /= workers * rate("device_gather")

    stored = amount("written_contiguous") + amount("written_strided") + amount("written_other")
    stores = stored / (workers * fitted("store_rate"))
    memory = _together(copied + lines + lookups, stores, fitted("store_overlap"))

    operations = _NS * amount("instructions")
    work = operations + amount("flops") / rate("device_flops")
    together = _together(memory, work, fitted("overlap"))
    stretch = together / np.maximum(np.maximum(memory, work), 1e-12)
    return RooflineParts(
        launch=launch,
        memory=memory * stretch,
        arithmetic=work * stretch,
        waiting=np.zeros_like(launch),
        terms={
            "launch": launch,
            "bytes": copied,
            "sectors": lines,
            "lookups": lookups,
            "stores": stores,
            "operations": operations,
        },
    )
