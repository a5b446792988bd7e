"""Products of 16-bit values computed in fp32: operands widened, the result narrowed again.

A library multiplies 16-bit values fast only where the processor has instructions for them;
elsewhere it takes them one by one, ten to a hundred times as long as the same product in fp32. The
products of two numbers of 16 bits are exact in fp32 and sums are rounded less often, so results are
at least as good. The lowering of such operators is wrapped once a process by a dispatcher that asks
a context variable: where nothing is wanted in this context, Inductor lowers them as always. Nothing
here decides where that is worth it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx
from torch._inductor import graph as inductor_graph
from torch._inductor import ir
from torch.utils import _pytree as pytree

from fusewise.compiler.inductor.lowering_calls import lower_otherwise
from fusewise.compiler.inductor.products import HALF, cast, widened
from fusewise.compiler.inductor.replacing import once, switched

aten = torch.ops.aten
#: Operators by name, since not every torch has all; of these the first ones are plain products.
_PLAIN = ("mm", "addmm", "bmm", "baddbmm")
_OTHERS = (
    "convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)


def _overload(name: str) -> Any:
    return getattr(getattr(aten, name, None), "default", None)


_PRODUCTS = frozenset(map(_overload, _PLAIN))
_ALL = (_PRODUCTS | frozenset(map(_overload, _OTHERS))) - {None}
_active: ContextVar[bool] = ContextVar("fusewise_wide_products", default=False)


def wide_products(wanted: bool) -> AbstractContextManager[None]:
    """Have products of 16-bit values on the CPU computed in fp32 here, if that is wanted."""
    return switched(_active, wanted, _install)


def half_products(gm: torch.fx.GraphModule) -> int:
    """How many operators of a graph :func:`wide_products` would compute otherwise."""
    return sum(_is_half(node) for node in gm.graph.nodes)


def _is_half(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _ALL:
        return False
    values = [_value(arg) for arg in node.args]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return bool(tensors) and _counts(
        node.target,
        [(value.device.type, value.dtype, tuple(value.shape)) for value in tensors],
    )


def _value(arg: Any) -> Any:
    return arg.meta.get("val") if isinstance(arg, torch.fx.Node) else None


def _counts(target: Any, tensors: list[tuple[str, torch.dtype, tuple[Any, ...]]]) -> bool:
    """Whether an operator on tensors of that device, dtype and shape is to be widened.

    A matrix times a vector is not: it only reads the matrix, which libraries do well enough, and
    widening would read and write it once more.
    """
    device, dtype, _ = tensors[0]
    if device != "cpu" or dtype not in HALF:
        return False
    if target not in _PRODUCTS:
        return True
    left, right = tensors[-2][2], tensors[-1][2]
    # Of sizes that are only known at run time none is taken to be one.
    return not any(isinstance(n, int) and n == 1 for n in (left[-2], right[-1]))


@once
def _install() -> None:
    lower_otherwise(_lowered)


def _lowered(
    graph: inductor_graph.GraphLowering, target: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    if not _active.get() or target not in _ALL or not _lowered_counts(target, args):
        return None
    args, kwargs = pytree.tree_map_only(ir.TensorBox, widened, (args, kwargs))
    return _narrowed(graph.call_function(target, args, kwargs), graph.current_node)


def _lowered_counts(target: Any, args: Any) -> bool:
    tensors = [arg for arg in args if isinstance(arg, ir.TensorBox)]
    return bool(tensors) and _counts(
        target,
        [
            (t.get_device_or_error().type, t.get_dtype(), tuple(map(_fixed, t.get_size())))
            for t in tensors
        ],
    )


def _fixed(size: Any) -> Any:
    return int(size) if getattr(size, "is_Integer", isinstance(size, int)) else size


def _narrowed(results: Any, node: torch.fx.Node) -> Any:
    """Results in the dtypes that they have in the captured graph."""
    wanted = node.meta["val"]
    if isinstance(results, list | tuple):
        return [_as_wanted(one, like) for one, like in zip(results, wanted, strict=True)]
    return _as_wanted(results, wanted)


def _as_wanted(value: Any, like: Any) -> Any:
    if not isinstance(value, ir.TensorBox) or not isinstance(like, torch.Tensor):
        return value
    return cast(value, like.dtype)
