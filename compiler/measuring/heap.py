"""Where memory goes that a program frees, on a CPU: to the next tensor, or back to the system.

The C library decides by thresholds that follow what a process has freed before. A process that
measures has freed so much that everything stays; one that runs a single graph gives most of it
back with each call, and takes a page fault for each 4 KiB when a tensor is made anew, which may
cost more than what is computed on it. A schedule that stores values instead of computing them again
can thus win in the one and lose in the other, and one that needs fewer gain nothing in the one and
a tenth in the other. A copy of the process that compiles knows how that stands. Works on glibc
alone; times nothing itself.
"""

from __future__ import annotations

import ctypes
import functools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from fusewise.compiler.measuring.peak import allocated
from fusewise.compiler.measuring.runs import CpuRun
from fusewise.search.interleave import plainly_faster, ratios
from fusewise.search.samples import summary

if sys.platform != "win32":
    import resource

#: Parameters of ``mallopt``: free memory at the end of the heap beyond which it goes back, and
#: sizes from which on a tensor is not taken from the heap.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest that either takes; the C library's own ends there, too.
_MOST_TRIM, _MOST_MMAP = 2**31 - 1, 32 << 20
#: What a process keeps that has freed nothing yet.
_INITIAL = 128 << 10
#: Bytes from which on the process that this one is a copy of took tensors from elsewhere than the
#: heap, when it was copied: the heap keeps twice as much.
_noted = 0
#: Pieces of memory, and the elements of fp32 in each, that make tensors lie elsewhere.
_SPACERS, _LEAST_SPACER, _MOST_SPACER = 8, 64, 1 << 16
#: Ratio to the default's time below which a program is no slower.
_NO_SLOWER = 1.003
#: Microseconds of a page fault at the least, and the part of a program's time that they matter
#: from.
_FAULT_US, _MATTERS = 0.25, 0.002


def under_both(
    runs: Sequence[CpuRun],
    times: Sequence[list[float]],
    sound: Sequence[bool],
    time_again: Callable[[Sequence[CpuRun]], list[list[float]]],
) -> list[list[float]]:
    """The times, as they are both where freed memory stays and where it goes back.

    Programs that are no slower than the default in either count by the mean of both, others by
    what they take where memory goes back: what a process that grows comes to cannot be told.

    Args:
        runs: the programs, the default first.
        times: of each in each round, taken while memory stayed.
        sound: which may win.
        time_again: takes times of some of the programs, the default first.

    Returns:
        One list for each program. Those that were timed anew are brought to the default's times of
        before: what counts is the ratio within a round.
    """
    found = list(times)
    before = {i: ratios(times[i], times[0]) for i in range(1, len(runs)) if sound[i]}
    rivals = [i for i, kept in before.items() if _may_be_taken(kept)]
    if not rivals or _glibc() is None:
        return found
    asked = [runs[i] for i in (0, *rivals)]
    us = [1e6 * summary(times[i]).median for i in (0, *rivals)]
    if not _matters(asked, us) or not _goes_back(asked):
        return found
    with _giving_back(asked):
        again = time_again(asked)
    for i, samples in zip(rivals, again[1:], strict=True):
        counts = ratios(samples, again[0])
        if summary(counts).median < _NO_SLOWER:
            counts = [(a + b) / 2 for a, b in zip(before[i], counts, strict=False)]
        found[i] = [ratio * own for ratio, own in zip(counts, times[0], strict=False)]
    return found


def _may_be_taken(kept: Sequence[float]) -> bool:
    """Whether ratios to the default's time are no worse than 1, and enough to say anything."""
    found = summary(kept)
    return found.median < _NO_SLOWER and (math.isfinite(found.high) or plainly_faster(kept))


def _matters(runs: Sequence[CpuRun], us: Sequence[float]) -> bool:
    """Whether memory that goes back is anything beside the times of some of the programs."""
    return any(
        _faults(run) * _FAULT_US > _MATTERS * time for run, time in zip(runs, us, strict=True)
    )


def _goes_back(runs: Sequence[CpuRun]) -> bool:
    """Whether one of the programs frees so much that a process of its own would not keep it.

    The C library keeps twice as much as the largest tensor that it ever had to free.
    """
    each = [allocated(run.once) for run in runs]
    return any(one.most > 2 * max(_INITIAL, _noted, *(e.largest for e in each)) for one in each)


@contextmanager
def _giving_back(runs: Sequence[CpuRun]) -> Iterator[None]:
    """Have all free memory go back before each call of the programs."""
    for run in runs:
        run.before_each = _give_back
    try:
        yield
    finally:
        for run in runs:
            run.before_each = None


def keep_freed() -> None:
    """Have the process keep what it frees, but for what is too large for its heap."""
    library = _glibc()
    if library is not None:
        library.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP)
        library.mallopt(_M_TRIM_THRESHOLD, _MOST_TRIM)


@contextmanager
def lying_elsewhere() -> Iterator[None]:
    """Have new tensors lie elsewhere each time, between pieces of memory of random sizes.

    Where they lie decides which places of a cache they want, and by up to a fifth how long a
    kernel takes. Every other piece is let go at once: there is room for smaller tensors. In a heap
    with much room left, some of these stay where they were.
    """
    sizes = [random.randint(_LEAST_SPACER, _MOST_SPACER) for _ in range(_SPACERS)]
    pieces = [torch.empty(size) for size in sizes]
    del pieces[::2]
    yield


def note_threshold() -> None:
    """Note what this process's heap keeps by now. For copies, before anything is done in them."""
    global _noted  # noqa: PLW0603
    library = _glibc()
    if library is not None and hasattr(library, "mallinfo2"):
        _noted = _mmap_threshold(library)


def _mmap_threshold(library: ctypes.CDLL) -> int:
    """Power of two below the size from which on memory is not taken from the heap.

    What is free in the heap by now counts as kept, as it is.
    """
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.restype, library.free.argtypes = None, (ctypes.c_void_p,)
    library.mallinfo2.restype = _MallInfo
    size = _INITIAL
    while size < _MOST_MMAP:
        before = library.mallinfo2().hblks
        block = library.malloc(size)
        apart = library.mallinfo2().hblks > before
        library.free(block)
        if apart:
            return size // 2
        size *= 2
    return _MOST_MMAP


class _MallInfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` tells; ``hblks`` are regions outside of the heap."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 6),
    )


def _give_back() -> None:
    library = _glibc()
    assert library is not None
    library.malloc_trim(0)


def _faults(run: CpuRun) -> int:
    """Page faults of a call that finds no memory kept."""
    run.once()
    _give_back()
    before = _page_faults()
    run.once()
    return _page_faults() - before


def _page_faults() -> int:
    return 0 if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is the one whose allocator this knows."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
