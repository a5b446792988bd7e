"""The dimensions that a group's Triton kernel has, told from its loops and accesses alone.

The rules are those of ``SIMDScheduling.compute_tiling_strategy`` and, for the loops that all nodes
can be cut to, of ``NodeSplitGetter`` in torch/_inductor/tiling_utils.py. Nothing here is of the
CPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from typing import Final, NamedTuple

from fusewise.costmodel.layout import Layout

#: From here a reduction without a hint is taken for an inner one (``INNER_REDUCTION_RATIO...``).
_INNER_RATIO: Final = 8
#: In place of the results inside of a loop: memory lies along the reduction, or along no loop.
_ALONG, _FAR = 0, -1


@dataclass(frozen=True, eq=False)
class Mover:
    """An access of a kernel that moves data, and the loops it is under.

    Told apart by which it is; :func:`mover_of` gives the same one for equal values.
    """

    layout: Layout
    #: Turns of all loops of its node.
    total: int
    bytes: int
    written: bool
    #: Whether its sectors were fetched for another access.
    near: bool
    #: Whether an earlier pass of the kernel has read it.
    again: bool = False

    @cached_property
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


@lru_cache(maxsize=1 << 14)
def mover_of(
    layout: Layout, total: int, size: int, written: bool, near: bool, again: bool
) -> Mover:
    """The mover of these values, ``size`` in bytes."""
    return Mover(layout, total, size, written, near, again)


class Shape(NamedTuple):
    """Loops of a node as the compiler sees them: outside its reduction, and of it."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]


#: Loops outside of a reduction, and of it.
Split = tuple[tuple[int, ...], tuple[int, ...]]


