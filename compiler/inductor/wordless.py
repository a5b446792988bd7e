"""Grounds of refusals that Inductor makes without a word: from what the two sides are.

Code generators mostly say nothing. Looks at the sides only; asks and changes nothing.
"""

from __future__ import annotations

from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.refusals import Refusal


def wordless_ground(
    scheduler: inductor_scheduler.Scheduler,
    node1: inductor_scheduler.BaseSchedulerNode,
    node2: inductor_scheduler.BaseSchedulerNode,
) -> tuple[Refusal, str]:
    """The ground of a refusal that Inductor gave no words for, and words of ours."""
    streams = getattr(scheduler, "node_to_stream", {})
    stream1, stream2 = streams.get(node1), streams.get(node2)
    if stream1 is not None and stream2 is not None and stream1 != stream2:
        return Refusal.STREAM, f"stream {stream1} and stream {stream2}"
    for name in ("FusedNestedReductions", "FusedMixOrderReductions"):
        kind = getattr(inductor_scheduler, name, None)
        if kind is not None and isinstance(node1, kind) | isinstance(node2, kind):
            which = node1 if isinstance(node1, kind) else node2
            return Refusal.MIXED_REDUCTIONS, f"{which.get_name()} is of {name}"
    if isinstance(node1, inductor_scheduler.ExternKernelSchedulerNode):
        return Refusal.EXTERN, f"{node1.get_name()} is a kernel of the program's own"
    for node in (node1, node2):
        if node.is_template():
            return Refusal.TEMPLATE, f"{node.get_name()} is a template"
    count = len(node1.get_nodes()) + len(node2.get_nodes())
    if node1.get_device() is not None and not node1.is_gpu():
        most = inductor_config.cpp.max_horizontal_fusion_size
        if count > most:
            return Refusal.TOO_MANY_NODES, f"{count} nodes; cpp.max_horizontal_fusion_size={most}"
    loops1, loops2 = node1.group[1], node2.group[1]
    if loops1 != loops2:
        return Refusal.LOOP_SIZES, f"loops {_loops(loops1)} and {_loops(loops2)}"
    if node1.is_reduction():
        return Refusal.CODE_GENERATOR, f"the reduction in {node1.get_name()} has to end first"
    return Refusal.CODE_GENERATOR, "refused by the code generator"


def _loops(group: Any) -> str:
    """Extents of the loops of a group, reduced ones after a bar: ``64 | 32``."""
    parts = [part if isinstance(part, tuple | list) else (part,) for part in group]
    return " | ".join(" x ".join(map(str, part)) or "1" for part in parts if part != ())
