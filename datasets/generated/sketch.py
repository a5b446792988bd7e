"""A program of random structure while it is put together: its axes, values, steps and inputs.

What is decided (:attr:`Sketch.dice`) never depends on what is drawn (:attr:`Sketch.draw`): the
structure is the same for all sizes and dtypes. Axes are therefore told apart by name, and values
fit together where their axes have the same names. Knows no operations: those are in
``composed.py``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fusewise.datasets.generated.draw import Draw, Program
from fusewise.datasets.generated.elementwise import softened

#: Most values that nothing uses yet, which is the most results.
_MOST_LOOSE = 3
_MOST_INPUTS = 5
_MOST_ATOMS = 5
#: Larger values are made small before they are used: squares of these are finite in fp16.
LARGEST = 64.0


@dataclass(frozen=True)
class Axis:
    """A dimension; ``name`` alone tells it from others of the same program."""

    name: str
    size: int
    #: What it can be split into, outer part first.
    parts: tuple[Axis, ...] = ()


@dataclass(frozen=True, eq=False)
class Value:
    """A floating-point tensor of the program: an input (negative number) or a step's result."""

    number: int
    axes: tuple[Axis, ...]
    #: What no element exceeds, roughly.
    bound: float
    #: Whether a gradient flows back from it.
    trained: bool = True
    #: Elements beyond those of the program's base axes, as a factor.
    growth: float = 1.0

    @property
    def rank(self) -> int:
        return len(self.axes)


@dataclass(frozen=True)
class _Step:
    label: str
    operands: tuple[int, ...]
    function: Callable[..., Tensor]


#: Kinds of inputs: weight, name, dtype (None: the program's), bound once it is converted.
_SOURCES: tuple[tuple[float, str, torch.dtype | None, float], ...] = (
    (10.0, "own", None, 6.0),
    (2.0, "fp32", torch.float32, 6.0),
    (1.0, "int8", torch.int8, 7.0),
    (1.0, "uint8", torch.uint8, 13.0),
    (1.0, "mask", torch.bool, 1.0),
    (0.7, "int64", torch.int64, 7.0),
)