def _cut(groups: Sequence[int], loops: Sequence[int]) -> list[list[int]] | None:
    """What ``loops`` are in each of ``groups``, those cut in two that reach into the next; None
    where they cannot be (``SIMDKernel._split_iteration_ranges``)."""
    left = list(groups)
    parts: list[list[int]] = [[] for _ in groups]
    at = 0
    for extent in loops:
        if extent == 1:
            continue
        while at < len(left) and left[at] == 1:
            at += 1
        if at >= len(left):
            return None
        pieces = [extent]
        if at + 1 < len(left) and extent > left[at]:
            if extent % left[at]:
                return None
            pieces = [left[at], extent // left[at]]
        for group, piece in enumerate(pieces, at):
            if left[group] % piece:
                return None
            left[group] //= piece
            parts[group].append(piece)
    return parts


class _Splitting:
    """Finds loops that those of all nodes can be cut to (``NodeSplitGetter``)."""

    def __init__(self, shapes: Iterable[Shape], rows: int, length: int) -> None:
        """``shapes``: of the nodes, the last first."""
        self._rows = rows
        self._every: dict[Split, None] = {}
        self._outer: dict[int, dict[tuple[int, ...], None]] = {}
        self._inner: dict[int, dict[tuple[int, ...], None]] = {}
        self._seen: set[tuple[int, ...]] = set()
        for shape in shapes:
            outer, inner = shape
            if not inner and math.prod(outer) != rows:
                first = _last_loops(outer, length)
                if first is None:
                    self._every[outer, ()] = None
                    continue
                outer, inner = outer[:first], outer[first:]
            if not inner and length > 1:
                inner = (length,)
            self._outer.setdefault(len(outer), {})[outer] = None
            self._inner.setdefault(len(inner), {})[inner] = None
            self._every[outer, inner] = None

    def loops(self) -> tuple[int, ...]:
        """The loops outside of the reduction."""
        if len(self._every) == 1:
            return next(iter(self._every))[0]
        if not self._outer:
            return (self._rows,)
        most, most_inner = max(self._outer), max(self._inner)
        for fewer, total in enumerate(range(most + most_inner, 0, -1)):
            for count in range(total, 0, -1):
                for outer in list(self._outer.get(count, ())):
                    for inner in list(self._inner.get(total - count, ())):
                        found = self._try(outer, inner)
                        if found is not None:
                            return found
            _join(self._outer, most - fewer)
            _join(self._inner, most_inner - fewer)
        return (self._rows,)

    def _try(self, outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[int, ...] | None:
        """``outer``, or what it must be cut to, if the loops of all nodes can be cut to it."""
        if outer in self._seen:
            return None
        self._seen.add(outer)
        for one in self._every:
            parts = _cut((*outer, *inner), (*one[0], *one[1]))
            if parts is None:
                return None
            finer = tuple(piece for part in parts[: len(outer)] for piece in part)
            if finer != outer:
                found = self._try(finer, inner)
                if found is not None:
                    return found
        return outer


def _last_loops(loops: Sequence[int], length: int) -> int | None:
    """From which loop on there are ``length`` turns of the inner ones; None where from none."""
    product = 1
    for first in range(len(loops) - 1, -1, -1):
        product *= loops[first]
        if product == length:
            return first
    return None


def _join(splits: dict[int, dict[tuple[int, ...], None]], count: int) -> None:
    """Add those of ``count`` loops with two neighbours taken for one."""
    for loops in list(splits.get(count, ())):
        for i in range(count - 1):
            joined = (*loops[:i], loops[i] * loops[i + 1], *loops[i + 2 :])
            splits.setdefault(len(joined), {})[joined] = None


class Dimensions(NamedTuple):
    """The dimensions of a kernel."""

    #: Outside the reduction, the inner first.
    extents: tuple[int, ...]
    #: How much memory lies along each of these, and along the reduction behind them.
    shares: tuple[float, ...]
    #: Whether memory lies along the reduction.
    inner: bool


@lru_cache(maxsize=1 << 12)
def _bounds(shapes: tuple[Shape, ...], rows: int, length: int) -> frozenset[int]:
    """Turns of the inner ones of the loops that those of all nodes can be cut to.

    ``shapes`` are those of the nodes, the last first, each once.
    """
    bounds = [1]
    for extent in reversed(_Splitting(shapes, rows, length).loops()):
        bounds.append(bounds[-1] * extent)
    return frozenset(bounds)


@lru_cache(maxsize=1 << 14)
def _lies(m: Mover, rows: int, length: int, bounds: frozenset[int]) -> tuple[int, float]:
    """Results inside of the loop that memory lies along in an access, and how much this counts.

    ``_ALONG`` in place of results where that is the reduction, ``_FAR`` where it is none.
    """
    layout = m.layout
    weight = float(m.bytes) * (2 if m.written else 1)
    if layout.looked_up or layout.taken < 0:
        return _FAR, weight
    inside = math.prod(layout.loops[layout.taken + 1 :])
    reduced = m.total > rows
    if reduced and length > 1:
        if inside < length:
            return _ALONG, weight if inside == 1 else 0.0
        inside //= length
    # Loops that are taken for one are looked at as if they turned together.
    if inside in bounds and _alone(layout, bounds, inside, length if reduced else 1):
        return inside, weight
    return _FAR, weight


def dimensions_of(
    rows: int, length: int, movers: Sequence[Mover], shapes: Sequence[Shape]
) -> Dimensions:
    """The dimensions of a kernel of ``rows`` results that reduces ``length`` values to each.

    They are split where accesses lie along an outer loop, as far as that pays by Inductor's score.
    """
    bounds = _bounds(tuple(dict.fromkeys(reversed(shapes))), rows, length)
    at: dict[int, float] = {}
    along = far = 0.0
    for m in movers:
        inside, weight = _lies(m, rows, length, bounds)
        if inside > 0:
            at[inside] = at.get(inside, 0.0) + weight
        elif inside == _ALONG:
            along += weight
        else:
            far += weight
    return _cut_to(rows, length, along, far, tuple(at.items()))


@lru_cache(maxsize=1 << 12)
def _cut_to(
    rows: int, length: int, along: float, far: float, lying: tuple[tuple[int, float], ...]
) -> Dimensions:
    """The dimensions of a kernel, from how much lies along which of its loops.

    Args:
        rows: results.
        length: values that are reduced to each.
        along: what lies along the reduction.
        far: what lies along no loop.
        lying: results inside of each other loop, and what lies along it.
    """
    at = dict(lying)
    inner = along >= _INNER_RATIO * max(at.get(1, 0.0), 1.0)
    outer = sorted(s for s in at if 1 < s < rows)
    if not outer:
        across, lengthwise = at.get(1, 0.0) * min(rows, 8) / 8, along * min(length, 8) / 8
        return Dimensions((rows,), (across, lengthwise), inner)
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

    best = max(splits, key=score)
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
