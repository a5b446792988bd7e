"""The Triton kernels of a program compiled by Inductor's pool before those that tune are loaded.

A kernel that is tuned here is loaded in this process, which would compile it on one core of many.
Loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch._inductor import graph as inductor_graph
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks, compile_told
from fusewise.compiler.inductor.found_blocks import tell_blocks
from fusewise.compiler.inductor.hooks import Interceptor
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.triton_ahead import await_kernels
from fusewise.compiler.inductor.tuning import only_generated
from fusewise.schedule.schedule import Choice

_Nodes = list[inductor_scheduler.BaseSchedulerNode]
#: Seconds that the pool is waited for.
_COMPILING_S = 60.0


class TunedAhead(Interceptor):
    """Waits for the pool once the interceptor inside has seen the program.

    What may be tried beside Inductor's own block sizes is on its way by then.
    """

    def __init__(
        self,
        inner: Interceptor | None,
        nodes: Mapping[str, frozenset[str]],
        blocks: Sequence[Choice] = (),
    ) -> None:
        """Args:
        inner: sees the program first.
        nodes: of the program's kernels by name, once it is there.
        blocks: block sizes that were found for it before.
        """
        self._inner = inner
        self._nodes = nodes
        self._blocks = blocks

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
        settings = changed_settings()
        told = tell_blocks(source, self._nodes, self._blocks)
        with only_generated():
            compile_told(told)
            ask_for_blocks(source, settings)
            await_kernels(source, settings, _COMPILING_S, {kernel.name for kernel in told})
