"""The code of a sample as a graph of torch operations.

The file is parsed, and each statement becomes a node. Whatever is not a torch operation on the
model's own values is refused, so no code of a sample ever runs as Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch._functorch.predispatch
from torch import fx

from fusewise.datasets.graphnet.meta import Unloadable

CPU = torch.device("cpu")

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_IN_PLACE: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.iadd,
    ast.Sub: operator.isub,
    ast.Mult: operator.imul,
    ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv,
    ast.Mod: operator.imod,
    ast.Pow: operator.ipow,
    ast.BitAnd: operator.iand,
    ast.BitOr: operator.ior,
    ast.BitXor: operator.ixor,
}

#: Namespaces whose public functions are operations. Plain ``torch`` is handled apart, since it
#: also holds functions that read files.
_NAMESPACES: dict[str, Any] = {
    "nn.functional": torch.nn.functional,
    "functional": torch.functional,
    "linalg": torch.linalg,
    "special": torch.special,
    "fft": torch.fft,
    "_C._nn": torch._C._nn,
    "_C._linalg": torch._C._linalg,  # type: ignore[attr-defined]
    "_C._special": torch._C._special,  # type: ignore[attr-defined]
    "_C._fft": torch._C._fft,  # type: ignore[attr-defined]
    "ops.aten": torch.ops.aten,
}
_VMAP = {
    f"{space}.{name}": getattr(torch._functorch.predispatch, name)
    for space in ("_functorch.predispatch", "_C._functorch")
    for name in (
        "_add_batch_dim",
        "_remove_batch_dim",
        "_vmap_increment_nesting",
        "_vmap_decrement_nesting",
    )
}
#: Calls without an effect on values; dropped. Without autocast a model computes in the dtype of
#: its weights.
_NO_EFFECT = {
    "_C._log_api_usage_once",
    "_C._set_grad_enabled",
    "_check",
    "_check_is_size",
    "_functorch.predispatch.lazy_load_decompositions",
    "_functorch.vmap.lazy_load_decompositions",
    "autograd.function.FunctionCtx",
    "amp.autocast_mode._enter_autocast",
    "amp.autocast_mode._exit_autocast",
    "ops.aten._assert_scalar",
    "ops.aten._assert_scalar.default",
}
_SYMBOLIC = {"sym_sum", "sym_int", "sym_max", "sym_min", "sym_float", "sym_not", "sym_sqrt"}
_REFUSED_FUNCTIONS = {"from_file", "save", "load", "manual_seed", "set_num_threads"}
_REFUSED_METHODS = {
    *("apply_", "backward", "data_ptr", "map_", "map2_", "module_load", "numpy", "register_hook"),
    *("register_post_accumulate_grad_hook", "requires_grad_", "resize_", "resize_as_", "set_"),
    *("share_memory_", "storage", "tolist", "untyped_storage", "squeeze_", "unsqueeze_", "t_"),
    *("transpose_", "swapaxes_", "swapdims_", "as_strided_", "detach_", "record_stream"),
}
_DUNDER_METHODS = {"__and__", "__or__", "__xor__", "__eq__", "__ne__", "__lt__", "__gt__"}
_MOVES = {"cpu", "cuda"}
_ATTRIBUTES = {"T", "mT", "H", "mH", "shape", "dtype", "ndim", "real", "imag", "data"}
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


def parse(text: str) -> fx.Graph:
    """The graph of a ``model.py``; its placeholders are the arguments of the model, by name.

    All devices in it are the CPU.

    Raises:
        Unloadable: the file holds anything but imports of torch and one class with a
            straight-line ``forward`` of torch operations; names what.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unloadable(f"its model.py cannot be parsed: {error}") from error
    return _Reader().read(_forward(tree))


def _forward(tree: ast.Module) -> ast.FunctionDef:
    found: list[ast.FunctionDef] = []
    for part in tree.body:
        match part:
            case ast.Import(names=[ast.alias(name="torch", asname=None)]):
                pass
            case ast.ImportFrom(module="torch" | "math", level=0, names=names) if all(
                alias.name in {"device", "inf", "nan"} and alias.asname is None for alias in names
            ):
                pass
            case ast.ClassDef(
                body=[ast.FunctionDef(name="forward", decorator_list=[]) as function],
                decorator_list=[],
                keywords=[],
            ) if [ast.unparse(base) for base in part.bases] == ["torch.nn.Module"]:
                found.append(function)
            case _:
                raise Unloadable(f"its model.py holds {_short(part)}")
    if len(found) != 1:
        raise Unloadable(f"its model.py holds {len(found)} modules where one is expected")
    return found[0]


def _short(part: ast.AST) -> str:
    return repr(" ".join(ast.unparse(part).split())[:100])


