"""How an access walks through memory as the loops of its node run, read off its index.

Knows one access and the loops round it; what the accesses of a group make of each other is the
business of ``fusewise.costmodel.features``. Index texts come from files too, so they are parsed
and interpreted here, never executed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from fusewise.schedule.problem import Access

#: What stands for a symbol of a dynamic shape.
_SYMBOL = 4096
#: Names of values that an index was loaded or computed into.
_LOADED: Final = re.compile(r"(tmp|indirect)\d+")
_VARIABLE: Final = re.compile(r"(i|tmp|indirect)\d+")
#: Starts of a loop's later turns are multiples of eight.
_EVEN: Final = ~7
#: Elements that a vector load takes start at a multiple of so many bytes.
_VECTOR_BYTES: Final = 16
_OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b if b else 0,
    ast.Mod: lambda a, b: a % b if b else 0,
    ast.Pow: lambda a, b: a**b if 0 <= b <= 4 else 0,  # noqa: PLR2004 - a size cubed is the most
}


class Walk(NamedTuple):
    """Steps of an access, in elements."""

    #: From one turn of the innermost loop to the next; 0 where it stays in place.
    step: int
    #: The least that is not 0, over all loops; 0 where it never moves.
    least: int
    #: Elements in a row without a jump, along the loop of the least step; 1 where that is not 1.
    run: int
    #: Whether rows start at multiples of 16 bytes, so that vectors can be loaded.
    aligned: bool
    #: Whether neighbours lie along another loop than the innermost.
    across: bool


#: What never moves.
STAYS: Final = Walk(0, 0, 1, True, False)


def walk(access: Access, loops: Sequence[int]) -> Walk:
    """The steps of ``access`` in a node with ``loops``: extents, outermost first, reduction last.

    Where the index cannot be read, the steps are those that the access itself tells.
    """
    if access.kind == "opaque":
        return STAYS
    extents = tuple(extent for extent in loops if extent > 1)
    return _walk(access.index, access.itemsize, access.stride, extents, access.along)


@lru_cache(maxsize=1 << 16)
def _walk(index: str, itemsize: int, stride: int, extents: tuple[int, ...], along: int) -> Walk:
    formula = formula_of(index)
    if formula is None:
        return Walk(abs(stride), abs(stride), 1, True, False)
    names, sizes, at, _ = formula
    origin = at({})
    steps = [_step(formula, name, size) for name, size in zip(names, sizes, strict=True)]
    innermost = bool(names) and _reaches_innermost(sizes, extents, along)
    step = steps[-1] if innermost else 0
    moving = [i for i, one in enumerate(steps) if one]
    if not moving:
        return STAYS
    # Of loops with equal steps the inner one is the one that is walked.
    best = min(reversed(moving), key=lambda i: steps[i])
    least = steps[best]
    run = run_of(formula, names[best], sizes[best]) if least == 1 else 1
    pitches = [origin, *(steps[i] for i in moving if i != best)]
    aligned = all(pitch * itemsize % _VECTOR_BYTES == 0 for pitch in pitches)
    across = least == 1 and not (innermost and best == len(names) - 1)
    return Walk(step, least, run, aligned, across)


def _reaches_innermost(sizes: Sequence[int], extents: Sequence[int], along: int) -> bool:
    """Whether the last variable of an index runs with the innermost loop.

    An index has variables only for loops that it uses, and one for neighbours that it goes
    through as one: the last is the innermost loop, or that with some of those around it.
    """
    if not extents:
        return True
    if along >= 0:
        return bool(along >> (len(extents) - 1) & 1)
    product = 1
    for extent in reversed(extents):
        product *= extent
        if product == sizes[-1]:
            return True
    # Sizes of dynamic shapes are not known to this extent.
    return sizes[-1] == _SYMBOL


def _step(formula: Formula, name: str, size: int) -> int:
    """Elements from one turn of a loop to the next; of an index that moves now and then, the mean.

    ``i // 2`` stays for a turn and goes on by one: it passes through its memory like a loop that
    takes each element, only slower.
    """
    step = step_of(formula, name, 1, size)
    if step or size <= 2:  # noqa: PLR2004
        return step
    at = formula.at
    origin = at({})
    span = max(abs(at({name: turn}) - origin) for turn in (size - 1, size // 2))
    return max(1, round(span / (size - 1))) if span else 0


def step_of(formula: Formula, name: str, turns: int, size: int) -> int:
    """Elements from one turn of a variable of so many to that which is ``turns`` later.

    An index that starts over somewhere, as that of a roll does, may do so where it begins: the
    middle one of three places counts then, where it moves there.
    """
    at = formula.at
    first = abs(at({name: turns}) - at({}))
    places = (size // 3 & _EVEN, size // 2 & _EVEN)
    if formula.straight or places[-1] + turns >= size:
        return first
    later = [abs(at({name: place + turns}) - at({name: place})) for place in places]
    return sorted((first, *later))[1] or first


def first_moves(formula: Formula, name: str, turns: int, times: int) -> tuple[int, ...]:
    """Elements that an index moves by when a variable goes ``turns`` on from nought, and again.

    Nothing where it never moves, in so many ``times``.
    """
    places = [formula.at({name: n * turns}) for n in (0, 1, 2, times // 2, times - 1)]
    if len(set(places)) == 1:
        return ()
    return places[1] - places[0], places[2] - places[1]


def run_of(formula: Formula, name: str, size: int) -> int:
    """How far an index keeps up with a variable, but for one element: found by halving.

    The longer of the run from where it begins and that from the middle.
    """
    run = _run_from(formula, name, 0, size)
    middle = size // 2
    if run == size or formula.straight or not middle:
        return run
    return max(run, _run_from(formula, name, middle, size - middle))


def _run_from(formula: Formula, name: str, start: int, size: int) -> int:
    at = formula.at
    origin = at({name: start})

    def unbroken(turns: int) -> bool:
        return turns - 1 >= at({name: start + turns - 1}) - origin >= turns - 2

    low, high = 1, size
    if unbroken(size):
        return size
    while high - low > 1:
        middle = (low + high) // 2
        if unbroken(middle):
            low = middle
        else:
            high = middle
    return low


class Formula(NamedTuple):
    """An index that can be read: its variables, outermost first, and their extents."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    #: The index, from the values of the variables that are not 0.
    at: Callable[[Mapping[str, int]], int]
    #: Whether it is a sum of multiples of these: each step is then as any other.
    straight: bool


