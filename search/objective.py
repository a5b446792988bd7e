"""What a search is for: less time, less memory, or the best of both.

Says which candidates may take the default's place, which of them are worth keeping, and which one
is taken. Measures nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from fusewise.schedule.schedule import Candidate

Objective = Literal["time", "memory", "pareto"]
OBJECTIVES: Final[tuple[Objective, ...]] = get_args(Objective)

#: Peaks that differ by less than this, as a share, are the same: allocators round.
_SAME_PEAK: Final = 1e-3
#: Times that differ by less than this, as a share, are the same: what the gate takes for a gain.
_SAME_TIME: Final = 0.01


def figures(candidate: Candidate, objective: Objective) -> tuple[float, ...]:
    """What the objective makes small, one value or two; infinite where it is not known.

    Times are in microseconds, peaks in bytes. For ``memory`` it is bytes alone, with the time as a
    tie-break that is worth less than allocators round.
    """
    us = candidate.measured_us if candidate.measured_us is not None else candidate.predicted_us
    time = math.inf if us is None else us
    peak = math.inf if candidate.peak_bytes is None else float(candidate.peak_bytes)
    if objective == "time":
        return (time,)
    if objective == "memory":
        return (peak * (1 + _SAME_PEAK * time / (time + 1.0)) if math.isfinite(time) else peak,)
    return (time, peak)


def acceptable(
    candidate: Candidate, default: Candidate, objective: Objective, *, sound: bool
) -> bool:
    """Whether a measured candidate may take the default's place.

    For ``time`` the gate has said so: as accurate, and faster beyond noise. Otherwise it is enough
    that it is as accurate (``sound``) and needs less memory; for ``pareto``, that it is better in
    one of the two, a gain in time being one that the gate takes.
    """
    if candidate.status != "measured" or candidate.measured_us is None:
        return False
    if candidate.accepted and objective != "memory":
        return True
    return objective != "time" and sound and _leaner(candidate, default)


def _leaner(candidate: Candidate, default: Candidate) -> bool:
    if candidate.peak_bytes is None or default.peak_bytes is None:
        return False
    return candidate.peak_bytes < (1 - _SAME_PEAK) * default.peak_bytes


def front(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The measured candidates that none beats in both time and peak memory, the fastest first.

    Differences within noise count as none, so of several that are alike the first is kept.
    """
    known = [c for c in candidates if c.measured_us is not None and c.peak_bytes is not None]
    kept: list[Candidate] = []
    for candidate in sorted(known, key=lambda c: (c.measured_us, c.peak_bytes, c.schedule.id)):
        assert candidate.peak_bytes is not None
        # All that were kept before are as fast, so it has to need less than the leanest of them.
        if all(candidate.peak_bytes < (1 - _SAME_PEAK) * (k.peak_bytes or 0) for k in kept):
            kept.append(candidate)
    return tuple(kept)


def picked(
    acceptable: Sequence[Candidate], default: Candidate, objective: Objective
) -> Candidate | None:
    """The one to take of those that are :func:`acceptable`; None for the default.

    For ``time`` the fastest; for ``memory`` the leanest, of equals the fastest; for ``pareto`` the
    one with the least product of time and peak, both as shares of the default's: what is given up
    of one has to be made up for by the other.
    """
    if not acceptable:
        return None
    if objective != "pareto":
        return min(acceptable, key=lambda c: (figures(c, objective), c.schedule.id))
    best = min(acceptable, key=lambda c: (_product(c), c.schedule.id))
    return best if _product(best) < (1 - _SAME_PEAK) * _product(default) else None


def _product(candidate: Candidate) -> float:
    time, peak = figures(candidate, "pareto")
    return time * peak


def listed(
    candidates: Sequence[Candidate],
    peaks: Mapping[str, int],
    by_time: Sequence[Candidate],
    objective: Objective,
) -> list[Candidate]:
    """Candidates in the order in which they are worth measuring.

    Args:
        candidates: all of them.
        peaks: estimated peak bytes by schedule id.
        by_time: some of them, as they are worth measuring for their time.
        objective: ``time`` takes ``by_time`` as it is, ``memory`` the least peaks, ``pareto`` both
            in turn.
    """
    if objective == "time":
        return list(by_time)
    lean = sorted(
        candidates, key=lambda c: (peaks[c.schedule.id], figures(c, "time"), c.schedule.id)
    )
    if objective == "memory":
        return lean
    mixed = [c for pair in zip(by_time, lean, strict=False) for c in pair]
    return list({c.schedule: c for c in (*mixed, *by_time, *lean)}.values())
