"""Where memory goes that a program frees, on a CPU: to the next tensor, or back to the system.

The C library decides by thresholds that follow what a process has freed before. A process that
measures has freed so much that everything stays; one that runs a single graph gives most of it
back with each call, and takes a page fault for each 4 KiB when a tensor is made anew, which may
cost more than what is computed on it. A schedule that stores values instead of computing them again
can thus win in the one and lose in the other. Works on glibc alone; times nothing itself.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fusewise.compiler.measuring.peak import allocated
from fusewise.compiler.measuring.runs import CpuRun
from fusewise.search.gate import MARGIN
from fusewise.search.interleave import ratios
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
#: Microseconds of a page fault at the least, and the part of a program's time that they matter
#: from.
_FAULT_US, _MATTERS = 0.25, 0.002


def worse_of_both(
    runs: Sequence[CpuRun],
    times: Sequence[list[float]],
    sound: Sequence[bool],
    time_again: Callable[[Sequence[CpuRun]], list[list[float]]],
) -> list[list[float]]:
    """The times, of what would win those where freed memory goes back if they are worse.

    Args:
        runs: the programs, the default first.
        times: of each in each round, taken while memory stayed.
        sound: which may win.
        time_again: takes times of some of the programs, the default first.

    Returns:
        One list for each program. Times that were taken anew are brought to the default's of
        before: what counts is the ratio within a round.
    """
    rivals = [
        i
        for i in range(1, len(runs))
        if sound[i] and summary(ratios(times[i], times[0])).median < 1 - MARGIN
    ]
    found = list(times)
    if not rivals or _glibc() is None:
        return found
    asked = [0, *rivals]

    def matters() -> bool:
        return any(
            _faults(runs[i]) * _FAULT_US > _MATTERS * 1e6 * summary(times[i]).median for i in asked
        )

    if not matters():
        return found
    with _giving_back([runs[i] for i in asked]):
        again = time_again([runs[i] for i in asked])
    worse = {
        i: fresh
        for i, fresh in ((i, ratios(t, again[0])) for i, t in zip(rivals, again[1:], strict=True))
        if summary(fresh).median > summary(ratios(times[i], times[0])).median
    }
    if worse and _goes_back([runs[i] for i in asked]):
        for i, fresh in worse.items():
            found[i] = [ratio * own for ratio, own in zip(fresh, times[0], strict=False)]
    return found


def _goes_back(runs: Sequence[CpuRun]) -> bool:
    """Whether one of the programs frees so much that a process of its own would not keep it.

    The C library keeps twice as much as the largest tensor that it ever had to free.
    """
    each = [allocated(run.once) for run in runs]
    return any(one.most > 2 * max(_INITIAL, *(e.largest for e in each)) for one in each)


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
