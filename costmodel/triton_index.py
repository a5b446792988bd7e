"""Index arithmetic of a Triton kernel, carried out on integers: where its addresses lie.

What stands in a kernel's source before an access is kept as a graph of values; the index of an
access is then worked out at chosen positions of the kernel's dimensions, and how it moves from
neighbour to neighbour is its layout. No pattern of how Inductor writes an index is looked for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

#: Integers, truths or floats at some positions.
Values = npt.NDArray[Any]

#: Neighbours that are looked at, at the most, before the rest is taken to go on alike.
_LOOKED_AT: Final = 1024
#: Levels of one dimension, after which the rest counts as irregular.
_LEVELS: Final = 5
#: What is loaded is unknown: numbers all over a range, equal ones from equal addresses (Knuth's
#: multiplicative hash).
_HASH, _RANGE, _MIXED = 2654435761, 1 << 20, 1 << 32

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Div: np.divide,
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.BitXor: np.bitwise_xor,
    ast.LShift: np.left_shift,
    ast.RShift: np.right_shift,
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.USub: np.negative,
    ast.Invert: np.invert,
    ast.Not: np.logical_not,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "where": np.where,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "div_floor_integer": np.floor_divide,
    "remainder_integer": np.mod,
}
#: What is the same in each block, as far as it is looked at.
_FIXED: Final = {"program_id": 0, "num_programs": 1, "zeros": 0, "arange": 0}
_MODULES: Final = frozenset({"tl", "tl_math", "libdevice", "triton_helpers", "triton", "math"})
#: What changes the shape of a value alone.
_SAME_VALUE: Final = frozenset({"broadcast_to", "reshape", "expand_dims"})


class UnreadableError(Exception):
    """A source that is not written as Inductor writes kernels; in a few words why."""


class Value:
    """Something that a kernel computes."""

    __slots__ = ("_of", "_parts", "dims", "loaded")

    def __init__(
        self,
        of: Callable[..., Any] | str,
        parts: Sequence[Value] = (),
        dims: frozenset[str] = frozenset(),
        *,
        loaded: bool = False,
    ) -> None:
        """``of`` makes the value of those of its parts; text is the name of a dimension."""
        self._of = of
        self._parts = tuple(parts)
        #: Dimensions that it differs along.
        self.dims: frozenset[str] = dims.union(*(part.dims for part in self._parts))
        #: Whether it depends on what is in memory.
        self.loaded: bool = loaded or any(part.loaded for part in self._parts)

    def at(self, positions: Mapping[str, Values]) -> Values:
        """The value at some positions, which are given for each dimension.

        Raises:
            UnreadableError: it cannot be worked out.
        """
        try:
            with np.errstate(all="ignore"):
                return np.asarray(self._at(positions, {}))
        except (TypeError, ValueError, RecursionError) as error:
            raise UnreadableError(f"an index cannot be worked out: {error}") from error

    def _at(self, positions: Mapping[str, Values], known: dict[int, Any]) -> Any:
        found = known.get(id(self))
        if found is None:
            if isinstance(self._of, str):
                found = positions[self._of]
            else:
                found = self._of(*(part._at(positions, known) for part in self._parts))
            known[id(self)] = found
        return found


def unknown(parts: Sequence[Value]) -> Value:
    """A value that is not known, but the same where all ``parts`` are."""
    return Value(_mixed, parts, loaded=True)


def _mixed(*parts: Any) -> Any:
    total: Any = np.zeros(1, dtype=np.int64)
    for part in parts:
        number = np.asarray(part).astype(np.float64)
        whole = np.where(np.isfinite(number), np.clip(number, -(2.0**62), 2.0**62), 0.0)
        total = (total * 31 + whole.astype(np.int64)) % _MIXED
    return (total * _HASH % _MIXED) % _RANGE


def constant(number: float) -> Value:
    """A number that stands in the source."""
    return Value(lambda: np.asarray([number]))


class Names:
    """What the names of a kernel mean so far; each expression becomes a :class:`Value`."""

    def __init__(self, given: Mapping[str, Value]) -> None:
        """``given``: arguments and dimensions."""
        self._known = dict(given)

    def set(self, name: str, value: Value) -> None:
        """From here on, the name means that."""
        self._known[name] = value

    def value(self, expression: ast.expr) -> Value:
        """The value of an expression.

        Raises:
            UnreadableError: it has a name that means nothing.
        """
        match expression:
            case ast.Constant(value=bool() | int() | float() as number):
                return constant(number)
            case ast.Constant():
                return constant(0)
            case ast.Name(id=name):
                if name not in self._known:
                    raise UnreadableError(f"{name!r} is used, but nothing says what it is")
                return self._known[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Value(_BINARY[type(op)], (self.value(left), self.value(right)))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return Value(_UNARY[type(op)], (self.value(operand),))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                return Value(_COMPARISONS[type(op)], (self.value(left), self.value(right)))
            case ast.Subscript(value=inner):
                # A dimension more, of one element.
                return self.value(inner)
            case ast.Call():
                return self._call(expression)
            case _:
                return unknown([self.value(part) for part in _names_in(expression)])

    def _call(self, call: ast.Call) -> Value:
        match call.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _MODULES:
                of_module = True
            case ast.Attribute(value=inner, attr=name):
                of_module = False
            case ast.Name(id=name):
                of_module = True
            case _:
                raise UnreadableError(f"a call of {ast.unparse(call.func)}")
        if not of_module:
            value = self.value(inner)
            if name == "to" and call.args:
                return _converted(value, ast.unparse(call.args[0]))
            return value if name in _SAME_VALUE else unknown([value])
        at = 1 if name == "full" else 0
        if (name in _SAME_VALUE or name == "full") and len(call.args) > at:
            return self.value(call.args[at])
        if name in _FIXED:
            return constant(_FIXED[name])
        parts = [self.value(part) for part in call.args if not isinstance(part, ast.List)]
        if name in _FUNCTIONS and parts and not call.keywords:
            return Value(_FUNCTIONS[name], parts)
        return unknown(parts)


def _converted(value: Value, dtype: str) -> Value:
    kinds = {"tl.int1": np.bool_, "tl.float16": np.float64, "tl.float32": np.float64}
    kinds |= {"tl.float64": np.float64, "tl.bfloat16": np.float64}
    kinds |= {f"tl.{sign}int{bits}": np.int64 for sign in ("", "u") for bits in (8, 16, 32, 64)}
    kind = kinds.get(dtype)
    # Integers are cut off as a conversion on the device does.
    return value if kind is None else Value(lambda x: np.asarray(x).astype(kind), (value,))


def _names_in(expression: ast.expr) -> list[ast.expr]:
    return [
        node
        for node in ast.walk(expression)
        if isinstance(node, ast.Name) and node.id not in _MODULES
    ]


class Level(NamedTuple):
    """So many neighbours whose addresses are equally far apart."""

    extent: int
    #: Elements from each to the next; of irregular ones, what it is for half of them.
    stride: int


def levels(index: Callable[[Values], Values], extent: int) -> tuple[Level, ...]:
    """How an index moves along a dimension of ``extent`` positions, the nearest neighbours first.

    Position p lies at the sum of strides times the digits of p in the mixed base of the extents,
    but for a last level that is irregular. Empty where there is one position.

    Args:
        index: gives the index at each of some positions.
        extent: positions there are.
    """
    found: list[Level] = []
    step, left = 1, extent
    while left > 1:
        values = _integers(index(np.arange(min(left, _LOOKED_AT)) * step))
        moves = np.diff(values)
        first = int(moves[0])
        changed = np.flatnonzero(moves != first)
        run = int(changed[0]) + 1 if len(changed) else _run(index, values, step, left)
        if run < left and (len(found) == _LEVELS or not _repeats(values, run, first)):
            return (*found, Level(left, int(np.median(np.abs(moves)))))
        found.append(Level(run, first))
        step, left = step * run, -(-left // run)
    return tuple(found)


def _integers(values: Values) -> Values:
    return np.asarray(values, dtype=np.int64)


def _run(index: Callable[[Values], Values], values: Values, step: int, left: int) -> int:
    """How many positions lie on the line of the first two, where those looked at all do."""
    seen = len(values)
    if seen == left:
        return left
    start, move = int(values[0]), int(values[1] - values[0])

    def off(positions: Values) -> Values:
        strayed: Values = _integers(index(positions * step)) != start + move * positions
        return strayed

    low, high = seen - 1, left - 1
    doubled = np.unique(np.minimum(seen << np.arange(left.bit_length()), high))
    strayed = doubled[off(doubled)]
    if not len(strayed):
        return left
    high = int(strayed[0])
    while high - low > 1:
        middle = (low + high) // 2
        if off(np.array([middle]))[0]:
            high = middle
        else:
            low = middle
    return high


def _repeats(values: Values, run: int, move: int) -> bool:
    """Whether each whole stretch of that length is as the first is."""
    whole = len(values) // run * run
    stretches = values[:whole].reshape(-1, run)
    return bool((stretches - stretches[:, :1] == move * np.arange(run)).all())
