"""The C++ kernels of a program built together just before it is loaded.

Inductor starts a compiler for each kernel; most of what that costs is the same for all of them.
Builds no program that is not about to be loaded here.
"""

from __future__ import annotations

from collections.abc import Callable

from torch._inductor import graph as inductor_graph
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.hooks import Interceptor
from fusewise.compiler.inductor.program import changed_settings

_Nodes = list[inductor_scheduler.BaseSchedulerNode]


class BuiltAhead(Interceptor):
    """Has the kernels built once the interceptor inside has seen the program.

    They are loaded from the library that they are in where :func:`prebuilt` says so; any that does
    not compile here is left to Inductor.
    """

    def __init__(self, inner: Interceptor | None) -> None:
        self._inner = inner

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
        build_library([(source, changed_settings())])
