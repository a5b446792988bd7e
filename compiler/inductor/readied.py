"""Work on a program between generating and loading it, such as building its kernels together.

Inductor compiles kernels as it loads them, each by itself. Does no such work, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from torch._inductor import graph as inductor_graph
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.hooks import Interceptor

_Nodes = list[inductor_scheduler.BaseSchedulerNode]


class Readied(Interceptor):
    """Has something done with the program once the interceptor inside has seen it."""

    def __init__(self, inner: Interceptor | None, ready: Callable[[str], object]) -> None:
        """Args:
        inner: decides, and sees the program first; None for Inductor.
        ready: called with the program, which is loaded when that returns.
        """
        self._inner = inner
        self._ready = ready

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: _Nodes,
        stock: Callable[[_Nodes], _Nodes],
    ) -> _Nodes:
        """See :class:`Interceptor`."""
        return stock(nodes) if self._inner is None else self._inner.fuse(scheduler, nodes, stock)

    def module(self, graph: inductor_graph.GraphLowering, source: str) -> None:
        """See :class:`Interceptor`."""
        if self._inner is not None:
            self._inner.module(graph, source)
        self._ready(source)
