"""What the operations of a loop body go along, which are equal, and how often masks let them be.

An expression that was inlined twice is computed once, and what does not go along an inner loop once
for all its turns. What stands under a mask is neither read nor computed where a whole vector is
outside of it: masks by positions are evaluated at places drawn at random, always the same ones.
Reads only.
"""

from __future__ import annotations

import functools
import operator
from collections import ChainMap, Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import sympy
import torch.fx
from numpy.typing import NDArray
from torch.utils._sympy.functions import Identity

from fusewise.compiler.inductor import bodies
from fusewise.schedule.problem import LANES, Computed

#: Runs of neighbouring places at which masks are evaluated.
_RUNS: Final = 512
_SHARE_DIGITS: Final = 3
_FUNCTIONS: Final = {
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "ModularIndexing": lambda at, divisor, modulus: at // divisor % modulus,
    "PythonMod": operator.mod,
    "Mod": operator.mod,
    "Identity": operator.pos,
    "Min": min,
    "Max": max,
}
_EVALUATED: Final[dict[str, Callable[..., Any]]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and_": np.logical_and,
    "logical_and": np.logical_and,
    "bitwise_and": operator.and_,
    "or_": np.logical_or,
    "logical_or": np.logical_or,
    "bitwise_or": operator.or_,
    "logical_not": np.logical_not,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "where": np.where,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
#: What gives its operand, as a number of some type.
_GIVING: Final = frozenset({"constant", "index_expr", "to_dtype", "identity"})

_Places = NDArray[Any]


class Load(NamedTuple):
    """An element that a body reads."""

    buffer: str
    #: Name of its index among the body's.
    place: str
    #: As :attr:`fusewise.schedule.problem.Access.held`.
    held: float


class _Value(NamedTuple):
    """Something that a body computes."""

    #: Equal for what is computed once.
    number: int
    #: Loops that it goes along, as in :attr:`fusewise.schedule.problem.Access.along`.
    along: int
    #: Its values at the places, [runs, lanes] or what spreads to that; None where positions do not
    #: tell.
    at: Callable[[], _Places | None]


def _unknown() -> None:
    return None


def computed(
    body: Any, sizes: Callable[[Any], int]
) -> tuple[tuple[Computed, ...], tuple[Load, ...]]:
    """The operations of a loop body, equal ones once, and its loads.

    Args:
        body: a ``LoopBody`` of the compiler's.
        sizes: the number to take a size for.
    """
    walk = _Walk(body, sizes)
    walk.block(body.root_block.graph, _ALWAYS, ChainMap())
    operations = tuple(
        Computed(name, count, along, held)
        for (name, along, held), count in sorted(walk.counts.items())
    )
    return operations, tuple(walk.loads)


def _always() -> _Places:
    return np.ones((1, 1), bool)


_ALWAYS: Final = _Value(-1, 0, _always)


class _Walk:
    """One pass over a body."""

    def __init__(self, body: Any, sizes: Callable[[Any], int]) -> None:
        self.body = body
        self.sizes = sizes
        self.counts: Counter[tuple[str, int, float]] = Counter()
        self.loads: list[Load] = []
        self._numbers = 0
        self._indirect: dict[str, _Value] = {}
        self._variables = [*body.vars[0], *body.vars[1]]
        extents = [max(sizes(size), 1) for group in body.sizes for size in group]
        turning = [v for v, n in zip(self._variables, extents, strict=True) if n > 1]
        self._innermost = turning[-1] if turning else None
        self._bits = {variable: 1 << k for k, variable in enumerate(turning)}
        self._extents = extents
        self._drawn: dict[sympy.Symbol, _Places] = {}

    def block(
        self, graph: torch.fx.Graph, mask: _Value, known: ChainMap[Hashable, _Value]
    ) -> _Value:
        """Go through a part of the body that is computed where ``mask`` holds; its result."""
        # What a mask is at places that another one leaves out is of no interest.
        with np.errstate(all="ignore"):
            held = _share(mask.at())
        values: dict[torch.fx.Node, _Value] = {}
        result = self._new((), _unknown)
        for node in graph.nodes:
            args = [self._value(arg, values, known) for arg in node.args]
            if node.op == "output":
                result = args[0] if args else result
            else:
                values[node] = self._node(node, args, mask, held, known)
        return result

    def _node(
        self,
        node: torch.fx.Node,
        args: Sequence[_Value],
        mask: _Value,
        held: float,
        known: ChainMap[Hashable, _Value],
    ) -> _Value:
        target = str(node.target)
        if node.op == "call_module" and target == "get_index":
            return self._index(self.body.indexing_exprs[node.args[0]], known)
        if node.op == "call_module" and target.startswith("masked_subblock"):
            self.counts["masked", _along(args), held] += 1
            inner = self.body.subblocks[target].graph
            both = _Value(-1, mask.along | args[0].along, lambda: _both(mask, args[0]))
            value = self.block(inner, both, known.new_child())
            return self._new((*args, value), _unknown)
        if node.op == "call_module" and target.startswith("set_indirect"):
            self._indirect[target.removeprefix("set_")] = args[0]
            place = ("indirect_indexing", args[0].number)
            if place not in known:
                known[place] = args[0]
                self.counts["indirect_indexing", args[0].along, held] += 1
            return args[0]
        named = [self._value(arg, {}, known) for arg in node.kwargs.values()]
        key: Hashable = (target, tuple(arg.number for arg in (*args, *named)))
        if key in known:
            return known[key]
        value = self._new(args, _evaluation(target, args))
        if node.op == "call_method":
            name = bodies.operation(node)
            self.counts[name, value.along, held] += 1
            if name == "load":
                index: Any = node.args[2]
                self.loads.append(Load(str(node.args[1]), str(index.args[0]), held))
        if node.op != "placeholder":
            known[key] = value
        return value

    def _new(self, args: Sequence[_Value], at: Callable[[], _Places | None]) -> _Value:
        self._numbers += 1
        return _Value(self._numbers, _along(args), at)

    def _value(
        self, arg: Any, values: dict[torch.fx.Node, _Value], known: ChainMap[Hashable, _Value]
    ) -> _Value:
        """What an operand is; equal numbers, names and types are one value."""
        if isinstance(arg, torch.fx.Node):
            return values[arg]
        if isinstance(arg, tuple | list):
            inner = [self._value(each, values, known) for each in arg]
            key: Hashable = tuple(each.number for each in inner)
            if key not in known:
                known[key] = self._new(inner, _unknown)
            return known[key]
        key = (type(arg), str(arg))
        if key not in known:
            number = isinstance(arg, bool | int | float)
            known[key] = self._new((), (lambda: np.asarray(arg)) if number else _unknown)
        return known[key]

    def _index(self, expr: sympy.Expr, known: ChainMap[Hashable, _Value]) -> _Value:
        """A position that an expression in the loops' variables gives, or in what was looked up."""
        expr = sympy.sympify(expr)
        found = {s: self._indirect[str(s)] for s in expr.free_symbols if str(s) in self._indirect}
        names = {s: sympy.Symbol(f"value_{value.number}") for s, value in found.items()}
        key = ("get_index", expr.xreplace(names))
        if key not in known:
            along = sum(self._bits.get(symbol, 0) for symbol in expr.free_symbols)
            at = _unknown if found else functools.cache(lambda: self._at(expr))
            value = self._new(tuple(found.values()), at)
            known[key] = value._replace(along=value.along | along)
        return known[key]

    def _at(self, expr: sympy.Expr) -> _Places | None:
        if not {type(call).__name__ for call in expr.atoms(sympy.Function)} <= _FUNCTIONS.keys():
            return None
        loops = set(self._variables)
        others = {s: sympy.Integer(self.sizes(s)) for s in expr.free_symbols if s not in loops}
        # The printer takes the compiler's mark around an expression for a matrix.
        expr = expr.xreplace(others).replace(Identity, lambda marked: marked)
        used = sorted(expr.free_symbols, key=str)
        places = self._places()
        told = sympy.lambdify(used, expr, modules=[_FUNCTIONS, "numpy"])
        return np.asarray(told(*(places[v] for v in used)))

    def _places(self) -> dict[sympy.Symbol, _Places]:
        """Positions in each loop at the places, drawn when they are first asked for."""
        if not self._drawn:
            draw = np.random.default_rng(0)
            for variable, extent in zip(self._variables, self._extents, strict=True):
                lanes = min(LANES, extent) if variable == self._innermost else 1
                start = draw.integers(0, extent - lanes + 1, (_RUNS, 1))
                self._drawn[variable] = start + np.arange(lanes)
        return self._drawn


def _along(values: Sequence[_Value]) -> int:
    return functools.reduce(operator.or_, (value.along for value in values), 0)


def _evaluation(name: str, args: Sequence[_Value]) -> Callable[[], _Places | None]:
    """How the result of an operation is found at the places, its handler the first of ``args``."""
    if name in _GIVING:
        return args[1].at
    function = _EVALUATED.get(name)
    if function is None:
        return _unknown

    @functools.cache
    def evaluated() -> _Places | None:
        operands = [arg.at() for arg in args[1:]]
        if any(operand is None for operand in operands):
            return None
        return np.asarray(function(*operands))

    return evaluated


def _both(outer: _Value, inner: _Value) -> _Places | None:
    """Where both masks hold; the one that is known bounds the other."""
    known = [each for each in (outer.at(), inner.at()) if each is not None]
    return np.logical_and.reduce(np.broadcast_arrays(*known)) if known else None


def _share(mask: _Places | None) -> float:
    """Share of the runs in which a mask holds anywhere; 1 where it is not known."""
    if mask is None:
        return 1.0
    held = np.asarray(mask, bool)
    return round(float(held.any(axis=-1).mean()), _SHARE_DIGITS)
