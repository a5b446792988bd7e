"""Facts of a Triton kernel, from its source as Inductor writes it, and from nothing else.

The source is read as a syntax tree and never run; neither torch nor Triton is needed. A kernel that
is not written as expected (several in one launch, templates, block pointers, sizes that are known
only when it runs) is unknown, which is no error. What is made of the facts is the business of
``fusewise.costmodel.block_features``.
"""

from __future__ import annotations

import ast
import functools
import itertools
import logging
from typing import Any, Final

import numpy as np

from fusewise.costmodel.triton_facts import Access, Doing, KernelFacts
from fusewise.costmodel.triton_heading import Heading, heuristic_of, is_size
from fusewise.costmodel.triton_index import (
    Level,
    Names,
    UnreadableError,
    Value,
    Values,
    constant,
    levels,
    unknown,
)

log = logging.getLogger(__name__)

#: Functions that take many instructions, and those that put values of several threads together.
_SPECIAL: Final = frozenset(
    {"exp", "exp2", "expm1", "log", "log2", "log1p", "log10", "sin", "cos", "tan", "tanh",
     "sigmoid", "erf", "erfc", "erfinv", "rsqrt", "sqrt", "sqrt_rn", "pow", "asin", "acos",
     "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "rand", "randn",
     "randint64", "div_rn", "fdiv", "fmod"}
)  # fmt: skip
_TOGETHER: Final = frozenset(
    {"sum", "max2", "min2", "max", "min", "any", "prod", "reduce", "welford", "max_with_index",
     "min_with_index", "online_softmax_reduce", "associative_scan", "sort_with_index"}
)  # fmt: skip
_WELFORD: Final = frozenset({"welford", "online_softmax_reduce"})
_SHARES: Final = 128
#: What gives an access no address for each element.
_NO_ADDRESSES: Final = frozenset({"make_block_ptr", "make_tensor_descriptor"})


@functools.lru_cache(maxsize=256)
def facts_of(source: str) -> KernelFacts | None:
    """Facts of the kernel in ``source``; None where it is none that is known."""
    try:
        return read_facts(source)
    except UnreadableError as error:
        log.debug("kernel unknown: %s", error)
        return None


