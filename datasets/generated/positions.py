"""Rules of the grammar that go by where an element is: masks, biases, sizes of images.

Like all rules, each takes a sketch and a value, and adds a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fusewise.datasets.generated.elementwise import softened
from fusewise.datasets.generated.sketch import Sketch, Value

#: Neighbours that see each other where a band is kept.
_NEAR = 8


def resized(sketch: Sketch, x: Value) -> None:
    """One or two axes with more or fewer elements, the nearest or between the two nearest."""
    chosen = sketch.dice.sample(range(x.rank), min(x.rank, sketch.dice.choice((1, 2, 2))))
    factor, linear = sketch.dice.choice((0.5, 1.5, 2.0)), sketch.chance(0.7)
    axes = list(x.axes)
    for at in chosen:
        axes[at] = sketch.axis(max(1, round(factor * axes[at].size)))

    def resize(x: Tensor) -> Tensor:
        for at in chosen:
            x = (_between if linear else _nearest)(x, at, axes[at].size)
        return x

    label = f"{'linear' if linear else 'nearest'} {chosen} {factor}"
    sketch.step(label, resize, x, axes=axes, growth=max(1.0, factor ** len(chosen)))


def _nearest(x: Tensor, at: int, size: int) -> Tensor:
    places = torch.arange(size, device=x.device) * (x.shape[at] / size)
    return x.index_select(at, places.long())


def _between(x: Tensor, at: int, size: int) -> Tensor:
    last = x.shape[at] - 1
    places = (torch.arange(size, device=x.device) + 0.5) * (x.shape[at] / size) - 0.5
    places = places.clamp(0, last)
    low = places.long()
    part = (places - low).to(x.dtype).reshape(-1, *(1,) * (x.dim() - 1 - at))
    first, second = x.index_select(at, low), x.index_select(at, (low + 1).clamp(max=last))
    return first + part * (second - first)


def pooled(sketch: Sketch, x: Value) -> None:
    """The most or the mean of windows over two axes, the last ones or those before the last."""
    channels = sketch.dice.randrange(2) if x.rank > 2 else 0  # noqa: PLR2004
    at = x.rank - 2 - channels
    most, wide, stride = sketch.chance(0.6), *sketch.dice.choice(((2, 2), (3, 2), (3, 1)))
    sizes = [-(-axis.size // stride) for axis in x.axes[at : at + 2]]
    axes = [*x.axes[:at], *(sketch.axis(size) for size in sizes), *x.axes[at + 2 :]]
    pool = functional.max_pool2d if most else functional.avg_pool2d

    def windows(images: Tensor) -> Tensor:
        return pool(images, wide, stride, padding=wide // 3, ceil_mode=wide == 2)  # noqa: PLR2004

    def shrink(x: Tensor) -> Tensor:
        if channels:
            images = x.reshape(-1, *x.shape[at:]).permute(0, 3, 1, 2)
            found = windows(images).permute(0, 2, 3, 1)
        else:
            found = windows(x.reshape(1, -1, *x.shape[at:]))
        return found.reshape([axis.size for axis in axes])

    sketch.step(f"pool {channels} {most} {wide} {stride}", shrink, x, axes=axes)


#: Name, and what becomes of a value by the row and the place in it of each element.
_BY_PLACE: tuple[tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]], ...] = (
    ("causal", lambda x, row, place: x.masked_fill(place > row, -1.0)),
    ("band", lambda x, row, place: torch.where((row - place).abs() <= _NEAR, x, 0.0)),
    ("slope", lambda x, row, place: x + softened(0.1 * (place - row)).to(x.dtype)),
    ("steps", lambda x, row, place: x + softened((row - place).abs().add(1).log2().floor())),
    ("stripes", lambda x, row, place: torch.where((row + place) % 2 == 0, x, 0.5 * x)),
)


def placed(sketch: Sketch, x: Value) -> None:
    """A mask or a bias by how far an element is from the diagonal of the last two axes."""
    name, function = sketch.dice.choice(_BY_PLACE)

    def place(x: Tensor) -> Tensor:
        rows, places = (torch.arange(size, device=x.device) for size in x.shape[-2:])
        return function(x, rows.unsqueeze(-1), places).to(x.dtype)

    sketch.step(name, place, x, bound=max(x.bound, 1.0) + 1.0)


def numbered(sketch: Sketch, x: Value) -> None:
    """Elements of the last axis kept by an input: as many as it says, or that one alone."""
    leading = [axis for axis in x.axes[:-1] if sketch.chance(0.7)]
    numbers = sketch.indices(leading, x.axes[-1].size)
    shape = [axis.size if axis in leading else 1 for axis in x.axes[:-1]]
    alone, filled = sketch.chance(0.4), sketch.dice.choice((0.0, -1.0))

    def keep(x: Tensor, numbers: Tensor) -> Tensor:
        numbers = numbers.reshape(*shape, 1)
        place = torch.arange(x.shape[-1], device=x.device)
        return torch.where(place == numbers if alone else place <= numbers, x, filled)

    sketch.step(f"keep {alone} {filled}", keep, x, numbers, bound=max(x.bound, 1.0))
