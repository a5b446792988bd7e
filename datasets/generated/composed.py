"""Programs of random structure: what the families written by hand do, in any combination.

As the learned schedulers of Halide (Adams et al., SIGGRAPH 2019) and Tiramisu (Baghdadi et al.,
MLSys 2021) do, so that a cost model sees loop shapes, strides, dtypes and operations in
combinations that nobody thought of. Each family is one structure, drawn from its number alone; the
draw of a program gives sizes, dtypes, values of indices and whether it is trained.

The grammar is :data:`RULES`. A rule takes the sketch and a value, and adds a step or a few of them;
it decides by the sketch's dice, and never by a size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fusewise.datasets.generated import positions, rearranged
from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.elementwise import (
    BINARY,
    COMPARED,
    STOPPING,
    STORED,
    TERNARY,
    UNARY,
    softened,
)
from fusewise.datasets.generated.sketch import LARGEST, Sketch, Value, aligned

_OverAxes = Callable[[Tensor, tuple[int, ...]], Tensor]
_Bound = Callable[[float], float]

#: Structures that there are.
COUNT: Final = 1600
#: How much larger than the base axes together a value may get.
_MOST_GROWTH = 4.0
_MOST_RANK = 5


def sketched(number: int, draw: Draw) -> Sketch:
    """The structure of that number, on the sizes of ``draw``."""
    sketch = Sketch(f"composed {number}", draw)
    _pointwise(sketch, sketch.input(sketch.base, source="own"))
    wanted = sketch.dice.randint(2, 13)
    for _ in range(wanted):
        x = sketch.subject()
        rules = [rule for rule in RULES if number >= rule.since and rule.fits(x, sketch)]
        sketch.dice.choices(rules, [rule.weight for rule in rules])[0].apply(sketch, x)
    _finished(sketch)
    return sketch


def _family(number: int) -> Callable[[Draw], Program]:
    return lambda draw: sketched(number, draw).program()


#: Every structure by the name of its family.
COMPOSED: Final[dict[str, Callable[[Draw], Program]]] = {
    f"composed_{number:03d}": _family(number) for number in range(COUNT)
}


def _pointwise(sketch: Sketch, x: Value) -> None:
    """One to four functions of one operand."""
    for _ in range(sketch.dice.choice((1, 1, 2, 3, 4))):
        table = UNARY if sketch.chance(0.93) else STOPPING
        name, function, bound = sketch.dice.choice(table)
        x = sketch.step(name, function, x, bound=bound(x.bound), cut=table is STOPPING)
        if x.bound > LARGEST:
            return


def _pairwise(sketch: Sketch, x: Value) -> None:
    """A function of two operands, the smaller of which is broadcast."""
    y = sketch.partner(x)
    name, function, bound = sketch.dice.choice(BINARY)
    axes = _wider(x, y).axes
    first, second = aligned(x, axes), aligned(y, axes)
    sketch.step(
        name,
        lambda x, y: function(first(x), second(y)),
        *(x, y),
        axes=axes,
        bound=bound(x.bound, y.bound),
        compared=COMPARED.get(name),
    )


def _threefold(sketch: Sketch, x: Value) -> None:
    """A function of three operands: where, clamps between tensors, weighted sums."""
    y = sketch.partner(x)
    axes = _wider(x, y).axes
    z = sketch.input([a for a in axes if sketch.chance(0.7)]) if sketch.room else y
    name, function, bound = sketch.dice.choice(TERNARY)
    views = [aligned(value, axes) for value in (x, y, z)]
    sketch.step(
        name,
        lambda *given: function(*(view(t) for view, t in zip(views, given, strict=True))),
        *(x, y, z),
        axes=axes,
        bound=bound(x.bound, y.bound, z.bound),
        compared=COMPARED.get(name),
    )


def _converted(sketch: Sketch, x: Value) -> None:
    """The program's own dtype again, after fp32."""
    own = sketch.draw.dtype
    sketch.step("own dtype", lambda x: x.to(own), x)


def _wider(x: Value, y: Value) -> Value:
    return y if set(x.axes) < set(y.axes) else x


def _sum_of_squares(x: Tensor, at: tuple[int, ...]) -> Tensor:
    return x.float().square().sum(at)


def _balance(x: Tensor, at: tuple[int, ...]) -> Tensor:
    total = x.float().sum(at)
    return softened(total * (total.numel() / x.numel()) ** 0.5)


