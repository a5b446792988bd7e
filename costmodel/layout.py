"""How an access lies in memory under each loop of its node, and what a block moves of it.

Where ``fusewise.costmodel.geometry`` tells how one access walks, this tells its step along every
loop, which is what decides how many sectors of memory a block touches and how wide its loads are.
Knows nothing of other accesses and nothing of how Inductor picks its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fusewise.costmodel.geometry import (
    Formula,
    first_moves,
    formula_of,
    looked_up_steps,
    run_of,
    step_of,
)
from fusewise.schedule.problem import Access

#: What a GPU's memory moves at the least, what its caches look up at once, and what one thread
#: loads at the most.
SECTOR_BYTES: Final = 32
LINE_BYTES: Final = 128
_VECTOR_BYTES: Final = 16

#: Elements of a block along one section of the loops: how many there are in all, and in the block.
Section = tuple[float, float]


class Layout(NamedTuple):
    """One access under the loops of its node that turn more than once, outermost first."""

    loops: tuple[int, ...]
    #: Elements from one turn of each loop to the next; 0 where it stays in place.
    steps: tuple[int, ...]
    #: Element that it begins at.
    origin: int
    #: Positions of the loops that move it, by ascending step.
    order: tuple[int, ...]
    itemsize: int
    #: Elements that a thread can load at once.
    vector: int
    #: Bytes that every row of neighbours begins at a multiple of, those of a line at the most.
    alignment: int
    #: Whether it goes through places that were loaded or computed.
    looked_up: bool
    #: Turns of the loops inside the one along which neighbours lie; 0 where none do.
    inside: int
    #: Whether loops that are not in its index take it anywhere.
    anywhere: bool = False
    #: Turns that it stays in place for under each loop; empty where it never does.
    dwell: tuple[float, ...] = ()
    #: Along which loops it may be taken elsewhere; empty for all.
    sought: tuple[bool, ...] = ()
    #: Places among which one is looked up while the loops in its index stand still, and elements
    #: that they lie within; 0 where that is not known.
    places: int = 0
    reach: int = 0
    #: Position of the loop that Inductor takes it to lie along; -1 where it finds none.
    taken: int = -1
    #: Part of the turns in which a mask by positions lets it be, as in ``Access.held``.
    held: float = 1.0

    @property
    def rests(self) -> bool:
        """Whether it stays in place along the innermost loop."""
        return self.stays(2)

    def vector_within(self, turns: float) -> int:
        """Elements that a thread can load at once along so many ``turns`` of the inner loops.

        They begin where the loops beyond these take them, which a kernel goes through by itself.
        """
        product = 1.0
        beyond = [self.origin]
        for extent, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            if product >= turns:
                beyond.append(step)
            product *= extent
        return min(self.vector, power_in(math.gcd(*beyond)))

    def stays(self, turns: int) -> bool:
        """Whether it stays in place for so many ``turns`` of the innermost loops."""
        product = 1
        for extent, step in zip(reversed(self.loops), reversed(self.steps), strict=True):
            if product >= turns:
                break
            if step:
                return False
            product *= extent
        return not self.looked_up


def layout_of(
    access: Access, loops: Sequence[int], size: int = 0, sought: tuple[bool, ...] = ()
) -> Layout | None:
    """The layout of ``access`` in a node with ``loops``; None where its index cannot be read.

    ``size`` is that of the buffer in elements where places that are looked up follow the loops, as
    those of an interpolation do: the innermost of the loops that are not in the index, and along
    which places are ``sought`` (one for each loop of several turns; all where it is empty).
    """
    if access.kind == "opaque":
        return None
    extents = tuple(extent for extent in loops if extent > 1)
    if not access.looked_up:
        stays = access.stride == 0
        return _layout(access.index, access.itemsize, stays, extents, access.along, False)
    found = _layout(access.index, access.itemsize, False, extents, access.along, True)
    return _followed(found, access.index, size, sought) if found is not None and size else found


@lru_cache(maxsize=1 << 16)
def _followed(layout: Layout, index: str, size: int, sought: tuple[bool, ...]) -> Layout:
    """``layout`` where the places that are looked up follow the innermost loops not in its index.

    One that has fewer turns in the buffer than its loop stays in place for some.
    """
    places = looked_up_steps(index)
    moving = sought or (True,) * len(layout.steps)
    free = [i for i, step in enumerate(layout.steps) if not step and moving[i]]
    free = free[-len(places) :] if places else []
    steps = list(layout.steps)
    dwell = [1.0] * len(steps)
    for loop, step in zip(free, places[len(places) - len(free) :], strict=True):
        around = min((s for s in (*layout.steps, *places) if s > step), default=max(size, step))
        pace = around / step / layout.loops[loop]
        steps[loop] = max(round(step * pace), 1) if step == 1 or pace > 1.0 else step
        dwell[loop] = max(1.0 / pace, 1.0)
    return layout._replace(
        steps=tuple(steps), order=_ascending(steps), anywhere=False, dwell=tuple(dwell)
    )


def _ascending(steps: Sequence[int]) -> tuple[int, ...]:
    """Positions of the loops that move an access, by ascending step, the inner first."""
    return tuple(sorted((i for i, step in enumerate(steps) if step), key=lambda i: (steps[i], -i)))


@lru_cache(maxsize=1 << 16)
def _layout(
    index: str, itemsize: int, stays: bool, loops: tuple[int, ...], along: int, looked_up: bool
) -> Layout | None:
    formula = formula_of(index)
    if formula is None:
        return None
    placed = loops_of_variables(formula.sizes, loops, along, stays)
    if placed is None:
        return None
    origin = formula.at({})
    steps = [0] * len(loops)
    beside, still = [], []
    for name, (first, last) in zip(formula.names, placed, strict=True):
        turns, size = 1, math.prod(loops[first : last + 1])
        for loop in range(last, first - 1, -1):
            steps[loop] = step_of(formula, name, turns, size)
            begins = first_moves(formula, name, turns, loops[loop])
            if begins == (1, 1):
                beside.append(loop)
            elif begins and not begins[0]:
                still.append(loop)
            turns *= loops[loop]
    vector, inside, pitch = _vector(formula, placed, steps, loops, origin)
    places, reach = _within(looked_up_steps(index), steps) if looked_up else (0, 0)
    return Layout(
        loops=loops,
        steps=tuple(steps),
        origin=origin,
        order=_ascending(steps),
        itemsize=itemsize,
        vector=min(vector, max(_VECTOR_BYTES // itemsize, 1)),
        alignment=min(pitch * itemsize, LINE_BYTES),
        looked_up=looked_up,
        inside=inside,
        anywhere=looked_up,
        places=places,
        reach=reach,
        taken=min(beside or still, default=-1),
    )


def _within(lookups: Sequence[int], steps: Sequence[int]) -> tuple[int, int]:
    """Places that lookups with such steps (the largest first) lead to, and how far apart at most.

    They stay within a turn of the next larger of the loops' ``steps``; zeros where none is larger.
    """
    reach = min((step for step in steps if lookups and step > lookups[0]), default=0)
    return (reach // lookups[-1], reach) if reach else (0, 0)


def loops_of_variables(
    sizes: Sequence[int], loops: Sequence[int], along: int, stays: bool
) -> list[tuple[int, int]] | None:
    """For each variable of an index the loops that it runs through as one, first and last.

    Args:
        sizes: of the variables.
        loops: extents of those that turn more than once.
        along: which of these the index goes along (``Access.along``).
        stays: whether it stays in place along the innermost.
    """
    return _told(sizes, loops, along) or _guessed(sizes, loops, stays)


def _told(sizes: Sequence[int], loops: Sequence[int], along: int) -> list[tuple[int, int]] | None:
    """The same as a problem tells; None where it does not, or not how often the loops turn."""
    if along < 0:
        return None
    left = [i for i in range(len(loops)) if along >> i & 1]
    found: list[tuple[int, int]] = []
    for size in sizes:
        run: list[int] = []
        while left and math.prod(loops[i] for i in run) < size:
            run.append(left.pop(0))
        if not run or math.prod(loops[i] for i in run) != size:
            return None
        found.append((run[0], run[-1]))
    return None if left else found


def _guessed(
    sizes: Sequence[int], loops: Sequence[int], stays: bool
) -> list[tuple[int, int]] | None:
    """The same where a problem does not tell.

    Loops that an index does not use have no variable. Where an extent occurs twice the inner loop
    is taken, unless the access ``stays`` in place along the innermost.
    """

    def place(variable: int, last: int) -> list[tuple[int, int]] | None:
        if variable < 0:
            return []
        for end in range(last, -1, -1):
            product, first = 1, end
            while first >= 0 and product * loops[first] <= sizes[variable]:
                product *= loops[first]
                if product == sizes[variable]:
                    rest = place(variable - 1, first - 1)
                    if rest is not None:
                        return [*rest, (first, end)]
                    break
                first -= 1
        return None

    inner = len(loops) - 1
    found = place(len(sizes) - 1, inner - 1) if stays and sizes else None
    return found if found is not None else place(len(sizes) - 1, inner)


def _vector(
    formula: Formula,
    placed: Sequence[tuple[int, int]],
    steps: Sequence[int],
    loops: Sequence[int],
    origin: int,
) -> tuple[int, int, int]:
    """Elements of a load, turns inside the loop that it goes along, and alignment in elements."""
    along = next((i for i in range(len(steps) - 1, -1, -1) if steps[i] == 1), -1)
    if along < 0:
        return 1, 0, power_in(math.gcd(origin, *steps))
    inside = math.prod(loops[along + 1 :])
    name, first = next(
        (name, first)
        for name, (first, last) in zip(formula.names, placed, strict=True)
        if first <= along <= last
    )
    length = math.prod(loops[first : along + 1])
    run = run_of(formula, name, length)
    # Rows that lie one after the other are one row.
    outer = first - 1
    while run == length and outer >= 0 and steps[outer] == length:
        length *= loops[outer]
        run = length
        outer -= 1
    pitches = [origin, *(step for i, step in enumerate(steps) if not outer < i <= along)]
    if run < length:
        pitches.append(formula.at({name: run}) - origin)
    pitch = math.gcd(*pitches)
    return power_in(math.gcd(pitch, run)), inside, power_in(pitch)


def power_in(n: int) -> int:
    """The greatest power of two that divides ``n``; a large one for 0."""
    return n & -n if n else 1 << 10


def turned(layout: Layout, order: Sequence[int]) -> Layout:
    """``layout`` under the same loops in another ``order`` (positions, outermost first)."""
    steps = tuple(layout.steps[i] for i in order)
    loops = tuple(layout.loops[i] for i in order)
    along = next((i for i in range(len(steps) - 1, -1, -1) if steps[i] == 1), -1)
    return layout._replace(
        loops=loops,
        steps=steps,
        order=_ascending(steps),
        inside=math.prod(loops[along + 1 :]) if along >= 0 else 0,
        taken=order.index(layout.taken) if layout.taken >= 0 else -1,
        dwell=tuple(layout.dwell[i] for i in order) if layout.dwell else (),
        sought=tuple(layout.sought[i] for i in order) if layout.sought else (),
    )


def merged_loops(
    loops: Sequence[int],
    outer: int,
    layouts: Sequence[Layout],
    placed: Collection[Collection[int]] = (),
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Loops as the compiler sees them: neighbours that every access goes through as one are one.

    Args:
        loops: of a node that turn more than once.
        outer: how many of these are outside its reduction.
        layouts: its accesses.
        placed: positions of the loops that each of the places goes along that it computes.
    """

    def merge(first: int, last: int) -> tuple[int, ...]:
        found: list[int] = []
        for i in range(last - 1, first - 1, -1):
            as_one = i + 1 < last and all(
                m.steps[i] == m.steps[i + 1] * loops[i + 1] for m in layouts
            )
            if as_one and not any((i in place) != (i + 1 in place) for place in placed):
                found[-1] *= loops[i]
            else:
                found.append(loops[i])
        return tuple(reversed(found))

    return merge(0, outer), merge(outer, len(loops))


