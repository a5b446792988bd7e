"""Products of fp32 matrices on the CPU by oneDNN instead of the BLAS that PyTorch is built with.

Which library multiplies faster is a matter of the processor: MKL is tuned for Intel's, and where it
takes shorter vectors than another processor has, oneDNN needs less than half of its time. Both come
with PyTorch, sum in fp32 and differ in the last digits. oneDNN is reached through the operator that
Inductor has for frozen weights, here with weights as they are. Says which products outweigh what
its call costs; which library is the faster one here, the device's profile knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._inductor import ir, mkldnn_ir
from torch._inductor.lowering import lowerings

from fusewise.compiler.inductor.extract import UNKNOWN, hint
from fusewise.compiler.inductor.lowering_calls import lower_otherwise
from fusewise.compiler.inductor.products import HALF
from fusewise.compiler.inductor.replacing import once, switched

aten = torch.ops.aten
#: Operations (an addition and a multiplication counting two) below which a product is left to the
#: BLAS: a call of oneDNN takes some ten microseconds more.
_LEAST_FLOPS = 4e6
#: Columns of the result from which a first matrix may be copied: oneDNN wants its rows contiguous.
_LEAST_COLUMNS = 64
_active: ContextVar[bool] = ContextVar("fusewise_onednn_products", default=False)


def onednn_products(wanted: bool) -> AbstractContextManager[None]:
    """Have products of fp32 matrices on the CPU computed by oneDNN here, if that is wanted."""
    return switched(_active, wanted, _install)


def onednn_count(gm: torch.fx.GraphModule, *, wide: bool = False) -> int:
    """How many operators of a graph :func:`onednn_products` would have computed by oneDNN.

    ``wide``: where products of 16-bit values are computed in fp32.
    """
    dtypes = (torch.float32, *HALF) if wide else (torch.float32,)
    return sum(_is_product(node, dtypes) for node in gm.graph.nodes)


def _is_product(node: torch.fx.Node, dtypes: Sequence[torch.dtype]) -> bool:
    if node.op != "call_function":
        return False
    parts = _parts(node.target, node.args, node.kwargs)
    values: list[Any] = [part.meta.get("val") for part in parts]
    if not values or not all(isinstance(v, torch.Tensor) and v.dtype in dtypes for v in values):
        return False
    return _counts(
        [_Operand(v.device, [*map(_known, v.shape)], [*map(_known, v.stride())]) for v in values]
    )


def _known(size: Any) -> int:
    """A size of a captured graph, of one that is only known at run time what it was when traced."""
    return size if isinstance(size, int) else int(size.node.hint or UNKNOWN)


@once
def _install() -> None:
    lower_otherwise(_lowered)


def _lowered(_graph: object, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if not _active.get():
        return None
    parts = _parts(target, args, kwargs)
    if not parts or any(part.get_dtype() != torch.float32 for part in parts):
        return None
    if not _counts([_lowered_operand(part) for part in parts]):
        return None
    left, right, *bias = parts
    right.realize()
    columns = ir.ExternKernel.realize_input(lowerings[aten.permute.default](right, [1, 0]))
    if not _has_kernel(columns.get_size(), columns.get_stride()):
        columns = ir.ExternKernel.require_contiguous(columns)
    inputs = [_contiguous(left), columns, *map(_contiguous, bias)]
    layout = ir.FixedLayout(
        device=left.get_device(),
        dtype=left.get_dtype(),
        size=[left.get_size()[0], right.get_size()[1]],
    )
    # No activation within the call: what Inductor passes for that, its scalars and its algorithm.
    constants = [*([] if bias else [None]), "none", [-1], ""]
    return ir.TensorBox.create(mkldnn_ir.LinearUnary(layout, inputs, constants))


def _contiguous(part: Any) -> Any:
    return ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(part))


def _has_kernel(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether oneDNN has a kernel for a second matrix of that layout, either way round.

    For parts of wider matrices it has none but the one that it tests others by, which takes a
    thousand times as long.
    """
    return list(stride) in ([size[1], 1], [1, size[0]])


def _lowered_operand(part: Any) -> _Operand:
    stride = part.maybe_get_stride()
    return _Operand(
        part.get_device(),
        [hint(size) for size in part.get_size()],
        None if stride is None else [hint(step) for step in stride],
    )


def _parts(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """First and second matrix and, where there is one, what is added to each row; none of others.

    Scaled products are left to the BLAS.
    """
    if target is aten.mm.default and len(args) == 2 and not kwargs:  # noqa: PLR2004
        return args
    plain = {"beta": 1, "alpha": 1}
    if target is aten.addmm.default and len(args) == 3 and {**plain, **kwargs} == plain:  # noqa: PLR2004
        bias, left, right = args
        return left, right, bias
    return ()


@dataclass(frozen=True)
class _Operand:
    device: torch.device | None
    size: list[int]
    #: None where it is not decided yet: rows will be contiguous.
    stride: list[int] | None


def _counts(parts: Sequence[_Operand]) -> bool:
    """Whether oneDNN can be had for a product, and outweighs what its call and a copy cost.

    A matrix times a vector is no such product: it only reads the matrix.
    """
    left, right, *bias = parts
    if any(part.device is None or part.device.type != "cpu" for part in parts):
        return False
    onednn: Any = torch.backends.mkldnn
    # A user may have switched it off.
    (rows, inner), columns = left.size, right.size[1]
    if not (onednn.is_available() and onednn.enabled) or any(b.size != [columns] for b in bias):
        return False
    turned = left.stride is not None and left.stride[-1] != 1
    return (
        min(rows, columns) > 1
        and (right.stride is None or _has_kernel(right.size, right.stride))
        and 2.0 * rows * inner * columns >= _LEAST_FLOPS
        and (columns >= _LEAST_COLUMNS or not turned)
    )