def _soft_weights(x: Tensor, at: tuple[int, ...]) -> Tensor:
    weights = (x - x.amax(at, keepdim=True)).float().exp()
    return (weights / weights.sum(at, keepdim=True)).to(x.dtype)


def _standard(x: Tensor, at: tuple[int, ...]) -> Tensor:
    return (x - x.mean(at, keepdim=True)) * (x.var(at, correction=0, keepdim=True) + 1e-3).rsqrt()


def _inverse_rms(x: Tensor, at: tuple[int, ...]) -> Tensor:
    return (x.float().square().mean(at, keepdim=True) + 1e-3).rsqrt().to(x.dtype)


def _ranged(x: Tensor, at: tuple[int, ...]) -> Tensor:
    # In fp32: Inductor's C++ code of both extremes of fp16 or bf16 values does not compile.
    x = x.float()
    least, most = x.amin(at, keepdim=True), x.amax(at, keepdim=True)
    return (x - least) / (most - least + 1.0)


#: Name, function of a tensor and of axes, bound of the result, whether the gradient stops. Sums
#: are made small at once, as they are finite in fp32 only.
_REDUCTIONS: Final[tuple[tuple[str, _OverAxes, _Bound, bool], ...]] = (
    ("sum", lambda x, at: x.sum(at, dtype=torch.float32).abs().log1p(), lambda _: 25.0, False),
    ("sum back", lambda x, at: _balance(x, at).to(x.dtype), lambda _: 1.0, False),
    ("log sum", lambda x, at: _sum_of_squares(x, at).log1p(), lambda _: 40.0, False),
    ("norm", lambda x, at: _sum_of_squares(x, at).add(1.0).rsqrt(), lambda _: 1.0, False),
    ("mean", lambda x, at: x.mean(at), lambda x: x, False),
    ("mean size", lambda x, at: x.abs().mean(at), lambda x: x, False),
    ("amax", lambda x, at: x.amax(at), lambda x: x, False),
    ("amin", lambda x, at: x.amin(at), lambda x: x, False),
    ("range", lambda x, at: x.float().amax(at) - x.float().amin(at), lambda x: 2 * x, False),
    ("var", lambda x, at: x.var(at, correction=0), lambda x: x * x, False),
    ("std", lambda x, at: (x.var(at, correction=0) + 1e-3).sqrt(), lambda x: x + 1, False),
    ("logsumexp", torch.logsumexp, lambda x: x + 20, False),
    ("count", lambda x, at: (x > 1.0).sum(at).float().log1p(), lambda _: 20.0, True),
    ("any", lambda x, at: (x > 1.0).any(at).to(x.dtype), lambda _: 1.0, True),
)

#: The same that keep their shape: passes over axes, and what is made of all of it.
_PASSES: Final[tuple[tuple[str, _OverAxes, _Bound], ...]] = (
    ("softmax", lambda x, at: torch.softmax(x, at[-1]), lambda _: 1.0),
    ("log_softmax", lambda x, at: torch.log_softmax(x, at[-1]), lambda x: x + 20),
    ("soft weights", _soft_weights, lambda _: 1.0),
    ("centred", lambda x, at: x - x.mean(at, keepdim=True), lambda x: 2 * x),
    ("standard", _standard, lambda _: 30.0),
    ("standard fp32", lambda x, at: _standard(x.float(), at).to(x.dtype), lambda _: 30.0),
    ("rms", lambda x, at: x * _inverse_rms(x, at), lambda _: 30.0),
    ("scaled", lambda x, at: x / (x.abs().amax(at, keepdim=True) + 1.0), lambda _: 1.0),
    ("ranged", lambda x, at: _ranged(x, at).to(x.dtype), lambda _: 1.0),
    ("cumsum", lambda x, at: softened(x.float().cumsum(at[-1])).to(x.dtype), lambda _: 1.0),
)


def _reduced(sketch: Sketch, x: Value) -> None:
    """A reduction over some axes: the last, the first, between, several, all."""
    at = _some_axes(sketch, x)
    name, function, bound, cut = sketch.dice.choice(_REDUCTIONS)
    axes = [axis for i, axis in enumerate(x.axes) if i not in at]
    sketch.step(
        f"{name} {at}", lambda x: function(x, at), x, axes=axes, bound=bound(x.bound), cut=cut
    )


def _normalised(sketch: Sketch, x: Value) -> None:
    """Statistics over some axes, and all elements by them."""
    at = _some_axes(sketch, x)
    name, function, bound = sketch.dice.choice(_PASSES)
    sketch.step(f"{name} {at}", lambda x: function(x, at), x, bound=bound(x.bound))


