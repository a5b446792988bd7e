"""Products with a vector as sums: a kernel of their own in the place of a library call.

A product of a matrix and a vector only reads the matrix, and a generated reduction does that as
fast as memory allows once its block sizes are tuned; what comes after and what the matrix is made
from are fused into it. The vector is stored: it is read anew for each row of the matrix.
The lowering of such products is replaced once a process by a dispatcher that asks a context
variable: where nothing is wanted in this context, Inductor calls the library. Nothing here decides
where that is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx
from torch._inductor.ir import ExternKernel, TensorBox
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.lowering_calls import lower_otherwise
from fusewise.compiler.inductor.replacing import once, switched

aten = torch.ops.aten
#: Types of 16 bits, whose products are exact in fp32.
HALF = (torch.float16, torch.bfloat16)
_active: ContextVar[bool] = ContextVar("fusewise_products", default=False)


def products_as_sums(wanted: bool) -> AbstractContextManager[None]:
    """Have products with a vector on a GPU computed as sums in this context, if that is wanted."""
    return switched(_active, wanted, _install)


def vector_products(gm: torch.fx.GraphModule) -> int:
    """Bytes of the matrices that a graph multiplies by vectors on a GPU."""
    total = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in _PRODUCTS:
            continue
        left, right = (arg.meta.get("val") for arg in node.args[-2:])
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            continue
        static = all(isinstance(n, int) for n in (*left.shape, *right.shape))
        vector = static and (left.shape[-2] == 1 or right.shape[-1] == 1)
        if vector and left.device.type == "cuda":
            total += max(left.numel() * left.itemsize, right.numel() * right.itemsize)
    return total


@once
def _install() -> None:
    lower_otherwise(_lowered)


def _lowered(_graph: object, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    sums = _PRODUCTS.get(target) if _active.get() else None
    return None if sums is None else sums(args, kwargs)


def _mm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    left, right, *others = args
    if others or kwargs or not _with_vector(left, right):
        return None
    return _summed(left, right, 2, 0, 1)


def _bmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    left, right, *others = args
    if others or kwargs or not _with_vector(left, right):
        return None
    return _summed(left, right, 3, 1, 2)


def _addmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    bias, left, right, *others = args
    scales = {"beta": 1, "alpha": 1, **kwargs}
    if others or scales != {"beta": 1, "alpha": 1} or not _with_vector(left, right):
        return None
    dtype = left.get_dtype()
    product = _summed(left, right, 2, 0, 1, keep=True)
    return cast(lowerings[aten.add.Tensor](widened(bias), product), dtype)


_PRODUCTS: dict[Any, Callable[[Sequence[Any], Mapping[str, Any]], Any]] = {
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _addmm,
}


def _with_vector(left: Any, right: Any) -> bool:
    device = left.get_device()
    one = V.graph.sizevars.statically_known_equals
    return (
        device is not None
        and device.type == "cuda"
        and left.get_dtype() == right.get_dtype()
        and left.get_dtype().is_floating_point
        and (one(left.get_size()[-2], 1) or one(right.get_size()[-1], 1))
    )


def _summed(left: Any, right: Any, last: int, rows: int, over: int, *, keep: bool = False) -> Any:
    """The product as a sum; ``keep``: in the precision that it is added up in."""
    dtype = left.get_dtype()
    if V.graph.sizevars.statically_known_equals(left.get_size()[-2], 1):
        left = _stored(left)
    else:
        right = _stored(right)
    each = lowerings[aten.mul.Tensor](
        lowerings[aten.unsqueeze.default](widened(left), last),
        lowerings[aten.unsqueeze.default](widened(right), rows),
    )
    result = lowerings[aten.sum.dim_IntList](each, [over])
    return result if keep else cast(result, dtype)


def _stored(value: Any) -> Any:
    """What a library would be given in its place: a buffer, and no more of it than is read."""
    found = ExternKernel.realize_input(value)
    return found if isinstance(found, TensorBox) else TensorBox(found)


def widened(value: Any) -> Any:
    """A lowered value in fp32 where it has 16 bits, otherwise as it is."""
    return cast(value, torch.float32) if value.get_dtype() in HALF else value


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A lowered value in ``dtype``; itself where it is that already."""
    if value.get_dtype() == dtype:
        return value
    return lowerings[torch.ops.prims.convert_element_type.default](value, dtype)
