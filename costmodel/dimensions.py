"""The dimensions that a group's Triton kernel has, told from its loops and accesses alone.

The rules are those of ``SIMDScheduling.compute_tiling_strategy`` and, for the loops that all nodes
can be cut to, of ``NodeSplitGetter`` in torch/_inductor/tiling_utils.py. Nothing here is of the
CPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from fusewise.costmodel.layout import Layout

#: From here a reduction without a hint is taken for an inner one (``INNER_REDUCTION_RATIO...``).
_INNER_RATIO: Final = 8


class Mover(NamedTuple):
    """An access of a kernel that moves data, and the loops it is under."""

    layout: Layout
    #: Turns of all loops of its node.
    total: int
    bytes: int
    written: bool
    #: Whether its sectors were fetched for another access.
    near: bool
    #: Whether an earlier pass of the kernel has read it.
    again: bool = False

    @property
    def part(self) -> float:
        """Part of the turns in which it moves something.

        Of the pieces of a concatenation a place has one: the others reach beyond their buffers
        there, and are masked.
        """
        layout = self.layout
        if layout.held < 1.0:
            return layout.held
        if layout.looked_up or not all(layout.steps):
            return 1.0
        elements = max(self.bytes / layout.itemsize, 1.0)
        reach = 1 + sum(step * (n - 1) for n, step in zip(layout.loops, layout.steps, strict=True))
        return min(elements / self.total, 1.0) if reach > elements else 1.0


class Shape(NamedTuple):
    """Loops of a node as the compiler sees them: outside its reduction, and of it."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]


def _splits(loops: Sequence[int], groups: Sequence[int]) -> bool:
    """Whether ``loops`` can be cut to ``groups``, each in two at the most
    (``SIMDKernel._split_iteration_ranges``)."""
    left = list(groups)
    at = 0
    for extent in loops:
        while at < len(left) and left[at] == 1:
            at += 1
        if at >= len(left):
            return extent == 1
        if at + 1 < len(left) and extent > left[at]:
            if extent % left[at]:
                return False
            rest = extent // left[at]
            left[at] = 1
            if left[at + 1] % rest:
                return False
            left[at + 1] //= rest
        elif left[at] % extent:
            return False
        else:
            left[at] //= extent
    return True


def _common(shapes: Sequence[Shape], rows: int, length: int) -> tuple[int, ...]:
    """Loops outside the reduction that those of all nodes can be cut to (``NodeSplitGetter``)."""
    options: dict[int, dict[tuple[int, ...], None]] = {}
    every: dict[tuple[int, ...], None] = {}
    for shape in reversed(shapes):
        loops: tuple[int, ...] | None = shape.outer
        if math.prod(shape.outer) != rows and not shape.inner:
            product, first = 1, len(shape.outer)
            while first and product < length:
                first -= 1
                product *= shape.outer[first]
            every[shape.outer] = None
            loops = shape.outer[:first] if product == length else None
        else:
            every[shape.outer] = None
        if loops is not None:
            options.setdefault(len(loops), {})[loops] = None
    if not options:
        return (rows,)
    if len(every) == 1:
        return next(iter(every))
    seen = set()
    for count in range(max(options), 0, -1):
        for loops in list(options.get(count, ())):
            if loops in seen:
                continue
            seen.add(loops)
            whole = (*loops, length) if length > 1 else loops
            if all(
                _splits(one, whole if math.prod(one) != rows or length == 1 else loops)
                for one in every
            ):
                return loops
        for loops in list(options.get(count, ())):
            for i in range(count - 1):
                joined = (*loops[:i], loops[i] * loops[i + 1], *loops[i + 2 :])
                options.setdefault(len(joined), {})[joined] = None
    return (rows,)


class Dimensions(NamedTuple):
    """The dimensions of a kernel."""

    #: Outside the reduction, the inner first.
    extents: tuple[int, ...]
    #: How much memory lies along each of these, and along the reduction behind them.
    shares: tuple[float, ...]
    #: Whether memory lies along the reduction.
    inner: bool


def dimensions_of(
    rows: int, length: int, movers: Sequence[Mover], shapes: Sequence[Shape]
) -> Dimensions:
    """The dimensions of a kernel of ``rows`` results that reduces ``length`` values to each.

    They are split where accesses lie along an outer loop, as far as that pays by Inductor's score.
    """
    bounds = {1}
    product = 1
    for extent in reversed(_common(shapes, rows, length)):
        product *= extent
        bounds.add(product)
    at: dict[int, float] = {}
    along = far = 0.0
    for m in movers:
        layout = m.layout
        weight = float(m.bytes) * (2 if m.written else 1)
        if layout.looked_up or layout.hidden or not layout.inside:
            far += weight
            continue
        inside = layout.inside
        if m.total > rows and length > 1:
            if inside < length:
                along += weight if inside == 1 else 0.0
                continue
            inside //= length
        # Loops that are taken for one are looked at as if they turned together.
        if inside in bounds and _alone(layout, bounds, inside, length if m.total > rows else 1):
            at[inside] = at.get(inside, 0.0) + weight
        else:
            far += weight
    inner = along >= _INNER_RATIO * max(at.get(1, 0.0), 1.0)
    outer = sorted(s for s in at if 1 < s < rows)
    splits: list[tuple[int, ...]] = [(), *((s,) for s in outer)]
    if length == 1:
        splits += combinations(outer, 2)

    def shares(split: tuple[int, ...]) -> list[float]:
        ends = pairwise((1, *split, rows))
        return [at.get(low, 0.0) * min(high // low, 8) / 8 for low, high in ends]

    def score(split: tuple[int, ...]) -> float:
        total = sum(shares(split)) + (along if length > 1 else 0.0)
        factor = 1.0 if length == 1 else _penalty(length)
        for low, high in pairwise((1, *split, rows)):
            factor *= _penalty(high // low)
        return (total + 0.05 * far) / factor

    best = max(splits, key=score) if len(splits) > 1 else ()
    return Dimensions(
        extents=tuple(high // low for low, high in pairwise((1, *best, rows))),
        shares=(*shares(best), along * min(length, 8) / 8),
        inner=inner,
    )


def _penalty(size: int) -> float:
    return 1.005 if size >= 32 and size % 32 == 0 else 1.025  # noqa: PLR2004


def _alone(layout: Layout, bounds: Collection[int], inside: int, length: int) -> bool:
    """Whether no loop that is taken for one with that of step 1 moves the access as well.

    Loops that go through memory as one are one.
    """
    product, follows = 1, 0
    for extent, step in zip(reversed(layout.loops), reversed(layout.steps), strict=True):
        if follows and step != follows:
            if product // length in bounds:
                return True
            if step:
                return False
        elif follows or (product // length == inside and step == 1):
            follows = step * extent
        product *= extent
    return True
