"""The heading of a Triton kernel: the heuristic that Inductor gives it, with what it is told.

Read from the syntax tree; what is no literal there, such as the device, is read as the keywords it
is made with.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from fusewise.costmodel.triton_facts import DIMENSIONS, Kind
from fusewise.costmodel.triton_index import UnreadableError

#: Heuristics that kernels with block sizes of their own are made with.
KINDS: Final[dict[str, Kind]] = {
    "pointwise": "pointwise",
    "reduction": "reduction",
    "persistent_reduction": "persistent_reduction",
}
#: Grids in which each block has a place of its own along each dimension, and the one in which a
#: block goes through several.
_GRIDS: Final = frozenset({"Grid1D", "Grid2D", "Grid3D", "Grid2DWithYZOverflow"})
_MIXED_ORDER: Final = "MixOrderReductionGrid"
#: Bytes of the elements that a pointer of the signature points to.
_WIDTHS: Final = {
    "i1": 1, "i8": 1, "u8": 1, "fp8e4nv": 1, "fp8e5": 1, "fp8e4b8": 1, "fp8e5b16": 1,
    "i16": 2, "u16": 2, "fp16": 2, "bf16": 2, "i32": 4, "u32": 4, "fp32": 4,
    "i64": 8, "u64": 8, "fp64": 8,
}  # fmt: skip


class Heading:
    """What the heuristic of a kernel is told."""

    def __init__(self, function: ast.FunctionDef) -> None:
        """Read what stands above a kernel.

        Raises:
            UnreadableError: it is of a kind that is not known, or not written as expected.
        """
        heuristic = heuristic_of(function)
        assert heuristic is not None and isinstance(heuristic.func, ast.Attribute)
        if heuristic.func.attr not in KINDS:
            raise UnreadableError(f"heuristic {heuristic.func.attr!r}")
        self.kind = KINDS[heuristic.func.attr]
        told = {word.arg: word.value for word in heuristic.keywords if word.arg}
        hint = ast.unparse(told["reduction_hint"]) if "reduction_hint" in told else ""
        #: What a reduction is taken for; "" where there is none.
        self.hint = hint.rpartition(".")[2].lower()
        self.size_hints = _literal(told, "size_hints")
        self.meta = _literal(told, "inductor_meta")
        triton_meta = _literal(told, "triton_meta")
        #: Types of the arguments.
        self.signature = _dictionary(triton_meta, "signature")
        self.device = _dictionary(triton_meta, "device")
        grid = self.meta.get("grid_type")
        if grid not in _GRIDS and grid != _MIXED_ORDER:
            raise UnreadableError(f"grid {grid!r}")
        hints = self.size_hints
        if not hints or not all(d in DIMENSIONS and is_size(n) for d, n in hints.items()):
            raise UnreadableError(f"dimensions {hints}")
        #: Dimensions of the kernel in the order of a block, with their positions as far as the
        #: heading tells; upper bounds of the others.
        constants = _dictionary(triton_meta, "constants")
        self.numels: dict[str, int] = {}
        for dim in DIMENSIONS:
            if dim in hints:
                size = constants.get(f"{dim}numel")
                self.numels[dim] = size if is_size(size) else hints[dim]
        #: Positions along x that a block goes through, where it does.
        self.each_block: int | None = None
        if grid == _MIXED_ORDER:
            self.each_block = self.count("RSPLIT_SIZE") or None

    def count(self, name: str) -> int:
        """A number that Inductor notes; 0 where it does not."""
        return _count(self.meta, name)

    def of_device(self, name: str, default: int) -> int:
        """A property of the device that the kernel was generated for."""
        return _count(self.device, name) or default

    def width(self, pointer: str) -> int | None:
        """Bytes of the elements that an argument points to; None where it is no pointer."""
        return _WIDTHS.get(str(self.signature.get(pointer, "")).removeprefix("*"))

    def is_pointer(self, name: str) -> bool:
        """Whether an argument points to memory."""
        return str(self.signature.get(name, "")).startswith("*")


def heuristic_of(function: ast.FunctionDef) -> ast.Call | None:
    for decorator in function.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and isinstance(decorator.func.value, ast.Name)
            and decorator.func.value.id == "triton_heuristics"
        ):
            return decorator
    return None


def is_size(number: object) -> TypeGuard[int]:
    """Whether it is a number of positions."""
    return type(number) is int and number > 0


def _literal(told: Mapping[str, ast.expr], name: str) -> dict[str, Any]:
    """An argument of the heuristic; what is no literal becomes the keywords it is called with."""
    if name not in told:
        raise UnreadableError(f"no {name}")
    found = _plain(told[name])
    if not isinstance(found, dict):
        raise UnreadableError(f"{name} is no dictionary")
    return found


def _plain(node: ast.expr) -> Any:
    match node:
        case ast.Dict(keys=keys, values=values):
            return {
                _plain(key): _plain(value)
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant)
            }
        case ast.Call(keywords=keywords):
            return {word.arg: _plain(word.value) for word in keywords if word.arg}
        case _:
            try:
                return ast.literal_eval(node)
            except (ValueError, TypeError):
                return None


def _dictionary(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _count(told: Mapping[str, Any], name: str) -> int:
    number = told.get(name)
    return number if isinstance(number, int) and number > 0 else 0
