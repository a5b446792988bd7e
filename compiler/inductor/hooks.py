"""The two points at which Inductor hands its work to fusewise, installed once a process.

``Scheduler.fuse_nodes`` is where the partition is decided, and all the state that legality needs
exists there; ``GraphLowering._compile_to_module_lines`` is where the generated program is
complete. Both are replaced by a dispatcher that asks a context variable: with no
:class:`Interceptor` active in this context, Inductor runs as if fusewise were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from torch._inductor import graph as inductor_graph
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.replacing import holding, once

_Nodes = list[inductor_scheduler.BaseSchedulerNode]


class Interceptor(Protocol):
    """What a compile under fusewise puts in the place of Inductor's own decisions."""

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: _Nodes,
        stock: Callable[[_Nodes], _Nodes],
    ) -> _Nodes:
        """Return the fused nodes; ``stock`` is Inductor's own ``fuse_nodes``."""
        ...

    def module(self, graph: inductor_graph.GraphLowering, source: str) -> None:
        """See the generated program before it is compiled; may raise to stop there."""
        ...


#: Fuses the nodes of a graph within the graph; as :meth:`Interceptor.fuse`.
FuseWithin = Callable[
    [inductor_scheduler.Scheduler, _Nodes, Callable[[_Nodes], _Nodes]],
    _Nodes,
]
_active: ContextVar[Interceptor | None] = ContextVar("fusewise_interceptor", default=None)
_within: ContextVar[FuseWithin | None] = ContextVar("fusewise_within", default=None)
_refusals: ContextVar[list[str] | None] = ContextVar("fusewise_refusals", default=None)
#: Told of every refusal: Inductor's names of the two sides, and the reason.
_Listener = Callable[[str, str, str], None]
_listener: ContextVar[_Listener | None] = ContextVar("fusewise_refusal_listener", default=None)


@once
def _install() -> None:
    _dispatch_fuse_nodes()
    _dispatch_module()
    _listen_to_refusals()


@contextmanager
def intercept(interceptor: Interceptor) -> Iterator[None]:
    """Let ``interceptor`` decide for every graph compiled in this context."""
    _install()
    with holding(_active, interceptor):
        yield


@contextmanager
def intercept_within(fuse: FuseWithin | None) -> Iterator[None]:
    """Let ``fuse`` do so for graphs within those compiled in this context; None for Inductor."""
    _install()
    with holding(_within, fuse):
        yield


@contextmanager
def refusals() -> Iterator[list[str]]:
    """Collect the reasons that Inductor gives for the fusions it refuses."""
    _install()
    reasons: list[str] = []
    with holding(_refusals, reasons):
        yield reasons


@contextmanager
def listening(listener: _Listener) -> Iterator[None]:
    """Have ``listener`` told of each fusion that Inductor refuses, by the names in its log."""
    _install()
    with holding(_listener, listener):
        yield


def _dispatch_fuse_nodes() -> None:
    original = inductor_scheduler.Scheduler.fuse_nodes

    @functools.wraps(original)
    def fuse_nodes(self: inductor_scheduler.Scheduler, nodes: _Nodes) -> _Nodes:
        interceptor = _active.get()
        stock = functools.partial(original, self)
        # A subgraph (of torch.cond, of an autotuned choice) has a scheduler of its own inside the
        # compile of its parent; it is no part of the parent's problem and keeps Inductor's plan.
        if is_subgraph(V.graph):
            within = _within.get()
            return stock(nodes) if within is None else within(self, nodes, stock)
        return stock(nodes) if interceptor is None else interceptor.fuse(self, nodes, stock)

    inductor_scheduler.Scheduler.fuse_nodes = fuse_nodes  # type: ignore[method-assign]


def is_subgraph(graph: inductor_graph.GraphLowering) -> bool:
    """Whether a graph is the inside of one operator of another: a branch, an autotuned choice."""
    return graph.name is not None or isinstance(graph, inductor_graph.SubgraphLowering)


def _dispatch_module() -> None:
    original = inductor_graph.GraphLowering._compile_to_module_lines

    @functools.wraps(original)
    def compile_lines(self: inductor_graph.GraphLowering, wrapper_code: Any) -> Any:
        interceptor = _active.get()
        if interceptor is not None:
            interceptor.module(self, wrapper_code.value)
        return original(self, wrapper_code)

    inductor_graph.GraphLowering._compile_to_module_lines = compile_lines  # type: ignore[method-assign]


def _listen_to_refusals() -> None:
    original = inductor_scheduler.WhyNoFuse.__call__

    @functools.wraps(original)
    def call(self: Any, reason: str, *args: Any) -> None:
        reasons, listener = _refusals.get(), _listener.get()
        if reasons is not None or listener is not None:
            text = reason % args if args else reason
            if reasons is not None:
                reasons.append(text)
            if listener is not None:
                listener(self.name1, self.name2, text)
        original(self, reason, *args)

    inductor_scheduler.WhyNoFuse.__call__ = call  # type: ignore[method-assign]