class Sketch:
    """The program so far.

    Args:
        seed: of the structure; equal seeds decide equally.
        draw: where sizes, dtypes and tensors come from.
    """

    def __init__(self, seed: str, draw: Draw) -> None:
        self.dice = random.Random(seed)
        self.draw = draw
        #: Whether inputs are changed, which a program that is trained must not do.
        self.in_place = self.chance(0.1)
        self.values: list[Value] = []
        self.inputs: list[Tensor] = []
        self._steps: list[_Step] = []
        self._used: set[int] = set()
        self._axes = 0
        self.base = self._base_axes()

    def chance(self, probability: float) -> bool:
        """True in that share of the structures."""
        return self.dice.random() < probability

    def axis(self, size: int, parts: tuple[Axis, ...] = ()) -> Axis:
        """A new axis, other than all so far."""
        self._axes += 1
        return Axis(f"a{self._axes}", size, parts)

    def input(self, axes: Sequence[Axis], *, source: str = "") -> Value:
        """A new input, of a random kind and layout where none is named, converted to floats."""
        weights = [row[0] for row in _SOURCES]
        if source:
            weights = [float(row[1] == source) for row in _SOURCES]
        _, name, dtype, bound = self.dice.choices(_SOURCES, weights)[0]
        shape, order = [axis.size for axis in axes], list(range(len(axes)))
        if self.chance(0.25):
            self.dice.shuffle(order)
        # Part of a larger tensor now and then: what it leaves out along an axis.
        at = self.dice.randrange(len(axes)) if axes and self.chance(0.15) else -1
        stride = self.dice.choice((1, 2))
        part = (slice(None),) * at + (slice(1, 1 + shape[at] * stride, stride),) if at >= 0 else ()
        if part:
            shape[at] = shape[at] * stride + 2
        floats = dtype is None or dtype.is_floating_point
        self.inputs.append(self._stored(shape, order, dtype))
        given = Value(-len(self.inputs), tuple(axes), bound, floats)
        if floats and not part:
            self.values.append(given)
            return given
        own, factor = self.draw.dtype, 1.0 if name == "mask" else 0.05

        def taken(x: Tensor) -> Tensor:
            x = x[part] if part else x
            return x if floats else x.to(own) * factor

        return self.step(f"{name} part {at} by {stride}", taken, given, cut=not floats)

    def indices(self, axes: Sequence[Axis], bound: int) -> Value:
        """A new input of integers below ``bound``: random, in order, or of the first few only."""
        shape = [axis.size for axis in axes]
        form = self.draw.choice(("random", "random", "ordered", "few"))
        found = self.draw.indices(shape, bound if form != "few" else max(1, bound // 16))
        self.inputs.append(found.sort(-1).values if form == "ordered" else found)
        return Value(-len(self.inputs), tuple(axes), float(bound), trained=False)

    def step(
        self,
        label: str,
        function: Callable[..., Tensor],
        *operands: Value,
        axes: Sequence[Axis] | None = None,
        bound: float | None = None,
        cut: bool = False,
        compared: int | None = None,
        growth: float = 1.0,
    ) -> Value:
        """Adds ``function`` of ``operands``; by default it leaves axes and bound of the first.

        Args:
            label: says what it does, without sizes.
            cut: whether no gradient flows back through it.
            compared: the operand to which none does, where there is one.
            growth: factor on the elements.
        """
        first = operands[0]
        numbers = tuple(operand.number for operand in operands)
        self._used.update(numbers)
        self._steps.append(_Step(label, numbers, function))
        made = Value(
            len(self._steps) - 1,
            first.axes if axes is None else tuple(axes),
            first.bound if bound is None else bound,
            not cut and any(x.trained for i, x in enumerate(operands) if i != compared),
            growth * max(operand.growth for operand in operands),
        )
        self.values.append(made)
        return made

    def subject(self) -> Value:
        """What the next step works on: mostly what came last, else anything there is."""
        loose = self.loose()
        full = len(loose) == _MOST_LOOSE
        if loose and (full or self.chance(0.8)):
            x = loose[-1] if self.chance(0.6) else self.dice.choice(loose)
        else:
            x = self.dice.choice(self.values)
        return x if x.bound <= LARGEST else self.step("soft", softened, x, bound=1.0)

    def partner(self, x: Value) -> Value:
        """A second operand for ``x``: another value that fits, smaller or larger, or an input."""
        fitting = [
            y
            for y in self.values
            if y is not x and y.bound <= LARGEST and (_within(y, x) or _within(x, y))
        ]
        loose = {value.number for value in self.loose()}
        fresh = self.room > 0 and self.chance(0.4)
        if fitting and not fresh:
            weights = [3.0 if y.number in loose else 1.0 for y in fitting]
            return self.dice.choices(fitting, weights)[0]
        if not self.room:
            return x
        whole = self.chance(0.5)
        return self.input([a for a in x.axes if whole or self.chance(0.5)])

    @property
    def room(self) -> int:
        """How many inputs the program may have yet; one that is changed comes last."""
        return _MOST_INPUTS - self.in_place - len(self.inputs)

    def loose(self) -> list[Value]:
        """Results of steps that nothing uses yet."""
        return [v for v in self.values if v.number >= 0 and v.number not in self._used]

    def outline(self) -> str:
        """The structure as text, equal for equal structures: no sizes, no dtypes."""
        base = " ".join(f"{a.name}{[p.name for p in a.parts]}" for a in self.base)
        steps = (f"{step.label} {step.operands}" for step in self._steps)
        return "; ".join((base, f"{len(self.inputs)} inputs", *steps))

    def program(self) -> Program:
        """What was put together; its results are what nothing uses."""
        steps, loose = tuple(self._steps), self.loose()
        results = tuple(value.number for value in loose)

        def run(*given: Tensor) -> list[Tensor]:
            values: list[Tensor] = []
            for step in steps:
                taken = [given[~i] if i < 0 else values[i] for i in step.operands]
                values.append(step.function(*taken))
            return [values[i] for i in results]

        return Program(run, tuple(self.inputs), self._trained and any(v.trained for v in loose))

    @property
    def _trained(self) -> bool:
        return self.draw.training and not self.in_place

    def _base_axes(self) -> tuple[Axis, ...]:
        """One to four axes, some of which can be split."""
        rank = self.dice.choices((1, 2, 3, 4), (1, 4, 4, 3))[0]
        split = [self.chance(0.3) for _ in range(rank)]
        atoms = min(_MOST_ATOMS, rank + sum(split))
        sizes = _sizes(self.draw, atoms)
        axes = []
        for number, wanted in enumerate(split):
            if wanted and len(sizes) > rank - number:
                axes.append(joint(self.axis(sizes.pop()), self.axis(sizes.pop())))
            else:
                axes.append(self.axis(sizes.pop()))
        return tuple(axes)

    def _stored(self, shape: list[int], order: list[int], dtype: torch.dtype | None) -> Tensor:
        """A tensor of that shape whose dimensions lie in memory in that order, outermost first."""
        stored = [shape[i] for i in order]
        if dtype is torch.bool:
            x = self.draw.mask(stored)
        else:
            x = self.draw.tensor(stored, dtype=dtype, grad=False)
        x = x.permute([order.index(i) for i in range(len(order))])
        return x.requires_grad_(self._trained and x.is_floating_point())


def joint(outer: Axis, inner: Axis) -> Axis:
    """The two as one; merging what was split gives the axis that it was."""
    return Axis(f"({outer.name}*{inner.name})", outer.size * inner.size, (outer, inner))


def aligned(x: Value, axes: Sequence[Axis]) -> Callable[[Tensor], Tensor]:
    """What views ``x`` so that it broadcasts against a tensor of those axes."""
    order = tuple(x.axes.index(axis) for axis in axes if axis in x.axes)
    missing = tuple(i for i, axis in enumerate(axes) if axis not in x.axes)

    def align(tensor: Tensor) -> Tensor:
        tensor = tensor.permute(order)
        for i in missing:
            tensor = tensor.unsqueeze(i)
        return tensor

    return align


def _within(x: Value, y: Value) -> bool:
    return set(x.axes) <= set(y.axes)


def _sizes(draw: Draw, count: int) -> list[int]:
    """Sizes of a quarter of the draw's elements together: long rows, many rows, or alike."""
    shares = [draw.random.expovariate(1.0) + 0.02 for _ in range(count)]
    sizes = []
    for share in shares:
        size = max(1, round(math.exp(math.log(max(16, draw.numel // 4)) * share / sum(shares))))
        unit = draw.choice((1, 1, 2, 8, 16, 64))
        sizes.append(size if size < 4 * unit else size // unit * unit)
    return sizes
