"""The class of a kernel: what its nodes are, in one word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusewise.schedule.problem import Problem

#: For kernels whose problem was not kept.
UNKNOWN: Final = "unknown"


def kernel_class(problem: Problem, names: Sequence[str]) -> str:
    """Class of the kernel of the nodes ``names``; the first that applies.

    ``template``, ``sort`` and ``scan`` go by a node's kind; ``scatter`` stores through a loaded
    index; ``reduction`` has a reduction node; ``gather`` loads through a loaded index; all others
    are ``pointwise``.
    """
    known = problem.node_by_name
    nodes = [known[name] for name in names if name in known]
    if not nodes or len(nodes) < len(names):
        return UNKNOWN
    kinds = {node.kind for node in nodes}
    for kind in ("template", "sort", "scan"):
        if kind in kinds:
            return kind
    if any(access.kind in ("atomic", "gather") for node in nodes for access in node.writes):
        return "scatter"
    if "reduction" in kinds:
        return "reduction"
    if any(access.kind == "gather" for node in nodes for access in node.reads):
        return "gather"
    return "pointwise"
