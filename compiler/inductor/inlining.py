"""Inline or store for each node: Inductor's decisions while it lowers a graph, seen and overruled.

Inductor decides on a value's box of storage: ``mark_reuse``, ``has_exceeded_max_reads`` and
``realize_hint`` store by rule of thumb, everything else that calls ``realize`` needs the value in
memory. Their methods, and the others that hold a figure of the lowering against a threshold, are
replaced once a process by dispatchers that ask a context variable: with no :class:`Inlining` active
in this context, Inductor runs as if fusewise were not there.

A schedule may overrule rules of thumb only, so whatever it decides computes the same values.
Nothing here decides what is worth storing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch.fx
from torch._inductor import graph as inductor_graph
from torch._inductor import ir

from fusewise.compiler.inductor.hooks import is_subgraph
from fusewise.compiler.inductor.lowered_values import (
    Lowering,
    Value,
    decided,
    rule_of_reads,
    rule_of_reuse,
)
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.compiler.inductor.thresholds import Figures
from fusewise.schedule.inlining import InliningDecision, Verdict

_active: ContextVar[Inlining | None] = ContextVar("fusewise_inlining", default=None)
_lowering: ContextVar[Lowering | None] = ContextVar("fusewise_lowering", default=None)


class Inlining:
    """What is wanted of single nodes in the lowerings of one context, and what became of all."""

    def __init__(self, wanted: Mapping[str, Verdict], *, record: bool = False) -> None:
        """Take verdicts by node name.

        Args:
            wanted: verdicts by the name of the node in the graph that is lowered; Inductor decides
                on all others.
            record: whether to keep what was decided of each value.
        """
        self.wanted = dict(wanted)
        self.record = record
        #: Of the last lowering, in the order of its graph; empty where nothing is recorded.
        self.decisions: tuple[InliningDecision, ...] = ()
        #: What was held against Inductor's thresholds, where it is recorded.
        self.figures = Figures()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let it decide for every graph that is lowered in this context.

        Lowering raises :class:`PlanError` where a verdict cannot be: it names the node and why.
        Where nothing is wanted or recorded, Inductor decides as if fusewise were not there.
        """
        if not self.wanted and not self.record:
            yield
            return
        _install()
        with holding(_active, self):
            yield


@once
def _install() -> None:
    _dispatch_graph()
    _dispatch_boxes()
    _dispatch_loops()


def _figures() -> Figures | None:
    """Where to note what is held against thresholds; None where that is not recorded."""
    inlining = _active.get()
    return None if inlining is None or not inlining.record else inlining.figures


def _dispatch_graph() -> None:
    lowering_class = inductor_graph.GraphLowering
    run, run_node = lowering_class.run, lowering_class.run_node
    call_function = lowering_class.call_function

    @functools.wraps(run)
    def watched_run(self: inductor_graph.GraphLowering, *args: Any) -> Any:
        inlining = _active.get()
        if inlining is None:
            return run(self, *args)
        if inlining.record:
            # Graphs within the graph, and what is lowered as something else, come by here too or
            # are of a kind of which nothing is known.
            module: Any = self.module
            inlining.figures.note_graph(module.graph)
        # A subgraph, and the graph of what is constant, are lowered within the compile of theirs
        # and have other nodes under the same names.
        nested = _lowering.get() is not None or is_subgraph(self) or self.is_const_graph
        state = None if nested else Lowering(self, inlining.wanted, record=inlining.record)
        with holding(_lowering, state):
            result = run(self, *args)
        if state is not None:
            inlining.decisions = state.finish()
        return result

    @functools.wraps(run_node)
    def watched_run_node(self: inductor_graph.GraphLowering, n: torch.fx.Node) -> Any:
        state = _lowering.get()
        if state is None:
            return run_node(self, n)
        return state.run_node(n, lambda: run_node(self, n))

    @functools.wraps(call_function)
    def watched_call(self: inductor_graph.GraphLowering, *args: Any, **kwargs: Any) -> Any:
        state = _lowering.get()
        result = call_function(self, *args, **kwargs)
        if state is not None:
            state.computed(result)
        return result

    lowering_class.run = watched_run  # type: ignore[method-assign]
    lowering_class.run_node = watched_run_node  # type: ignore[method-assign]
    lowering_class.call_function = watched_call  # type: ignore[method-assign]


