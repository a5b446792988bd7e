"""Problems of a single node for C++ loops, and what is told of them."""

from __future__ import annotations

from typing import Any

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.features import Featurizer
from fusewise.schedule.problem import Access, Buffer, Node, Problem


def access(kind: Any, index: str, elements: int, stride: int, buffer: str = "a") -> Access:
    """An access to fp32 elements of ``buffer``."""
    return Access(buffer, kind, elements, 4 * elements, 4, stride, index)


def problem_of(
    ranges: tuple[tuple[int, ...], tuple[int, ...]], read: Access, written: Access
) -> Problem:
    """One node, ``op``, that reads "a" and writes "b", and sums where its ranges reduce."""
    numel, rnumel = 1, 1
    for n in ranges[0]:
        numel *= n
    for n in ranges[1]:
        rnumel *= n
    node = Node(
        name="op",
        kind="reduction" if ranges[1] else "pointwise",
        device="cpu",
        numel=numel,
        rnumel=rnumel,
        ranges=ranges,
        reduction_type="sum" if ranges[1] else "",
        reads=(read,),
        writes=(written,),
        ops=(("load", 1), ("add", 1), ("store", 1)),
        origins=(),
        source="",
        order=0,
        compiler_us=0.0,
        flops=0,
        signature="op",
    )
    buffers = tuple(
        Buffer(name, 4 * numel * rnumel, "torch.float32", name == "a", name == "b", ("op",))
        for name in ("a", "b")
    )
    return Problem("key", "inference", (node,), buffers, (), ())


def column(problem: Problem, profile: DeviceProfile, name: str, *nodes: str) -> float:
    """A column of ``nodes`` (of "op") that is told as the log2 of a number and one: that number."""
    value = Featurizer(problem, profile).group(nodes or ["op"])[COLUMN[name]]
    return float(2.0**value - 1.0)
