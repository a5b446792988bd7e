"""Operators that Inductor has no code for, known before it meets the first of them.

Inductor learns of each when it first lowers it: from then on, in the same process, values that one
takes are stored as soon as they are computed. So the first compile of a graph makes other nodes
than all later ones, and a schedule that was made in one process is refused in the next. Learns
nothing that Inductor would not have learnt by the end of the compile.
"""

from __future__ import annotations

import torch
import torch.fx
from torch._inductor import lowering as inductor_lowering
from torch._ops import OpOverload


def meet_fallbacks(gm: torch.fx.GraphModule) -> None:
    """Have Inductor lower a graph, and those within it, as if it had lowered it before."""
    for module in gm.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            target = node.target
            if isinstance(target, OpOverload) and target not in inductor_lowering.lowerings:
                inductor_lowering.add_needs_realized_inputs(target)