def _argmax(sketch: Sketch, x: Value) -> None:
    """The largest element along an axis, read from where it was found."""
    at = sketch.dice.randrange(x.rank)

    def largest(x: Tensor) -> Tensor:
        # Not the place itself: of nearly equal elements, another one is found in other rounding.
        return x.take_along_dim(x.argmax(at, keepdim=True), at).squeeze(at)

    sketch.step(f"argmax {at}", largest, x, axes=[*x.axes[:at], *x.axes[at + 1 :]])


def _some_axes(sketch: Sketch, x: Value) -> tuple[int, ...]:
    """Positions of one axis, mostly the last or the first, or of several."""
    several = sketch.dice.sample(range(x.rank), sketch.dice.randint(1, x.rank))
    last, first, any_ = (x.rank - 1,), (0,), (sketch.dice.randrange(x.rank),)
    return tuple(sorted(sketch.dice.choice((last, last, first, any_, several))))


def _finished(sketch: Sketch) -> None:
    """Results are stored in other dtypes now and then, and an input is changed where one may be."""
    for number, x in enumerate(sketch.loose()):
        if sketch.in_place and number == 0:
            _updated(sketch, x)
        elif sketch.chance(0.15) and (number or not x.trained):
            name, function = sketch.dice.choice(STORED)
            sketch.step(name, function, x, cut=name != "as fp32")


def _updated(sketch: Sketch, x: Value) -> None:
    """An input that moves towards a value, as running statistics and moments do."""
    kept = sketch.dice.choice((0.5, 0.9))
    state = sketch.input(x.axes, source="own")

    def update(x: Tensor, state: Tensor) -> Tensor:
        return state.mul_(kept).add_(x.to(state.dtype), alpha=1 - kept) * 0.5

    sketch.step(f"update {kept}", update, x, state)


@dataclass(frozen=True)
class Rule:
    """A production of the grammar."""

    weight: float
    apply: Callable[[Sketch, Value], None]
    #: What it takes: axes of the value, and further inputs.
    rank: int = 0
    inputs: int = 0
    #: Most that it adds to the elements, as a factor, and to the axes.
    growth: float = 1.0
    axes: int = 0
    #: Whether one of the axes must be made of parts.
    parts: bool = False
    #: The first structure that may have it: those of before stay what they are.
    since: int = 0

    def fits(self, x: Value, sketch: Sketch) -> bool:
        """Whether it can be applied to ``x``."""
        return (
            self.rank <= x.rank <= _MOST_RANK - self.axes
            and self.inputs <= sketch.room
            and self.growth * x.growth <= _MOST_GROWTH
            and (not self.parts or any(axis.parts for axis in x.axes))
        )


RULES: Final[tuple[Rule, ...]] = (
    Rule(9.0, _pointwise),
    Rule(9.0, _pairwise),
    Rule(2.0, _threefold),
    Rule(0.7, _converted),
    Rule(6.0, _reduced, rank=1),
    Rule(5.0, _normalised, rank=1),
    Rule(0.5, _argmax, rank=1),
    Rule(1.8, rearranged.permuted, rank=2),
    Rule(1.0, rearranged.merged, rank=2),
    Rule(2.0, rearranged.split, rank=1, axes=1, parts=True),
    Rule(1.5, rearranged.sliced, rank=1),
    Rule(0.8, rearranged.turned, rank=1),
    Rule(0.8, rearranged.padded, rank=1),
    Rule(0.8, rearranged.neighbours, rank=1),
    Rule(0.7, rearranged.windows, rank=1, growth=3, axes=1),
    Rule(1.5, rearranged.joined, rank=1, growth=2),
    Rule(0.7, rearranged.stacked, rank=1, growth=2, axes=1),
    Rule(0.8, rearranged.repeated, rank=1, growth=4, axes=1),
    Rule(1.5, rearranged.gathered, rank=1, inputs=1, growth=2),
    Rule(1.0, rearranged.looked_up, rank=2, inputs=2),
    Rule(1.2, rearranged.scattered, rank=1, inputs=1, growth=2),
    Rule(1.8, positions.resized, rank=1, growth=4, since=400),
    Rule(1.5, positions.pooled, rank=2, since=400),
    Rule(1.5, positions.placed, rank=2, since=400),
    Rule(0.8, positions.numbered, rank=1, inputs=1, since=400),
)
