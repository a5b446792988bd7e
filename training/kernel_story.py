"""What a kernel is, in words and numbers: for the report's list of the worst ones.

Tells; judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from fusewise.costmodel.interface import FloatArray
from fusewise.schedule.problem import Access, Node, Problem
from fusewise.training.judged import JudgedKernels
from fusewise.training.scores import LARGE_US

#: Operations of a node that say nothing of its arithmetic.
_PLAIN: Final = frozenset({"load", "store", "output", "constant", "index_expr", "get_index"})
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class NodeStory(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a kernel."""

    name: str
    kind: str
    ranges: str
    operations: str
    accesses: str
    #: Operators of the captured graph.
    origins: str
    #: ``file:line`` of the program, "" where it is not known.
    source: str


class KernelStory(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel with its times in microseconds."""

    family: str
    #: Name of the program in its corpus.
    sample: str
    kernel_class: str
    measured_us: float
    predicted_us: float
    low_us: float
    high_us: float
    roofline_us: float
    flagged: bool
    nodes: tuple[NodeStory, ...]
    #: Nodes that are not told.
    more: int

    @property
    def factor(self) -> float:
        """Predicted over measured time."""
        return self.predicted_us / self.measured_us


def worst_rows(judged: JudgedKernels, predicted: FloatArray, count: int = 20) -> list[int]:
    """Rows of the kernels that are furthest off by factor, the worst first.

    Those of 5 us and more come before all others.
    """
    measured = judged.samples.median_us
    off = np.abs(np.log(predicted / measured))
    order = np.lexsort((-off, measured < LARGE_US))
    return [int(row) for row in order[:count]]


def nodes_told(
    problem: Problem, names: Sequence[str], most: int = 12
) -> tuple[tuple[NodeStory, ...], int]:
    """Stories of the first ``most`` nodes, and how many more there are."""
    nodes = [problem.node_by_name[name] for name in names]
    return tuple(_node(node) for node in nodes[:most]), max(len(nodes) - most, 0)


def sample_of(sources: Mapping[str, str], graph_key: str) -> str:
    """Name of the program that a graph is of."""
    return sources.get(graph_key, "") or "unknown"


def _node(node: Node) -> NodeStory:
    outer, inner = node.ranges
    reduced = f" reduced over {_product(inner)} by {node.reduction_type or 'scan'}" if inner else ""
    counts = [f"{name} {n}" if n > 1 else name for name, n in node.ops if name not in _PLAIN]
    return NodeStory(
        name=node.name,
        kind=node.kind,
        ranges=f"{_product(outer) or '1'}{reduced}",
        operations=", ".join(counts),
        accesses="; ".join(
            f"{verb} {_access(access)}"
            for verb, accesses in (("reads", node.reads), ("writes", node.writes))
            for access in accesses
        ),
        origins=", ".join(dict.fromkeys(_short(origin) for origin in node.origins)),
        source=node.source,
    )


def _access(access: Access) -> str:
    stride = f" of stride {access.stride}" if access.kind == "strided" else ""
    held = f", wanted in {access.held:.1%} of the turns" if access.held < 1.0 else ""
    return f"{bytes_told(access.bytes)} {access.kind}{stride}, {access.itemsize} B each{held}"


def bytes_told(count: int) -> str:
    """A number of bytes as people read it."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _product(extents: Sequence[int]) -> str:
    return " × ".join(str(extent) for extent in extents)


def _short(origin: str) -> str:
    """``aten.mul.Tensor`` as ``mul``."""
    parts = origin.split(".")
    return parts[1] if len(parts) > 1 else origin
