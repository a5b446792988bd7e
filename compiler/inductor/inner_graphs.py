"""Graphs within a graph, such as the branches of ``torch.cond``, where Inductor fuses them.

Each has a scheduler of its own, which begins when the code of the operator that runs it is
generated. Shows them and changes nothing: they keep Inductor's own plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.fusion_trace import FusionTrace, Tracing
from fusewise.compiler.inductor.hooks import intercept_within
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.launches import Launch, follow
from fusewise.compiler.inductor.plans import owners, record_plan
from fusewise.compiler.inductor.state import GraphState

_Nodes = list[inductor_scheduler.BaseSchedulerNode]


@contextmanager
def inner_graphs(
    visit: Callable[[str, LiveGraph, FusionTrace], None],
) -> Iterator[Mapping[str, Sequence[Launch]]]:
    """Show ``visit`` each graph within the one that is generated in this context.

    It gets the name, the graph and how Inductor fused it. Gives the launches of each by its name,
    once the program is there. Names are those that begin the names of the graph's nodes and
    buffers, in Inductor's log as well.
    """
    launches: dict[str, Sequence[Launch]] = {}

    def fuse(
        scheduler: inductor_scheduler.Scheduler, nodes: _Nodes, stock: Callable[[_Nodes], _Nodes]
    ) -> _Nodes:
        graph: Any = V.graph
        name = str(graph.name)
        tracing = Tracing()

        def watched(unfused_nodes: _Nodes) -> _Nodes:
            with tracing.watch(scheduler, unfused_nodes):
                return stock(unfused_nodes)

        unfused = GraphState(scheduler, nodes)
        _, plan = record_plan(scheduler, nodes, watched)
        unfused.restore()
        visit(name, LiveGraph(scheduler, tuple(nodes), plan, ()), tracing.trace)
        owner = owners(nodes)
        fused = stock(nodes)
        launches[name] = follow(scheduler, fused, owner)
        return fused

    with intercept_within(fuse):
        yield launches
