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
    serial_us=0.00286,
    fork_share=0.374,
    fork_each_us=0.229,
    again=0.993,
    barrier_each_us=0.205,
    own_bytes=8.84e05,
    own_rate=1.96e05,
    cache_share=0.734,
    copy_share=3.19,
    shared_part=0.0414,
    sharpness=2.22,
    line=0.232,
    across=1.45,
    random=0.272,
    in_place=0.102,
    store_rate=7.18e04,
    store_overlap=1.98,
    overlap=7.8,
)
_WIDE: Final = Constants(
    serial_us=0.0015,
    fork_share=0.461,
    fork_each_us=0.306,
    again=1.29,
    barrier_each_us=0.1,
    own_bytes=1.76e06,
    own_rate=3.93e05,
    cache_share=0.996,
    copy_share=2.14,
    shared_part=0.104,
    sharpness=2.23,
    line=0.207,
    across=0.275,
    random=0.45,
    in_place=0.102,
    store_rate=7e04,
    store_overlap=1.54,
    overlap=3.31,
)
_SWIFT: Final = Constants(
    serial_us=0.00216,
    fork_share=0.355,
    fork_each_us=0.217,
    again=1.09,
    barrier_each_us=0.199,
    own_bytes=7.02e05,
    own_rate=8.11e05,
    cache_share=0.895,
    copy_share=0.958,
    shared_part=1.77,
    sharpness=2.67,
    line=0.25,
    across=0.534,
    random=0.0847,
    in_place=0.0303,
    store_rate=2.35e05,
    store_overlap=2.43,
    overlap=2.73,
)
_KEEN: Final = Constants(
    serial_us=0.00103,
    fork_share=0.544,
    fork_each_us=0.336,
    again=1.08,
    barrier_each_us=0.261,
    own_bytes=2.18e06,
    own_rate=4.68e05,
    cache_share=1,
    copy_share=1.06,
    shared_part=1.44,
    sharpness=4.02,
    line=0.165,
    across=0.24,
    random=0.108,
    in_place=0.0685,
    store_rate=6.62e04,
    store_overlap=1.96,
    overlap=4.5,
)
_STEADY: Final = Constants(
    serial_us=0.00189,
    fork_share=1.07,
    fork_each_us=0.359,
    again=0.632,
    barrier_each_us=0.344,
    own_bytes=5.41e05,
    own_rate=3.95e05,
    cache_share=1.58,
    copy_share=0.747,
    shared_part=1.47,
    sharpness=3.3,
    line=0.0587,
    across=0.231,
    random=0.084,
    in_place=0.088,
    store_rate=2.14e05,
    store_overlap=1,
    overlap=2.17,
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
    # Of all tables: what memory does is the processor's own, whatever compiled for it.
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
