"""The calls of a program and the passes over them: which are whose, and which need no other pass.

Times nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from fusewise.compiler.collecting.work import Call
from fusewise.compiler.measuring.sampling import CallTimes, undisturbed

#: Passes of a call in which nothing was in its way, which are enough.
_FREE_PASSES = 2
#: So many of the fastest of these have to be alike where that is asked for, and how many passes
#: are enough whether they are or not.
_ALIKE_PASSES, _ENOUGH_PASSES = 3, 9


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


def lacking(passes: Sequence[Sequence[CallTimes]], alike: float = math.inf) -> bool:
    """Whether some call of a program needs another pass.

    Args:
        passes: the calls in their order, of each pass.
        alike: how much longer than the fastest the third fastest pass may take, relative.
    """
    return bool(passes) and not all(
        _is_known(passes, place, alike) for place in range(len(passes[0]))
    )


def known(
    passes: Sequence[Sequence[CallTimes]], alike: float = math.inf
) -> frozenset[tuple[str, int]]:
    """Calls that need no further pass, by kernel name and occurrence; ``alike`` as above."""
    return frozenset(
        occurrence
        for place, occurrence in enumerate(_occurrences([call.kernel for call in passes[0]]))
        if _is_known(passes, place, alike)
    )


def _is_known(passes: Sequence[Sequence[CallTimes]], place: int, alike: float) -> bool:
    """Whether one of the calls needs no further pass: it has enough, or cannot be timed."""
    timed = [calls[place] for calls in passes if place < len(calls) and calls[place].samples]
    free = [call for call in timed if not call.disturbed]
    if not timed or len(free) >= _ENOUGH_PASSES:
        return True
    if len(free) < min(_FREE_PASSES, len(passes)):
        return False
    took = sorted(statistics.median(undisturbed(call.samples)) for call in free)
    wanted = min(_ALIKE_PASSES, len(passes))
    return math.isinf(alike) or (len(took) >= wanted and took[wanted - 1] <= took[0] * (1 + alike))


def _occurrences(kernels: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each call by the name of its kernel and how many of that name were before it."""
    seen: Counter[str] = Counter()
    for kernel in kernels:
        yield kernel, seen[kernel]
        seen[kernel] += 1