def read_facts(source: str) -> KernelFacts:
    """As :func:`facts_of`.

    Raises:
        UnreadableError: it is none that is known; it says why.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UnreadableError(f"no Python: {error}") from error
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    kernels = [function for function in found if heuristic_of(function) is not None]
    if len(kernels) != 1:
        raise UnreadableError(f"{len(kernels)} kernels with a heuristic, not one")
    return _Reader(kernels[0], {function.name for function in found}).facts()


class _Reader:
    """Goes through a kernel once, from its first statement to the last."""

    def __init__(self, function: ast.FunctionDef, functions: set[str]) -> None:
        self._function = function
        self._heading = heading = Heading(function)
        self._numels = dict(heading.numels)
        self._blocks: dict[str, int] = {}
        arguments = [argument.arg for argument in function.args.args]
        given = [
            # Functions are handed to those that put values together.
            *((name, 0) for name in functions),
            *((name, 0) for name in arguments if heading.is_pointer(name)),
            *((name, 1) for name in arguments if heading.signature.get(name) == "constexpr"),
            *((f"{dim}numel", size) for dim, size in self._numels.items()),
        ]
        self._names = Names({name: constant(number) for name, number in given})
        self._index_names = {f"{dim}index": dim for dim in self._numels}
        self._accesses: list[Access] = []
        self._counts = {"operations": 0, "special": 0, "together": 0, "welford": 0}
        self._passes = 0

    def facts(self) -> KernelFacts:
        """All that was found."""
        self._statements(self._function.body, frozenset())
        if not self._accesses:
            raise UnreadableError("nothing is loaded or stored")
        heading = self._heading
        return KernelFacts(
            name=self._function.name,
            kind=heading.kind,
            numels=self._numels,
            size_hints=heading.size_hints,
            blocks=self._blocks,
            hint=heading.hint,
            accesses=tuple(self._accesses),
            passes=self._passes,
            live=_live(self._function),
            loads=heading.count("num_load"),
            stores=heading.count("num_store"),
            reductions=heading.count("num_reduction"),
            atomic=bool(heading.meta.get("atomic_add_found", False)),
            tiling_scores=dict(heading.meta.get("tiling_scores") or {}),
            each_block=heading.each_block,
            multiprocessors=heading.of_device("multi_processor_count", 1),
            most_threads=heading.of_device("max_threads_per_multi_processor", 2048),
            registers=heading.of_device("regs_per_multiprocessor", 65536),
            **self._counts,
        )

    def _statements(self, body: list[ast.stmt], looped: frozenset[str]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._assign(name, value, looped)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._assign(name, value, looped)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=value):
                    made = unknown([self._read(value, looped)])
                    for each in names:
                        if isinstance(each, ast.Name):
                            self._names.set(each.id, made)
                case ast.AugAssign(target=ast.Name(id=name), value=value):
                    if name not in self._index_names:
                        self._names.set(name, unknown([self._read(value, looped)]))
                case ast.Expr(value=ast.Call() as call):
                    self._read(call, looped)
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case ast.For(target=ast.Name(id=name), iter=ast.Call() as over):
                    self._loop(name, over, statement.body, looped)
                case _:
                    raise UnreadableError(f"line {statement.lineno} is no plain statement")

    def _loop(
        self, name: str, over: ast.Call, body: list[ast.stmt], looped: frozenset[str]
    ) -> None:
        step = over.args[-1] if over.args else None
        names = {f"{dim.upper()}BLOCK": dim for dim in self._numels}
        if not isinstance(step, ast.Name) or step.id not in names:
            raise UnreadableError(f"a loop over {ast.unparse(over)}")
        if not looped:
            self._passes += 1
        self._names.set(name, constant(0))
        self._statements(body, looped | {names[step.id]})

    def _assign(self, name: str, value: ast.expr, looped: frozenset[str]) -> None:
        if name in self._index_names:
            dim = self._index_names[name]
            self._names.set(name, Value(dim, dims=frozenset({dim})))
            return
        if isinstance(value, ast.Constant) and is_size(value.value):
            if name.removesuffix("numel") in self._numels and name.endswith("numel"):
                self._numels[name.removesuffix("numel")] = value.value
            elif name.endswith("BLOCK"):
                self._blocks[name] = value.value
        self._names.set(name, self._read(value, looped))

    def _read(self, expression: ast.expr, looped: frozenset[str]) -> Value:
        """The value of an expression; what it accesses and computes is noted."""
        replaced = _Accesses(self, looped).visit(expression)
        return self._names.value(replaced)

    def count(self, node: ast.AST) -> None:
        """Note an operation."""
        if isinstance(node, ast.BinOp | ast.Compare):
            self._counts["operations"] += 1
            self._counts["special"] += isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self._counts["special"] += node.func.attr in _SPECIAL
            self._counts["together"] += node.func.attr in _TOGETHER
            self._counts["welford"] += node.func.attr in _WELFORD
            self._counts["operations"] += node.func.attr in ("where", "maximum", "minimum", "fma")

    def access(self, call: ast.Call, doing: Doing, looped: frozenset[str]) -> str:
        """Note an access; gives the name that stands for what is loaded."""
        if not call.args:
            raise UnreadableError(f"{ast.unparse(call)} is of no address")
        pointer = call.args[0]
        named = {n.id for n in ast.walk(pointer) if isinstance(n, ast.Name)}
        pointers = sorted(name for name in named if self._heading.is_pointer(name))
        if len(pointers) != 1 or any(
            isinstance(n, ast.Attribute) and n.attr in _NO_ADDRESSES for n in ast.walk(pointer)
        ):
            raise UnreadableError(f"an access to {ast.unparse(pointer)}")
        (name,) = pointers
        index = self._names.value(pointer)
        width = self._heading.width(name)
        if width is None:
            raise UnreadableError(f"{name} points to {self._heading.signature[name]}")
        masks = call.args[1:2] if doing == "load" else call.args[2:3]
        masks = [mask for mask in masks if ast.unparse(mask) != "None"]
        mask = self._names.value(masks[0]) if masks else constant(1)
        masked = frozenset(
            dim
            for part in masks
            for node in ast.walk(part)
            if isinstance(node, ast.Name)
            for dim in self._numels
            if node.id == f"{dim}mask"
            if self._names.value(node).dims
        )
        eviction = [w.value for w in call.keywords if w.arg == "eviction_policy"]
        dims = tuple(dim for dim in self._numels if dim in index.dims)
        self._accesses.append(
            Access(
                doing=doing,
                pointer=name,
                width=width,
                dims=dims,
                levels=tuple(self._levels(index, dim) for dim in dims),
                indirect=index.loaded,
                share=self._share(mask),
                looped=looped,
                eviction=str(getattr(eviction[0], "value", "")) if eviction else "",
                masked=masked,
            )
        )
        told = f" loaded {len(self._accesses)}"
        self._names.set(told, unknown([index]))
        return told

    def _levels(self, index: Value, dim: str) -> tuple[Level, ...]:
        nowhere = {other: np.zeros(1, dtype=np.int64) for other in self._numels}

        def along(positions: Values) -> Values:
            found = index.at({**nowhere, dim: positions})
            return np.broadcast_to(found, positions.shape)

        return levels(along, self._numels[dim])

    def _share(self, mask: Value) -> float:
        """Part of some positions, drawn evenly, that a mask lets pass."""
        if mask.loaded:
            return 1.0
        steps = np.arange(1, _SHARES + 1)
        # Multiples of the square roots of primes lie evenly over all dimensions (Weyl).
        roots = dict(zip(self._numels, np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0]), strict=False))
        positions = {
            dim: (steps * root % 1.0 * self._numels[dim]).astype(np.int64)
            for dim, root in roots.items()
        }
        return float(np.mean(np.broadcast_to(mask.at(positions), steps.shape).astype(bool)))


class _Accesses(ast.NodeTransformer):
    """Notes what an expression accesses and computes, and names what it loads."""

    def __init__(self, reader: _Reader, looped: frozenset[str]) -> None:
        self._reader = reader
        self._looped = looped

    def visit(self, node: ast.AST) -> Any:
        """The node, with names where something was loaded."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            doing: dict[str, Doing] = {"load": "load", "store": "store"}
            what = doing.get(node.func.attr)
            if node.func.attr.startswith("atomic_"):
                what = "atomic"
            if what is not None:
                for at in range(1, len(node.args)):
                    node.args[at] = self.visit(node.args[at])
                name = self._reader.access(node, what, self._looped)
                return ast.Name(id=name, ctx=ast.Load())
        self._reader.count(node)
        return self.generic_visit(node)


def _live(function: ast.FunctionDef) -> int:
    """Most computed values, by name, between where they are first set and last used."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Name) or "tmp" not in node.id:
            continue
        if isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
        else:
            last[node.id] = max(last.get(node.id, 0), node.lineno)
    # What is used for the last time makes room for what is set on the same line.
    changes = sorted(
        change
        for name in first
        if last.get(name, 0) > first[name]
        for change in ((first[name], 1), (last[name], -1))
    )
    return max(itertools.accumulate(change for _, change in changes), default=0)
