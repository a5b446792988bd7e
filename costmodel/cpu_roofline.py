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
    #: What a thread stores in a microsecond at most, and the exponent at which that and what it
    #: moves add up.
    store_rate: float
    store_overlap: float
    #: Exponent at which memory and arithmetic add up: 1 would be one after the other.
    overlap: float


_NARROW: Final = Constants(
    serial_us=0.00331,
    fork_share=0.724,
    fork_each_us=0.335,
    barrier_each_us=0.177,
    own_bytes=1.10e6,
    own_rate=1.14e5,
    cache_share=0.79,
    copy_share=3.37,
    shared_part=0.0434,
    sharpness=1.78,
    line=0.345,
    across=1.39,
    random=0.388,
    in_place=0.335,
    store_rate=8.38e4,
    store_overlap=4.23,
    overlap=6.01,
)
_WIDE: Final = Constants(
    serial_us=0.00192,
    fork_share=1.06,
    fork_each_us=0.326,
    barrier_each_us=0.0926,
    own_bytes=1.83e6,
    own_rate=2.04e5,
    cache_share=0.764,
    copy_share=1.97,
    shared_part=0.0846,
    sharpness=2.48,
    line=0.392,
    across=0.407,
    random=0.976,
    in_place=0.361,
    store_rate=1.12e5,
    store_overlap=4.88,
    overlap=4.0,
)
_SWIFT: Final = Constants(
    serial_us=0.00283,
    fork_share=0.41,
    fork_each_us=0.188,
    barrier_each_us=0.203,
    own_bytes=6.81e5,
    own_rate=5.41e5,
    cache_share=0.88,
    copy_share=0.98,
    shared_part=1.86,
    sharpness=2.3,
    line=0.33,
    across=0.458,
    random=0.114,
    in_place=0.0975,
    store_rate=2.38e5,
    store_overlap=4.48,
    overlap=2.65,
)
_KEEN: Final = Constants(
    serial_us=0.00123,
    fork_share=0.655,
    fork_each_us=0.3,
    barrier_each_us=0.261,
    own_bytes=2.27e6,
    own_rate=3.28e5,
    cache_share=0.967,
    copy_share=1.04,
    shared_part=1.44,
    sharpness=2.84,
    line=0.239,
    across=0.202,
    random=0.148,
    in_place=0.232,
    store_rate=1.51e5,
    store_overlap=3.88,
    overlap=3.82,
)
_STEADY: Final = Constants(
    serial_us=0.00265,
    fork_share=0.589,
    fork_each_us=0.198,
    barrier_each_us=0.524,
    own_bytes=6.21e05,
    own_rate=2.6e05,
    cache_share=2.44,
    copy_share=0.842,
    shared_part=1.6,
    sharpness=3.08,
    line=0.0756,
    across=0.196,
    random=0.114,
    in_place=0.305,
    store_rate=1.62e05,
    store_overlap=1.44,
    overlap=0.941,
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
