"""Rules of the grammar that move elements: layouts, parts and joins, reads and writes by index.

Like all rules, each takes a sketch and a value, and adds a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.elementwise import BINARY, COMPARED, UNARY, softened
from fusewise.datasets.generated.sketch import Axis, Sketch, Value, aligned, joint


def permuted(sketch: Sketch, x: Value) -> None:
    """Axes in another order, stored in it now and then."""
    order = sketch.dice.sample(range(x.rank), x.rank)
    stored = sketch.chance(0.3)
    sketch.step(
        f"permute {order} {stored}",
        lambda x: x.permute(order).contiguous() if stored else x.permute(order),
        x,
        axes=[x.axes[i] for i in order],
    )


def merged(sketch: Sketch, x: Value) -> None:
    """Two neighbouring axes made one."""
    at = sketch.dice.randrange(x.rank - 1)
    _reshaped(sketch, x, [*x.axes[:at], joint(*x.axes[at : at + 2]), *x.axes[at + 2 :]])


def split(sketch: Sketch, x: Value) -> None:
    """One axis made two, as heads and patches are."""
    at = sketch.dice.choice([i for i, axis in enumerate(x.axes) if axis.parts])
    _reshaped(sketch, x, [*x.axes[:at], *x.axes[at].parts, *x.axes[at + 1 :]])


def _reshaped(sketch: Sketch, x: Value, axes: list[Axis]) -> None:
    shape = [axis.size for axis in axes]
    names = " ".join(axis.name for axis in axes)
    sketch.step(f"reshape {names}", lambda x: x.reshape(shape), x, axes=axes)


#: Name, and what is taken of an axis of some size: at least one, also of one.
_SLICES: tuple[tuple[str, Callable[[int], slice]], ...] = (
    ("first half", lambda size: slice(0, -(-size // 2))),
    ("tail", lambda size: slice(size // 4, size)),
    ("but one", lambda size: slice(min(1, size - 1), size)),
    ("every second", lambda size: slice(0, size, 2)),
    ("every third", lambda size: slice(min(1, size - 1), size, 3)),
)


def sliced(sketch: Sketch, x: Value) -> None:
    """A part of an axis, with steps or without."""
    at, (name, part) = sketch.dice.randrange(x.rank), sketch.dice.choice(_SLICES)
    taken = part(x.axes[at].size)
    size = len(range(*taken.indices(x.axes[at].size)))
    where = (slice(None),) * at + (taken,)
    sketch.step(f"{name} {at}", lambda x: x[where], x, axes=_with(x, at, sketch.axis(size)))


def turned(sketch: Sketch, x: Value) -> None:
    """An axis reversed or rolled."""
    at, by = sketch.dice.randrange(x.rank), sketch.dice.choice((0, 1, -2, 7))
    sketch.step(f"turn {at} {by}", lambda x: x.roll(by, at) if by else x.flip(at), x)


def padded(sketch: Sketch, x: Value) -> None:
    """Constants before and after an axis."""
    at, before, after = sketch.dice.randrange(x.rank), *sketch.dice.choices(range(4), k=2)
    pads = (0, 0) * (x.rank - 1 - at) + (before, after)
    axis = sketch.axis(x.axes[at].size + before + after)
    sketch.step(
        f"pad {at} {before} {after}", lambda x: functional.pad(x, pads), x, axes=_with(x, at, axis)
    )


def neighbours(sketch: Sketch, x: Value) -> None:
    """Weighted sums of elements and those beside them, as blurs and differences are."""
    at, wide = sketch.dice.randrange(x.rank), sketch.dice.choice((2, 3, 5))
    size, pads = x.axes[at].size, (0, 0) * (x.rank - 1 - at) + (wide // 2, wide - 1 - wide // 2)
    weights = [sketch.dice.choice((-0.5, 0.25, 0.5)) for _ in range(wide)]

    def blurred(x: Tensor) -> Tensor:
        padded = functional.pad(x, pads)
        parts = [w * padded.narrow(at, i, size) for i, w in enumerate(weights)]
        return torch.stack(parts).sum(0) if wide > 3 else sum(parts[1:], parts[0])  # noqa: PLR2004

    sketch.step(f"neighbours {at} {weights}", blurred, x, bound=2.5 * x.bound)


def windows(sketch: Sketch, x: Value) -> None:
    """Overlapping windows of an axis as a new last axis."""
    at, step = sketch.dice.randrange(x.rank), sketch.dice.choice((1, 2, 3))
    size = x.axes[at].size
    wide = min(size, sketch.dice.choice((2, 3)) * step)
    count = (size - wide) // step + 1
    axes = [*_with(x, at, sketch.axis(count)), sketch.axis(wide)]
    sketch.step(f"windows {at} {step}", lambda x: x.unfold(at, wide, step), x, axes=axes, growth=3)


def joined(sketch: Sketch, x: Value) -> None:
    """What is there and an input, or itself in another form, one after the other along an axis."""
    at, first = sketch.dice.randrange(x.rank), sketch.chance(0.5)
    name, form, _ = sketch.dice.choice(UNARY)
    more, y = x.axes[at], x
    if sketch.room and sketch.chance(0.7):
        more = sketch.axis(max(1, more.size // sketch.draw.choice((1, 2, 7))))
        y = sketch.input(_with(x, at, more))

    def join(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, form(y)) if first else (form(y), x), at)

    axes = _with(x, at, sketch.axis(x.axes[at].size + more.size))
    bound = max(x.bound, y.bound) ** 2
    sketch.step(f"cat {at} {first} {name}", join, x, y, axes=axes, bound=bound, growth=2)


def stacked(sketch: Sketch, x: Value) -> None:
    """Two forms of a value along a new axis; along the last one they alternate in memory."""
    at, (name, form, bound) = sketch.dice.randint(0, x.rank), sketch.dice.choice(UNARY)
    axes = [*x.axes[:at], sketch.axis(2), *x.axes[at:]]
    sketch.step(
        f"stack {at} {name}",
        lambda x: torch.stack((x, form(x)), at),
        x,
        axes=axes,
        bound=max(x.bound, bound(x.bound)),
        growth=2,
    )


def repeated(sketch: Sketch, x: Value) -> None:
    """A value over and over: along a new axis, or each element of an axis a few times."""
    at, times = sketch.dice.randrange(x.rank), sketch.draw.choice((2, 3, 4))
    form = sketch.dice.choice(("expand", "interleave", "tile"))
    axis = sketch.axis(times)
    axes, old = [*x.axes[:at], axis, *x.axes[at:]], x.axes[at]
    if form != "expand":
        axes = _with(x, at, joint(old, axis) if form == "interleave" else joint(axis, old))
    wanted = [old.size if form == "interleave" else times, old.size]

    def repeat(x: Tensor) -> Tensor:
        if form == "interleave":
            return x.repeat_interleave(times, at)
        before, after = x.shape[:at], x.shape[at + 1 :]
        wide = x.unsqueeze(at).expand(*before, *wanted, *after)
        return wide if form == "expand" else wide.reshape(*before, -1, *after)

    sketch.step(f"{form} {at}", repeat, x, axes=axes, growth=4)


def _with(x: Value, at: int, axis: Axis) -> list[Axis]:
    """Axes of ``x``, one of them replaced."""
    return [*x.axes[:at], axis, *x.axes[at + 1 :]]


# Indices.


def gathered(sketch: Sketch, x: Value) -> None:
    """Slices of a value along an axis by an input of indices, or elements by as many of them."""
    at, each = sketch.dice.randrange(x.rank), sketch.chance(0.4)
    size = x.axes[at].size
    axis = sketch.axis(max(1, round(size * sketch.draw.choice((0.1, 0.5, 1.0, 2.0)))))
    axes = _with(x, at, axis)
    if each:
        places = sketch.indices(axes, size)
        sketch.step(f"take {at}", _taking(at), x, places, axes=axes, growth=2)
        return
    places = sketch.indices([axis], size)
    sketch.step(f"select {at}", lambda x, i: x.index_select(at, i), x, places, axes=axes, growth=2)


def _taking(at: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, places: torch.take_along_dim(x, places, at)


def looked_up(sketch: Sketch, x: Value) -> None:
    """Rows of a table by index, joined with what is there."""
    at = sketch.dice.randrange(x.rank - 1)
    name, function, bound = sketch.dice.choice(BINARY)
    rows = sketch.axis(sketch.draw.log_between(2, 4096))
    table = sketch.input((rows, x.axes[-1]), source="own")
    places = sketch.indices([x.axes[at]], rows.size)
    found = Value(0, (x.axes[at], x.axes[-1]), table.bound)
    align = aligned(found, x.axes)
    sketch.step(
        f"embedding {at} {name}",
        lambda x, table, i: function(x, align(functional.embedding(i, table))),
        *(x, table, places),
        bound=bound(x.bound, table.bound),
        compared=COMPARED.get(name),
    )


def scattered(sketch: Sketch, x: Value) -> None:
    """Slices or elements of a value added to zeros or to an input by index."""
    form = sketch.dice.choice(("index_add", "scatter_add", "index_put"))
    at = 0 if form == "index_put" else sketch.dice.randrange(x.rank)
    size = x.axes[at].size
    target = sketch.axis(max(1, round(size * sketch.draw.choice((0.02, 0.25, 1.0, 2.0)))))
    axes, shape = _with(x, at, target), [a.size for a in _with(x, at, target)]
    places = sketch.indices(x.axes if form == "scatter_add" else [x.axes[at]], target.size)
    wide = sketch.chance(0.6)
    # Many are added to one: small enough for fp16.
    share = 0.25 * min(1.0, target.size / size)

    def scatter(x: Tensor, places: Tensor) -> Tensor:
        part = (x.float() if wide else x) * share
        start = torch.zeros(shape, dtype=part.dtype, device=x.device)
        if form == "index_add":
            found = start.index_add(at, places, part)
        elif form == "scatter_add":
            found = start.scatter_add(at, places, part)
        else:
            found = start.index_put((places,), part, accumulate=True)
        return softened(found)

    sketch.step(f"{form} {at} {wide}", scatter, x, places, axes=axes, bound=1.0, growth=2)
