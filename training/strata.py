"""What scores are told apart by: the class of a kernel and the size of a time.

Names of strata from problems and measured times; scores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.datasets.kernel_class import UNKNOWN, kernel_class
from fusewise.schedule.problem import Access, Node, Problem

#: Kernel classes by name, in the order in which they are told.
CLASSES: Final[dict[str, str]] = {
    "pointwise": "loops over contiguous and broadcast reads, nothing else",
    "transposed": "pointwise, and an innermost loop that jumps over memory in some read or write",
    "gather": "pointwise, and a read through an index that was loaded",
    "row reduction": "reductions along memory, done in one pass",
    "column reduction": "a reduction whose largest read is not contiguous along what is reduced",
    "multi-pass": "a loop over what was reduced waits for the reduction: softmax, normalisation",
    "scatter": "a store through an index that was loaded, atomic or not",
    "scan or sort": "a scan or a sort",
    "template": "a finished kernel with an epilogue",
    UNKNOWN: "the problem was not kept",
}
#: Upper ends of the sizes, in microseconds, and their names. 5 is where a kernel starts to count
#: (Kaufman et al. 2021, section 5).
_ENDS: Final = (2.0, 5.0, 20.0, 100.0, 1e3, 1e4)
SIZES: Final = (
    "below 2 us",
    "2 to 5 us",
    "5 to 20 us",
    "20 to 100 us",
    "0.1 to 1 ms",
    "1 to 10 ms",
    "10 ms and more",
)


def sizes_of(us: FloatArray) -> list[str]:
    """Names of the sizes of measured times [n] in microseconds."""
    return [SIZES[at] for at in np.searchsorted(_ENDS, us, side="right")]


def class_of(problem: Problem, names: Sequence[str]) -> str:
    """One of :data:`CLASSES`: finer than the class that a dataset publishes.

    Args:
        problem: that the kernel is of.
        names: of the nodes that it is made of.
    """
    coarse = kernel_class(problem, names)
    match coarse:
        case "scan" | "sort":
            return "scan or sort"
        case "reduction":
            return _kind_of_reduction(problem, names)
        case "pointwise":
            nodes = [problem.node_by_name[name] for name in names]
            jumps = any(a.kind == "strided" for node in nodes for a in (*node.reads, *node.writes))
            return "transposed" if jumps else "pointwise"
    return coarse


def _kind_of_reduction(problem: Problem, names: Sequence[str]) -> str:
    nodes = {name: problem.node_by_name[name] for name in names}
    reductions = {name: node for name, node in nodes.items() if node.rnumel > 1}
    for dep in problem.dependencies:
        producer, consumer = reductions.get(dep.producer), nodes.get(dep.consumer)
        if dep.weak or producer is None or consumer is None:
            continue
        if consumer.numel * consumer.rnumel > producer.numel:
            return "multi-pass"
    columns = any(_across(node) for node in reductions.values())
    return "column reduction" if columns else "row reduction"


def _across(node: Node) -> bool:
    """Whether the largest read jumps: the innermost loop is the one that is reduced."""
    largest: Access | None = max(node.reads, key=lambda access: access.touched, default=None)
    return largest is not None and largest.kind == "strided"