def _dispatch_boxes() -> None:
    box_class = ir.StorageBox
    realize, realize_hint = box_class.realize, box_class.realize_hint
    mark_reuse, should_realize = box_class.mark_reuse, box_class.should_realize_on_reuse
    has_exceeded = box_class.has_exceeded_max_reads

    def known(box: ir.StorageBox) -> tuple[Lowering, Value] | None:
        state = _lowering.get()
        value = None if state is None else state.value_in(box)
        return None if state is None or value is None else (state, value)

    @functools.wraps(realize)
    def watched_realize(self: ir.StorageBox) -> Any:
        found = known(self)
        if found is not None:
            state, value = found
            state.realizing(value)
        return realize(self)

    @functools.wraps(should_realize)
    def watched_should_realize(self: ir.StorageBox, users: int, **kwargs: Any) -> bool:
        figures = _figures()
        if figures is not None:
            figures.note_reuse(self, users)
        found = known(self)
        asked = functools.partial(should_realize, self, users, **kwargs)
        if found is None:
            return asked()
        fanout = kwargs.get("graph_reuse", True)
        return decided(found[1], asked, lambda: rule_of_reuse(self, fanout=fanout))

    @functools.wraps(has_exceeded)
    def watched_has_exceeded(self: ir.StorageBox) -> bool:
        figures = _figures()
        if figures is not None:
            figures.note_reads(self)
        found = known(self)
        asked = functools.partial(has_exceeded, self)
        return asked() if found is None else decided(found[1], asked, lambda: rule_of_reads(self))

    @functools.wraps(mark_reuse)
    def watched_mark_reuse(self: ir.StorageBox, *args: Any, **kwargs: Any) -> None:
        found = known(self)
        if found is None:
            return mark_reuse(self, *args, **kwargs)
        state, value = found
        with state.rule_of_thumb():
            mark_reuse(self, *args, **kwargs)
        value.pending = None
        return None

    @functools.wraps(realize_hint)
    def watched_realize_hint(self: ir.StorageBox) -> None:
        found = known(self)
        if found is None:
            return realize_hint(self)
        state, value = found
        if value.wanted == "inline":
            return None
        with state.rule_of_thumb():
            # Inductor takes a hint only where more is read than is written.
            realize_hint(self) if value.pending != "schedule" else self.realize()
        value.pending = None
        return None

    box_class.realize = watched_realize  # type: ignore[method-assign]
    box_class.should_realize_on_reuse = watched_should_realize  # type: ignore[method-assign]
    box_class.has_exceeded_max_reads = watched_has_exceeded  # type: ignore[method-assign]
    box_class.mark_reuse = watched_mark_reuse  # type: ignore[method-assign]
    box_class.realize_hint = watched_realize_hint  # type: ignore[method-assign]


def _dispatch_loops() -> None:
    large, splits = ir.Loops.has_large_inner_fn, ir.Reduction.num_splits

    @functools.wraps(large)
    def watched_large(self: ir.Loops, threshold: int | None = None) -> bool:
        figures = _figures()
        if figures is not None:
            figures.note_operations(self, threshold or 0)
        return large(self, threshold)

    @functools.wraps(splits)
    def watched_splits(*args: Any, **kwargs: Any) -> Any:
        found = splits(*args, **kwargs)
        figures = _figures()
        if figures is not None:
            figures.note_parts(found[1])
        return found

    ir.Loops.has_large_inner_fn = watched_large  # type: ignore[method-assign]
    ir.Reduction.num_splits = staticmethod(watched_splits)  # type: ignore[method-assign]
