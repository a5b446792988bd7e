"""What Inductor takes a reduction for when it cuts it into blocks, guessed where it is not known.

The rules are those of ``Reduction.num_splits``, ``Reduction.create_multilayer`` and
``SIMDKernelFeatures.reduction_hint``. Nothing here is of the CPU.
"""

from __future__ import annotations

import re
from typing import Final

from fusewise.costmodel.blocks import Hint
from fusewise.costmodel.layout import layout_of
from fusewise.schedule.problem import Node, Problem

#: Reductions no longer than this, or with so many results for each multiprocessor, get no hint.
_SHORT, _MANY_RESULTS = 32, 64
#: Results, and length, of the second half of a split reduction that is tiny.
_TINY: Final = 512
_PLAIN_INDEX = re.compile(r"i\d+ : \d+|-?\d+ : .*")
#: Nodes whose kernels go along rows.
_ALONG_ROWS: Final = frozenset({"reduction", "scan", "sort"})


def reduction_hints(problem: Problem, cores: int) -> dict[str, Hint]:
    """What Inductor takes each reduction and scan of a graph for, by name of its node.

    One that was split in two is judged as the whole that it was
    (``Reduction.create_multilayer``).
    """
    reductions = {node.name: node for node in problem.nodes if node.kind in _ALONG_ROWS}
    first: dict[str, Node] = {}
    for dep in problem.dependencies:
        after, before = reductions.get(dep.consumer), reductions.get(dep.producer)
        if after is None or before is None or not before.origins:
            continue
        if after.numel * after.rnumel == before.numel and after.origins == before.origins:
            first[after.name] = before
    wholes = {before.name: reductions[name].numel for name, before in first.items()}
    hints = {
        name: reduction_hint(node, cores, wholes.get(name, node.numel))
        for name, node in reductions.items()
    }
    for name, before in first.items():
        after, hint = reductions[name], hints[before.name]
        few = after.rnumel <= _TINY and after.numel <= _TINY
        fewer = after.rnumel <= 2 * _TINY and after.numel <= _TINY // 2
        if not after.hint and not _is_plain(after):
            hints[name] = "outer_tiny" if hint == "outer" and (few or fewer) else hint
    return hints


def _is_plain(node: Node) -> bool:
    moving = [a for a in (*node.reads, *node.writes) if a.kind != "opaque"]
    return all(_PLAIN_INDEX.fullmatch(a.index) for a in moving)


def reduction_hint(node: Node, cores: int, results: int) -> Hint:
    """What Inductor takes a reduction for on a device of so many multiprocessors.

    ``results`` are those of the whole, where this is the first half of one that was split.
    """
    if _is_plain(node) or node.kind == "sort":
        return "inner"
    match node.hint:
        case "inner" | "outer" | "outer_tiny" | "default":
            return node.hint
    if results == 1:
        return "inner"
    whole = node.rnumel * node.numel // results
    if whole <= _SHORT or results >= cores * _MANY_RESULTS:
        return "default"
    loops = (*node.ranges[0], *node.ranges[1])
    reduced = sum(extent > 1 for extent in node.ranges[1])
    inner = outer = 0
    for access in node.reads:
        layout = layout_of(access, loops)
        if layout is None or layout.looked_up:
            continue
        split = len(layout.steps) - reduced
        if all(layout.steps[:split]):
            along = any(step == 1 for step in layout.steps[split:])
            inner, outer = inner + along, outer + (not along)
    if not inner + outer:
        return "default"
    return "inner" if inner > outer else "outer"