class _Reader:
    """Reads one forward; values are nodes of the graph or literals."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.known: dict[str, Any] = {"inf": math.inf, "nan": math.nan, "Ellipsis": ...}

    def read(self, function: ast.FunctionDef) -> fx.Graph:
        given = function.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults or given.posonlyargs:
            raise Unloadable("its forward takes more than plain arguments")
        for argument in given.args[1:]:
            self.known[argument.arg] = node = self.graph.placeholder(argument.arg)
            annotation = argument.annotation
            node.meta["annotation"] = "" if annotation is None else ast.unparse(annotation)
        for statement in function.body:
            self.statement(statement)
            if isinstance(statement, ast.Return):
                return self.graph
        raise Unloadable("its forward returns nothing")

    def statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Return(value=value):
                self.graph.output(None if value is None else self.value(value))
            case ast.Expr(value=ast.Call() as call):
                self.value(call)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value)
                for target in targets:
                    self.assign(target, result)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                self.known[name] = self.call(
                    self.operator(_IN_PLACE, op), (self.name(name), self.value(value))
                )
            case _:
                raise Unloadable(f"its forward is not straight-line code: {_short(statement)}")

    def assign(self, target: ast.expr, result: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.known[name] = result
            case ast.Subscript(value=base, slice=index):
                self.call(operator.setitem, (self.value(base), self.value(index), result))
            case _:
                raise Unloadable(f"its forward assigns to {_short(target)}")

    def operator(self, table: dict[type[ast.AST], Callable[..., Any]], op: ast.AST) -> Any:
        if type(op) not in table:
            raise Unloadable(f"its forward uses the operator {type(op).__name__}")
        return table[type(op)]

    def name(self, name: str) -> Any:
        if name not in self.known:
            raise Unloadable(f"its forward uses the name {name!r}, which it did not assign")
        return self.known[name]

    def value(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.name(name)
            case ast.Tuple(elts=parts):
                return tuple(self.value(part) for part in parts)
            case ast.List(elts=parts):
                return [self.value(part) for part in parts]
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(part and self.value(part) for part in (lower, upper, step)))
            case ast.UnaryOp(op=op, operand=operand):
                return self.call(self.operator(_OPERATORS, op), (self.value(operand),))
            case ast.BinOp(left=left, op=op, right=right):
                both = (self.value(left), self.value(right))
                return self.call(self.operator(_OPERATORS, op), both)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                both = (self.value(left), self.value(right))
                return self.call(self.operator(_OPERATORS, op), both)
            case ast.Subscript(value=base, slice=index):
                return self.call(operator.getitem, (self.value(base), self.value(index)))
            case ast.Attribute():
                return self.attribute(expression)
            case ast.Call():
                return self.called(expression)
        raise Unloadable(f"its forward holds {_short(expression)}")

    def attribute(self, expression: ast.Attribute) -> Any:
        if (path := _torch_path(expression)) is not None:
            constant = getattr(torch, path, None)
            if isinstance(constant, _CONSTANTS):
                return constant
        elif expression.attr == "device":
            return CPU
        elif expression.attr in _ATTRIBUTES:
            return self.call(getattr, (self.value(expression.value), expression.attr))
        raise Unloadable(f"its forward reads {_short(expression)}")

    def called(self, call: ast.Call) -> Any:
        function = call.func
        path = _torch_path(function)
        if path == "device" or (isinstance(function, ast.Name) and function.id == "device"):
            return CPU
        if path in _NO_EFFECT:
            return None
        args = tuple(self.value(argument) for argument in call.args)
        kwargs = {keyword.arg: self.value(keyword.value) for keyword in call.keywords}
        if None in kwargs:
            raise Unloadable(f"its forward unpacks arguments: {_short(call)}")
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        match function:
            case ast.Name(id="slice") if not kwargs:
                return slice(*args)
            case ast.Name(id="float") if len(args) == 1 and not kwargs and not _is_node(args[0]):
                return float(args[0])
            case ast.Attribute() if path == "Size":
                return tuple(args[0])
            case ast.Attribute() if path is not None:
                return self.call(_operation(path), args, kwargs)
            case ast.Attribute(value=base, attr=name):
                return self.method(self.value(base), name, args, kwargs)
        raise Unloadable(f"its forward calls {_short(function)}")

    def method(self, base: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        if not _is_node(base):
            raise Unloadable(f"its forward calls {name!r} of something that is no tensor")
        if name in _MOVES:
            return base
        allowed = name in _DUNDER_METHODS or not name.startswith("_")
        if not allowed or name in _REFUSED_METHODS or not callable(getattr(torch.Tensor, name, 0)):
            raise Unloadable(f"its forward calls the method {name!r}")
        if name == "to":
            args = tuple(CPU if isinstance(part, str) else part for part in args)
        return self.graph.call_method(name, (base, *args), kwargs)

    def call(self, target: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        if target in _OPERATORS.values() and all(isinstance(part, int | float) for part in args):
            if target is operator.neg:
                return -args[0]
            raise Unloadable(f"its forward computes {target.__name__} of {args}")
        return self.graph.call_function(target, args, kwargs or {})


def _is_node(value: object) -> bool:
    return isinstance(value, fx.Node)


def _torch_path(expression: ast.expr) -> str | None:
    """``nn.functional.relu`` for ``torch.nn.functional.relu``; None for anything else."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    if isinstance(expression, ast.Name) and expression.id == "torch" and parts:
        return ".".join(reversed(parts))
    return None


def _operation(path: str) -> Callable[..., Any]:
    """The operation of that name below ``torch``.

    Raises:
        Unloadable: it is none.
    """
    space, _, name = path.rpartition(".")
    refused = Unloadable(f"its forward calls torch.{path}, which is no known operation")
    if path in _VMAP:
        bracket: Callable[..., Any] = _VMAP[path]
        return bracket
    if space.startswith("ops.aten."):
        space, overload = "ops.aten", name
        packet = _operation(space + "." + path.split(".")[2])
        found = getattr(packet, overload, None)
        if not isinstance(found, torch._ops.OpOverload):
            raise refused
        return found
    if name in _REFUSED_FUNCTIONS or name.startswith("__"):
        raise refused
    if space == "":
        known = hasattr(torch._C._VariableFunctions, name) or name in torch.functional.__all__
        if not known and name not in _SYMBOLIC:
            raise refused
        found = getattr(torch, name, None)
    else:
        found = getattr(_NAMESPACES.get(space), name, None)
    if not callable(found) or isinstance(found, type | ModuleType):
        raise refused
    operation: Callable[..., Any] = found
    return operation