@lru_cache(maxsize=1 << 16)
def formula_of(index: str) -> Formula | None:
    """What an index says; None where it cannot be read."""
    text, _, told = index.partition(" : ")
    sizes = tuple(int(s) if s.strip().isdigit() else _SYMBOL for s in told.split(",") if s.strip())
    names = tuple(f"i{k}" for k in range(len(sizes)))
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not _is_readable(tree):
            return None
    except (SyntaxError, RecursionError):
        return None

    linear = _linear(tree)
    return Formula(names, sizes, _function(tree, linear), linear is not None)


def _is_readable(node: ast.expr) -> bool:
    """Whether an expression has only what an index is made of."""
    match node:
        case ast.Constant(value=int()) | ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_readable(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _OPERATORS and _is_readable(left) and _is_readable(right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and all(map(_is_readable, args))
    return False


def looked_up_steps(index: str) -> tuple[int, ...]:
    """Elements from one value to the next of each place that is looked up, the largest first.

    They are those of an index that can be read, without the places that do not move it.
    """
    formula = formula_of(index)
    if formula is None:
        return ()
    names = dict.fromkeys(found.group() for found in _LOADED.finditer(index))
    origin = formula.at({})
    steps = (abs(formula.at({name: 1}) - origin) for name in names)
    return tuple(sorted((step for step in steps if step), reverse=True))


def _modular(base: int, divisor: int, modulus: int) -> int:
    return base // divisor % modulus if divisor and modulus else 0


#: Inductor's own, and what sympy prints.
_FUNCTIONS: Final[Mapping[str, Callable[..., int]]] = {
    "ModularIndexing": _modular,
    "FloorDiv": _OPERATORS[ast.FloorDiv],
    "Mod": _OPERATORS[ast.Mod],
    "PythonMod": _OPERATORS[ast.Mod],
    "Identity": lambda a: a,
    "Max": max,
    "Min": min,
    "Abs": abs,
}


def _function(tree: ast.expr, linear: dict[str, int] | None) -> Callable[[Mapping[str, int]], int]:
    """What a readable expression gives from values by name; those not named are 0."""
    if linear is None:
        return _closure(tree)
    factors = dict(linear)
    constant = factors.pop("", 0)

    def at(values: Mapping[str, int]) -> int:
        total = constant
        for name, value in values.items():
            total += factors.get(name, 0) * value
        return total

    return at


def _linear(node: ast.expr) -> dict[str, int] | None:
    """Factors of the variables, and what is added under "", of a sum; None of anything else.

    Most indices are sums, and these are quick to evaluate.
    """
    match node:
        case ast.Constant(value=int(value)):
            return {"": value}
        case ast.Name(id=name):
            return {name: 1} if _is_variable(name) else {"": _SYMBOL}
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            one, other = _linear(left), _linear(right)
            if one is None or other is None:
                return None
            sign = 1 if isinstance(op, ast.Add) else -1
            for name, factor in other.items():
                one[name] = one.get(name, 0) + sign * factor
            return one
        case ast.BinOp(left=ast.Constant(value=int(value)), op=ast.Mult(), right=right):
            found = _linear(right)
            return None if found is None else {name: value * f for name, f in found.items()}
    return None


def _is_variable(name: str) -> bool:
    return _VARIABLE.fullmatch(name) is not None


def _closure(node: ast.expr) -> Callable[[Mapping[str, int]], int]:
    match node:
        case ast.Constant(value=int(value)):
            return lambda _: value
        case ast.Name(id=name):
            if _is_variable(name):
                return lambda values: values.get(name, 0)
            return lambda _: _SYMBOL
        case ast.UnaryOp(operand=operand):
            inner = _closure(operand)
            return lambda values: -inner(values)
        case ast.BinOp(left=left, op=op, right=right):
            one, other, combine = _closure(left), _closure(right), _OPERATORS[type(op)]
            return lambda values: combine(one(values), other(values))
        case ast.Call(func=ast.Name(id=name), args=args):
            given, function = [_closure(a) for a in args], _FUNCTIONS[name]
            return lambda values: function(*(one(values) for one in given))
    raise AssertionError(f"{ast.dump(node)} was found readable")