def moved(
    layout: Layout, sections: Sequence[Section], piece: int = SECTOR_BYTES
) -> tuple[float, float]:
    """Sectors that a block touches, and elements that its threads load (or store).

    Args:
        layout: of the access.
        sections: the block, from the inner section of the loops to the outer.
        piece: bytes of what is counted; lines in place of sectors where it is theirs.
    """
    held: list[float] = []
    lanes = 1.0
    at = 0
    total, block = sections[0]
    whole, used = block, False
    for loop in range(len(layout.loops) - 1, -1, -1):
        extent = layout.loops[loop]
        while total <= 1 and at + 1 < len(sections):
            lanes *= whole if used else 1.0
            at += 1
            total, block = sections[at]
            whole, used = block, False
        part = min(block, extent)
        block = block / extent if block > extent else 1.0
        total /= extent
        held.append(part)
        used = used or layout.steps[loop] > 0 or layout.looked_up
    lanes *= whole if used else 1.0
    held.reverse()
    span, count = 1.0, 1.0
    for i in layout.order:
        part = held[i] if not layout.dwell else max(held[i] / layout.dwell[i], 1.0)
        if part <= 1:
            continue
        if layout.steps[i] * layout.itemsize <= max(span * layout.itemsize, piece):
            span += layout.steps[i] * (part - 1)
        else:
            count *= part
    if layout.anywhere:
        found = 1.0
        for i, step in enumerate(layout.steps):
            if not step and (not layout.sought or layout.sought[i]):
                found *= held[i]
        if layout.reach:
            pieces = layout.reach * layout.itemsize / piece
            found = min(found, layout.places, max(pieces, 1.0))
        count *= found
    # A row of neighbours that begins anywhere lies in one more, now and then.
    row = span * layout.itemsize + piece - min(layout.alignment, piece)
    return count * max(1.0, row / piece), lanes
