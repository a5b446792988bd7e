"""The analytic time of a Triton kernel: what its blocks move and compute, and what they wait for.

Part of the roofline. Constants fit the kernels of the H200 dataset's training families best. It
never learns anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from fusewise.costmodel.device import TENSOR_CORES
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.layout import LINE_BYTES
from fusewise.costmodel.roofline_parts import RooflineParts
from fusewise.costmodel.touches import DISTINCT

#: Cost of one operation of each class in fp32 additions (half a fused multiply-add each); what is
#: written out again is counted once. Transcendentals have a measured rate.
_ADDITIONS: Final = {
    "arithmetic": 0.628,
    "division": 5.81,
    "selection": 0.484,
    "indexing": 0.564,
    "conversion": 0.791,
    "random": 48.9,
    "reducing": 4.90,
    "address": 3.65,
    "combined": 0.903,
    "means": 5.64,
}
#: The same for reductions that keep several values, on a CUDA device: in a loop each step puts
#: them together anew, where rows are held whole it is one reduction after the other.
_LOOPED: Final = {"welford": (8.89, 0.00267), "online_softmax": (26.7, 14.1)}
#: What more it takes to put such values of two threads together than those of a sum.
_COMBINED: Final = {"welford": 2.46, "online_softmax": 8.93}
#: Part of the cache's copy bandwidth that CUDA kernels reach, and of the memory's.
_CACHE_SHARE, _MEMORY_SHARE = 0.87, 1.17
#: Part of the cache that holds what is read again, run after run, and how suddenly it no longer
#: does where there is more: what is read in turns throws out what comes next.
_KEPT, _SUDDEN = 0.72, 13
#: Time of a byte written to memory over that of one read.
_WRITTEN: Final = 1.12
#: Time of a byte read from the cache, and of one written to it, over that of its copy; reads and
#: writes go side by side: exponent of the norm that they are put together by.
_CACHE_READ, _CACHE_WRITTEN, _CACHE_NORM = 1.02, 1.76, 2.41
#: Part of the sectors beyond the distinct bytes that comes from beyond a multiprocessor.
_SECTOR_SHARE: Final = 0.0304
#: A line of which a warp reads sectors, and one of which it stores some.
_READ_REQUEST_US, _STORE_REQUEST_US = 6.98e-06, 1.28e-05
#: What is not used of the lines that data lie in: part of it that takes room in the cache, and
#: that memory moves.
_UNUSED_ROOM, _UNUSED = 0.616, 0.0619
#: What memory moves for each byte that is not stored of the sectors that are, and part of the room
#: between them that these are at most: of sectors that lie beside one another all is stored.
_PARTLY, _APART = 5.5, 0.25
#: Time of a sector that blocks touch over that of its bytes in a copy within the cache.
_TOUCHED_SHARE: Final = 0.308
#: Random reads of compiled kernels over those of the eager operation that was probed, and the
#: shares of the device's bandwidths that a single multiprocessor can draw.
_GATHER_GAIN: Final = 5.92
_DRAWS: Final = 0.908
#: Time of an exponential in a CUDA kernel over that of the eager operation that was probed.
_EXPONENTIAL_SHARE: Final = 0.201
#: Cache lines that a multiprocessor looks up in a microsecond.
_LINES_US: Final = 1200.0
#: Lanes beyond the ends of rows that are reduced compute like the others: the power of all lanes
#: over those within.
_PADDED: Final = 0.85
#: Exponents of the norms that memory and arithmetic, and these and waiting, are put together by,
#: since they do not quite overlap: a large one would take the greater of the two, 1 their sum.
_NORM, _WAITING_NORM = 3.88, 1.46
#: The same for waiting in a loop over rows that are summed across: little else is done meanwhile.
_WAITING_ACROSS: Final = 1.1
#: Microseconds from one block of a multiprocessor to the next: no more are begun, however little
#: each of them does.
_BLOCK_US: Final = 0.076
#: Microseconds until what a wave of blocks loads has arrived, and where it is reduced, which all of
#: a block's threads wait for; what the next turn of a loop waits for, and more for each doubling of
#: what is read beyond a megabyte, for each load but the first, where the end of rows is masked, and
#: for each operation of a thread.
_WAVE_US, _REDUCED_WAVE_US = 0.144, 0.188
_TURN_US, _FAR_US, _LOADED_US = 0.158, 0.0058, 0.033
_MASKED_US, _OPERATION_US = 0.00024, 0.00099
#: Turns of a short loop without masks that are in flight at once, as the compiler unrolls it; the
#: most operations of a thread in one, and the most that it loads for a single reduction.
_UNROLLED, _SHORT = 14.0, 8.04
_FEW_LOADS: Final = 2
#: A load or store that a warp of a multiprocessor issues in a loop over what is reduced, what more
#: it takes where a mask guards each, and one where rows are held whole.
_ISSUED_US, _GUARDED_US, _HELD_US = 1.34e-3, 6.7e-4, 3.4e-4
#: One more than what is moved takes by whole vectors, where rows are held and where nothing is
#: reduced; and the bytes that a warp has in these.
_HELD_SINGLY_US, _SINGLY_US, _WARP_BYTES = 3.5e-3, 4e-4, 512
#: A step in which threads put their results together, and one of means with variances in a loop.
_STEP_US, _WELFORD_STEP_US = 0.00849, 0.0238
#: A round of a warp's atomic updates in a sector, and what more it takes of memory; a round of
#: those of one line, which come one after the other; exponent of the norm of both.
_UPDATE_US, _FAR_UPDATE_US, _CROWD_US, _UPDATING_NORM = 1.15e-05, 1.8e-05, 1.5e-03, 1.8
#: Part of the cache that updated elements stay in, and how suddenly they no longer do.
_UPDATED, _UPDATED_SUDDEN = 1.15, 4
#: An attempt to swap in an element that is narrower than 4 bytes: of all, and of those of a line.
_HALF_US, _HALF_CROWD_US = 1.5e-05, 1.85e-04


def cuda_parts(
    amount: Callable[[str], FloatArray], rate: Callable[[str], FloatArray]
) -> RooflineParts:
    """What the time of each kernel is made of.

    Args:
        amount: a feature [n] as a plain number.
        rate: a rate of the device [n], for a microsecond.
    """
    copy = rate("device_copy")
    cache = np.maximum(rate("device_cache"), copy)
    spread = np.maximum(amount("device_cores"), 1.0)
    n = len(spread)
    # Finished kernels spread their work themselves, their nodes have no loops to judge by.
    finished = amount("other_nodes") > 0
    filled = np.where(finished, 1.0, np.clip(amount("programs") / spread, 1.0 / spread, 1.0))
    drawn = np.minimum(_DRAWS * filled, 1.0)

    read = sum((amount(name) for name in DISTINCT if name.startswith("read")), np.zeros(n))
    written = sum((amount(name) for name in DISTINCT if name.startswith("written")), np.zeros(n))
    moved = _moving(amount, read, written, copy, cache)
    moved += amount("random_bytes") / (rate("device_gather") * _GATHER_GAIN)
    sectors = amount("sector_bytes")
    lines = np.maximum(amount("wavefronts"), amount("lines")) / _LINES_US / (spread * filled)
    stored = amount("stored_sectors") / np.maximum(sectors, 1.0)
    request = (1.0 - stored) * _READ_REQUEST_US + stored * _STORE_REQUEST_US
    asked = np.maximum(sectors * _TOUCHED_SHARE / cache, amount("requests") * request)
    begun = np.where(finished, 0.0, amount("programs") * _BLOCK_US / spread)
    updates = _updating(amount)
    memory = np.maximum.reduce((moved / drawn, asked / drawn, lines, begun, updates))

    additions = rate("device_flops") / 2.0
    work = sum((each * amount(name) for name, each in _ADDITIONS.items()), np.zeros(n))
    held = np.clip(amount("persistent"), 0.0, 1.0)
    for name, (looped, whole) in _LOOPED.items():
        work += (looped * (1.0 - held) + whole * held) * amount(name)
        put_together = (amount(name) > 0) * (1.0 - held) * amount("combined")
        work += _COMBINED[name] * put_together
    # Eight-byte lanes are half as many.
    work *= 1.0 + amount("wide")
    beyond = np.where(amount("reductions") > 0, amount("padding"), 0.0)
    lanes = (1.0 + beyond) ** _PADDED
    exponentials = amount("transcendental") / rate("device_transcendental")
    operations = lanes * work / additions / filled
    functions = lanes * exponentials * _EXPONENTIAL_SHARE / filled
    matrices = 1.0 + (TENSOR_CORES - 1.0) * amount("half")
    arithmetic = operations + functions + amount("flops") / (2.0 * additions * matrices)

    more = np.maximum(memory, arithmetic)
    body = _together(memory, arithmetic, _NORM)
    waits = _waiting(amount, read + written) + _issuing(amount) / (spread * filled)
    across = (amount("outer_reductions") > 0) & (amount("persistent") == 0)
    overlap = np.where(across, _WAITING_ACROSS, _WAITING_NORM)
    apart = _together(body, waits, overlap) - more
    launch = amount("device_launch")
    return RooflineParts(
        launch=launch,
        memory=memory,
        arithmetic=arithmetic,
        waiting=apart,
        terms={
            "launch": launch,
            "bytes": moved / drawn,
            "sectors": asked / drawn,
            "lookups": lines,
            "blocks": begun,
            "updates": updates,
            "operations": operations,
            "functions": functions,
            "waits": waits,
        },
    )


def _moving(
    amount: Callable[[str], FloatArray],
    read: FloatArray,
    written: FloatArray,
    copy: FloatArray,
    cache: FloatArray,
) -> FloatArray:
    """Microseconds that ``read`` and ``written`` bytes take where all multiprocessors move them.

    ``copy`` and ``cache`` are the bytes of a microsecond to and from memory, and in the cache.
    """
    distinct = read + written
    # What is written where it was read takes no other room; what is read again does.
    room = np.maximum(distinct - amount("in_place"), 0.0) + amount("cached")
    # A line has its room however little of it is used, and memory gives more than that little.
    unused = np.maximum(amount("spread") - distinct, 0.0)
    room += unused * _UNUSED_ROOM
    beyond = room / np.maximum(_KEPT * amount("device_cache_bytes"), 1.0)
    kept = 1.0 / (1.0 + beyond**_SUDDEN)
    near = _together(_CACHE_READ * read, _CACHE_WRITTEN * written, _CACHE_NORM) / cache
    # Where a part of a sector is stored, memory reads and writes more than that.
    partly = np.maximum(amount("stored_sectors") - written, 0.0)
    partly = _PARTLY * np.minimum(partly, _APART * unused)
    far = (read + partly + _WRITTEN * written + _UNUSED * unused) / np.minimum(
        copy * _MEMORY_SHARE, cache * _CACHE_SHARE
    )
    moved = kept * near + (1.0 - kept) * far
    beside = np.maximum(amount("sector_bytes") - distinct, 0.0)
    result: FloatArray = moved + beside * _SECTOR_SHARE / cache
    return result


def _together(one: FloatArray, other: FloatArray, norm: float | FloatArray) -> FloatArray:
    """Time of two things that overlap in part."""
    more, less = np.maximum(one, other), np.minimum(one, other)
    ratio = less / np.maximum(more, 1e-12)
    result: FloatArray = more * (1.0 + ratio**norm) ** (1.0 / norm)
    return result


def _waiting(amount: Callable[[str], FloatArray], distinct: FloatArray) -> FloatArray:
    """Microseconds that blocks of CUDA kernels spend waiting, one after the other."""
    waves = amount("waves")
    even = np.minimum(amount("even"), 1.0)
    operations = amount("turn_operations")
    several = amount("welford") + amount("means") + amount("online_softmax") > 0
    single = (amount("turn_loads") <= _FEW_LOADS) & (amount("distinct_reductions") <= 1)
    short = (even > 0) & single & ~several & (operations <= _SHORT)
    turn = _TURN_US + _FAR_US * np.log2(1.0 + distinct / 1e6)
    turn = np.where(short, turn / _UNROLLED, turn) + _MASKED_US * (1.0 - even)
    # Who loads nothing new waits for no memory.
    turn = np.where(amount("turn_loads") > 0, turn, 0.0)
    turn += _LOADED_US * np.maximum(amount("turn_loads") - 1.0, 0.0)
    turn += _OPERATION_US * operations
    # In a loop a block waits for what it loads before it goes on.
    wave = np.where(amount("reductions") > 0, _REDUCED_WAVE_US, _WAVE_US)
    waiting = wave * waves + np.maximum(amount("rounds") - waves, 0.0) * turn
    means = (amount("welford") + amount("means") > 0) & (amount("persistent") == 0)
    result: FloatArray = waiting + amount("combining") * np.where(means, _WELFORD_STEP_US, _STEP_US)
    return result


def _issuing(amount: Callable[[str], FloatArray]) -> FloatArray:
    """Microseconds until loads and stores are issued, if a single multiprocessor does it all.

    A thread loads one element after the other where rows begin anywhere, or several at once.
    """
    issued = amount("issued")
    singly = np.maximum(issued - amount("touched") / _WARP_BYTES, 0.0)
    guarded = np.minimum(amount("op_masked") / np.maximum(amount("loads"), 1.0), 1.0)
    looped = issued * (_ISSUED_US + _GUARDED_US * guarded)
    held = issued * _HELD_US + singly * _HELD_SINGLY_US
    reducing = np.where(amount("persistent") > 0, held, looped)
    result: FloatArray = np.where(amount("reductions") > 0, reducing, singly * _SINGLY_US)
    return result


def _updating(amount: Callable[[str], FloatArray]) -> FloatArray:
    """Microseconds that atomic updates take: all of them, those of one line, of lone halves."""
    written = amount("written_atomic")
    beyond = written / np.maximum(_UPDATED * amount("device_cache_bytes"), 1.0)
    far = 1.0 - 1.0 / (1.0 + beyond**_UPDATED_SUDDEN)
    every = amount("atomic_turns") * (_UPDATE_US + far * _FAR_UPDATE_US)
    updates = _together(every, amount("atomic_crowd") * _CROWD_US, _UPDATING_NORM)
    lines = np.maximum(written / LINE_BYTES, 1.0)
    halves = amount("atomic_halves") * np.maximum(_HALF_US, _HALF_CROWD_US / lines)
    result: FloatArray = np.maximum(updates, halves)
    return result
