"""What Inductor's lowering makes of one value: its box of storage, its kind, what it computes.

Reads only; stores and inlines nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

import torch.fx
from torch._inductor import ir
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.extract import hint

_Unstored = (ir.Pointwise, ir.Reduction, ir.Scan, ir.Sort)


def box_of(result: Any) -> ir.StorageBox | None:
    """The box of storage behind a single tensor, through views; None for all else."""
    if not isinstance(result, ir.TensorBox):
        return None
    data: Any = result.data
    while isinstance(data, ir.BaseView | ir.TensorBox):
        data = data.data
    return data if isinstance(data, ir.StorageBox) else None


def is_stored(box: ir.StorageBox) -> bool:
    """Whether what a box holds is a buffer."""
    return not isinstance(box.data, _Unstored)


def is_computed(box: ir.StorageBox) -> bool:
    """Whether what a box holds comes of generated code, stored or not."""
    return isinstance(_loops(box), _Unstored)


def _loops(box: ir.StorageBox) -> Any:
    data: Any = box.data
    return data.data if isinstance(data, ir.ComputedBuffer) else data


def kind_of(box: ir.StorageBox) -> Literal["pointwise", "reduction", "scan", "sort"]:
    """What kind of loops compute a value."""
    loops = _loops(box)
    if isinstance(loops, ir.Scan):
        return "scan"
    if isinstance(loops, ir.Sort):
        return "sort"
    return "reduction" if isinstance(loops, ir.Reduction) else "pointwise"


def reads_nothing(box: ir.StorageBox) -> bool:
    """Whether a value is made of constants and indices: Inductor computes it in its users always.

    So it does where the value is stored, too (``ComputedBuffer.make_loader``).
    """
    loops = _loops(box)
    return isinstance(loops, ir.Pointwise) and loops.num_reads() == 0


def operator_of(node: torch.fx.Node) -> str:
    """The operator that a node calls; of one that takes a result out of several, theirs."""
    if node.target is operator.getitem:
        whole, index = node.args[:2]
        if isinstance(whole, torch.fx.Node):
            return f"{whole.target}[{index}]"
    return str(node.target)


@dataclass(frozen=True)
class Computation:
    """What it takes to compute a value once. Sizes are size hints."""

    #: Operations and reads for one element, what is inlined included.
    ops: int
    reads: int
    #: Bytes of the value, and distinct bytes that computing all of it reads.
    bytes: int
    read_bytes: int
    iterations: int
    operations: tuple[str, ...]

    @classmethod
    def of(cls, box: ir.StorageBox) -> Computation:
        """Read it off a box that holds a computed value."""
        loops = _loops(box)
        counts = loops.inner_fn_opcount()
        numel = hint(sympy_product(loops.get_size()))
        iterations = numel * hint(sympy_product(loops.get_reduction_size()))
        read = 0
        for name in dict.fromkeys(counts.read_buffers):
            elements = min(hint(V.graph.get_numel(name)), iterations)
            read += elements * V.graph.get_dtype(name).itemsize
        return cls(
            ops=counts.num_ops,
            reads=len(counts.read_buffers),
            bytes=numel * loops.get_dtype().itemsize,
            read_bytes=read,
            iterations=iterations,
            operations=tuple(sorted(counts.used_ops)),
        )
