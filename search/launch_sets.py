"""Which small kernels of a plan might share launches.

Whether that pays is for others to measure or to predict.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fusewise.costmodel.launches import depths, heights, unmixed, way
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.search.planned_kernel import PlannedKernel

_Sets = list[list[PlannedKernel]]


def launch_sets(
    problem: Problem,
    plan: Plan,
    small: Sequence[PlannedKernel],
    most: int,
    *,
    sure: bool,
    cache_bytes: float,
) -> _Sets:
    """Sets of two kernels and more, each for one launch.

    Kernels of a set are as deep in the graph as each other, or all of a plan's sets are of kernels
    of one height, whichever saves more: none of a set needs another, and no two sets need each
    other. Kernels that go along memory in two directions stay by themselves, sums of columns among
    their like.

    Args:
        problem: that the plan is for.
        plan: of the kernels.
        small: kernels that a common launch counts for.
        most: kernels in one launch.
        sure: leave out what is no better for sure, for what is not going to be timed: sums of
            columns, and kernels that wait for others of their height.
        cache_bytes: what kernels that wait for others read together, at most, so that it is in the
            cache still.
    """
    ways = [
        way(problem, names) if free else None
        for names, free in zip(plan.groups, unmixed(problem, plan), strict=True)
    ]
    if sure:
        straight = [along if along == "" else None for along in ways]
        return _sets(plan, small, straight, depths(problem, plan), most)
    early = _sets(plan, small, ways, depths(problem, plan), most)
    late = _sets(plan, small, ways, heights(problem, plan), most, cache_bytes)
    return max(early, late, key=_saved)


def _saved(sets: _Sets) -> int:
    """Launches fewer."""
    return sum(len(kernels) - 1 for kernels in sets)


def _sets(
    plan: Plan,
    small: Sequence[PlannedKernel],
    ways: Sequence[str | None],
    levels: Sequence[int],
    most: int,
    most_bytes: float = math.inf,
) -> _Sets:
    """Sets of kernels of one level and one way each; None of ``ways`` is for kernels left out."""
    by_first = {kernel.names[0]: kernel for kernel in small}
    families: dict[object, list[PlannedKernel]] = defaultdict(list)
    for names, along, level in zip(plan.groups, ways, levels, strict=True):
        kernel = by_first.get(names[0])
        if kernel is not None and along is not None:
            families[(level, along, *kernel.family)].append(kernel)
    sets = []
    for members in families.values():
        # Kernels of like size keep each other busy; equal ones are neighbours.
        members.sort(key=lambda k: (k.iterations, k.signature))
        sets += [part for part in _parted(members, most, most_bytes) if len(part) > 1]
    return sets


def _parted(kernels: Iterable[PlannedKernel], most: int, most_bytes: float) -> _Sets:
    """Kernels in parts of ``most``, and of so many bytes that they read, in their order."""
    parts: _Sets = []
    read = 0
    for kernel in kernels:
        read += kernel.read_bytes
        if not parts or len(parts[-1]) == most or read > most_bytes:
            parts.append([])
            read = kernel.read_bytes
        parts[-1].append(kernel)
    return parts
