"""The calls of a program and the passes over them: which are whose, and which need no other pass.

Times nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fusewise.compiler.collecting.work import Call
from fusewise.compiler.measuring.sampling import CallTimes

#: Passes of a call in which nothing was in its way, which are enough.
_FREE_PASSES = 2


def match(calls: Sequence[Call], times: Sequence[CallTimes]) -> Iterator[tuple[Call, CallTimes]]:
    """Pair the calls of a program with what was timed, each kind in its order.

    Where the two do not agree on what was called, nothing of that kind is given: a time under the
    wrong name is worse than none.
    """
    kernels = [call for call in calls if call.kind == "kernel"]
    timed = [time for time in times if time.kernel]
    if [call.kernel for call in kernels] == [time.kernel for time in timed]:
        yield from zip(kernels, timed, strict=True)
    externs = [call for call in calls if call.kind == "extern"]
    extern_times = [time for time in times if not time.kernel]
    if len(externs) == len(extern_times):
        yield from zip(externs, extern_times, strict=True)


def skipped(calls: Sequence[Call]) -> frozenset[tuple[str, int]]:
    """Calls that are not to be timed, by kernel name and occurrence."""
    occurrences = _occurrences([call.kernel for call in calls])
    return frozenset(o for call, o in zip(calls, occurrences, strict=True) if not call.wanted)


def _free_passes(passes: Sequence[Sequence[CallTimes]], place: int) -> int:
    """Passes in which nothing was in the way of one of the calls; 0 where it has no samples."""
    of_it = [calls[place] for calls in passes if place < len(calls)]
    return sum(bool(call.samples) and not call.disturbed for call in of_it)


def _is_known(passes: Sequence[Sequence[CallTimes]], place: int) -> bool:
    """Whether one of the calls needs no further pass: it has enough, or cannot be timed."""
    free = _free_passes(passes, place)
    was_timed = any(place < len(calls) and calls[place].samples for calls in passes)
    return free >= min(_FREE_PASSES, len(passes)) or not was_timed


def lacking(passes: Sequence[Sequence[CallTimes]]) -> bool:
    """Whether some call of a program was in too many passes disturbed."""
    return bool(passes) and not all(_is_known(passes, place) for place in range(len(passes[0])))


def known(passes: Sequence[Sequence[CallTimes]]) -> frozenset[tuple[str, int]]:
    """Calls that need no further pass, by kernel name and occurrence."""
    return frozenset(
        occurrence
        for place, occurrence in enumerate(_occurrences([call.kernel for call in passes[0]]))
        if _is_known(passes, place)
    )


def _occurrences(kernels: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each call by the name of its kernel and how many of that name were before it."""
    seen: Counter[str] = Counter()
    for kernel in kernels:
        yield kernel, seen[kernel]
        seen[kernel] += 1
