"""Inline or store for each node: Inductor's decisions while it lowers a graph, seen and overruled.

Inductor decides on a value's box of storage: ``mark_reuse``, ``has_exceeded_max_reads`` and
``realize_hint`` store by rule of thumb, everything else that calls ``realize`` needs the value in
memory. Their methods are replaced once a process by dispatchers that ask a context variable: with
no :class:`Inlining` active in this context, Inductor runs as if fusewise were not there.

A schedule may overrule rules of thumb only, so whatever it decides computes the same values.
Nothing here decides what is worth storing.
"""

from __future__ import annotations

import difflib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch.fx
from torch._inductor import config as inductor_config
from torch._inductor import graph as inductor_graph
from torch._inductor import ir

from fusewise.compiler.inductor.values import (
    Computation,
    box_of,
    is_computed,
    is_stored,
    kind_of,
    operator_of,
)
from fusewise.schedule.errors import PlanError
from fusewise.schedule.inlining import OPTIONAL, RULES, InliningDecision, Rule, Verdict

_active: ContextVar[Inlining | None] = ContextVar("fusewise_inlining", default=None)
_lowering: ContextVar[_Lowering | None] = ContextVar("fusewise_lowering", default=None)
_lock = threading.Lock()
_installed = False


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
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


@dataclass(eq=False)
class _Value:
    """What an operator of the graph computes, in a box that is stored or not yet."""

    node: torch.fx.Node
    box: ir.StorageBox
    wanted: Verdict | None
    rule: Rule = "cheap"
    #: A rule of thumb that asked for it and has not stored it yet.
    pending: Rule | None = None
    #: Why it has to be stored, and whether any other node had read it until that was known.
    required: Rule | None = None
    read_before: bool = False
    is_read: bool = False
    #: Nodes that inlined it, themselves stored or not.
    inlined_into: list[torch.fx.Node] = field(default_factory=list)
    computation: Computation | None = None

    @property
    def stored(self) -> bool:
        return is_stored(self.box)

    def require(self, rule: Rule) -> None:
        """Take note of a rule that stores it; the first that nobody may overrule is what counts."""
        if rule in OPTIONAL:
            self.rule = self.rule if self.stored else rule
        elif self.required is None:
            self.rule = self.required = rule
            self.read_before = self.is_read


class _Lowering:
    """One graph while it is lowered."""

    def __init__(self, graph: inductor_graph.GraphLowering, inlining: Inlining) -> None:
        self._graph = graph
        self._nodes: torch.fx.Graph = graph.module.graph  # type: ignore[assignment]
        self._inlining = inlining
        self._values: dict[torch.fx.Node, _Value] = {}
        self._by_box: dict[int, _Value] = {}
        #: The value that a node without one of its own gives, such as a view.
        self._same_as: dict[torch.fx.Node, _Value] = {}
        #: The node in hand, the values that it takes, and whether its operator is still at work.
        self._node: torch.fx.Node | None = None
        self._operands: list[_Value] = []
        self._in_operator = False
        #: Whether a rule of thumb is about to store.
        self._optional = False
        #: Graphs within the graph that are being lowered.
        self._depth = 0

    def value_in(self, box: ir.StorageBox) -> _Value | None:
        """The value that a box holds, if it is one of the graph's."""
        return self._by_box.get(id(box))

    def run_node(self, node: torch.fx.Node, run: Callable[[], Any]) -> Any:
        """Lower one node, and see to the verdict on it."""
        if node.graph is not self._nodes:
            # A graph within the graph gives its nodes names of its own.
            self._depth += 1
            try:
                return run()
            finally:
                self._depth -= 1
        if node.op not in ("call_function", "output"):
            return run()
        self._node, self._in_operator = node, node.op == "call_function"
        self._operands = list(self._values_of(node.all_input_nodes))
        try:
            result = run()
            if node.op == "call_function":
                self._done(node, result)
        finally:
            self._node = None
        return result

    def _values_of(self, nodes: Iterable[torch.fx.Node]) -> Iterator[_Value]:
        for node in nodes:
            given = self._graph.env.get(node)
            for single in given if isinstance(given, list | tuple) else (given,):
                box = box_of(single)
                value = None if box is None else self.value_in(box)
                if value is not None:
                    yield value

    def computed(self, result: Any) -> None:
        """See what the operator of the node in hand gives, before it is decided on."""
        node = self._node
        if node is None or self._depth or not self._in_operator:
            return
        self._in_operator = False
        box = box_of(result)
        if box is None or id(box) in self._by_box or not is_computed(box):
            return
        value = _Value(node, box, self._inlining.wanted.get(node.name))
        if value.stored:
            value.require("own")
        self._values[node] = self._by_box[id(box)] = value

    def _done(self, node: torch.fx.Node, result: Any) -> None:
        self.computed(result)
        box, value = box_of(result), self._values.get(node)
        if box is not None and value is not None and value.box is not box and is_stored(box):
            # What Inductor wants in another layout it copies, and goes on with the copy.
            value.require(value.pending or self._required(value))
            value.box = box
            self._by_box[id(box)] = value
        if value is not None and value.wanted == "store" and not value.stored:
            value.pending = "schedule"
            with self.rule_of_thumb():
                value.box.realize()
        holder = None if box is None else self.value_in(box)
        if value is None and holder is not None:
            self._same_as[node] = holder
        for operand in self._operands:
            if operand is not holder:
                operand.is_read = True
                if not operand.stored:
                    operand.inlined_into.append(node)
        if value is not None and self._inlining.record:
            value.computation = Computation.of(value.box)

    @contextmanager
    def rule_of_thumb(self) -> Iterator[None]:
        """Whatever is stored in here is by a rule that may be overruled."""
        outer, self._optional = self._optional, True
        try:
            yield
        finally:
            self._optional = outer

    def realizing(self, value: _Value) -> None:
        """A value is stored, or would be if it were not yet."""
        value.require((value.pending or "read_often") if self._optional else self._required(value))

    def _required(self, value: _Value) -> Rule:
        """Why a value has to be in memory at this point of the lowering."""
        node = self._node
        if node is None or node.op == "output":
            return "output"
        if self._in_operator:
            # Before an input is overwritten, all that reads it is stored.
            return "operand" if value in self._operands else "overwritten"
        if any(user.op == "output" for user in node.users):
            return "output"
        data: Any = value.box.data
        too_large = isinstance(data, ir.Pointwise) and data.has_large_inner_fn(threshold=100)
        return "too_large" if too_large else "layout"

    def finish(self) -> None:
        """Check the verdicts against what came of them, and write down what was decided.

        Raises:
            PlanError: a verdict that cannot be.
        """
        names = {node.name: node for node in self._nodes.nodes}
        for name, verdict in self._inlining.wanted.items():
            why = self._refusal(names.get(name), verdict)
            if why:
                near = difflib.get_close_matches(name, [n.name for n in self._values], n=1)
                hint = f", nearest is {near[0]!r}" if name not in names and near else ""
                raise PlanError(
                    f"node {name!r} cannot be {_DONE[verdict]}: {why}{hint}",
                    subject="schedule",
                    remedy=f"leave out the choice node:{name}",
                )
        if self._inlining.record:
            self._inlining.decisions = tuple(self._decisions())

    def _refusal(self, node: torch.fx.Node | None, verdict: Verdict) -> str:
        if node is None:
            return "the graph has no such node"
        if node.op != "call_function":
            return "it is an input" if node.op == "placeholder" else "it computes nothing"
        value, holder = self._values.get(node), self._same_as.get(node)
        if holder is not None:
            return f"it is a view of {holder.node.name!r}"
        if value is None:
            return "it gives no value of generated code: a view of an input, or a library's"
        if value.required is None:
            return ""
        if verdict == "inline":
            return f"{RULES[value.required]}, so it is stored"
        return "" if value.read_before else f"{RULES[value.required]}, so it is stored anyway"

    def _decisions(self) -> Iterator[InliningDecision]:
        position = {node: i for i, node in enumerate(self._nodes.nodes)}
        stored_in: dict[torch.fx.Node, set[torch.fx.Node]] = {}
        for value in reversed(self._values.values()):
            ends = stored_in[value.node] = {value.node} if value.stored else set()
            # An operator without a value of its own gives several: it is where the code goes.
            value_ends = [stored_in.get(node, {node}) for node in value.inlined_into]
            ends |= set().union(*value_ends)
        for value in self._values.values():
            ends = stored_in[value.node] - {value.node}
            assert value.computation is not None
            yield InliningDecision(
                node=value.node.name,
                operator=operator_of(value.node),
                kind=kind_of(value.box),
                outcome="store" if value.stored else "inline",
                rule=value.rule,
                buffer=value.box.get_name() if value.stored else "",
                inlined_into=tuple(n.name for n in sorted(ends, key=lambda n: position[n])),
                ops=value.computation.ops,
                reads=value.computation.reads,
                bytes=value.computation.bytes,
                read_bytes=value.computation.read_bytes,
            )


_DONE: Mapping[Verdict, str] = {"store": "stored", "inline": "inlined"}


def _install() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        _dispatch_graph()
        _dispatch_boxes()
        _installed = True


def _dispatch_graph() -> None:
    lowering_class = inductor_graph.GraphLowering
    run, run_node = lowering_class.run, lowering_class.run_node
    call_function = lowering_class.call_function

    @functools.wraps(run)
    def watched_run(self: inductor_graph.GraphLowering, *args: Any) -> Any:
        inlining = _active.get()
        if inlining is None:
            return run(self, *args)
        # A subgraph, and the graph of what is constant, are lowered within the compile of theirs
        # and have other nodes under the same names.
        nested = (
            _lowering.get() is not None
            or self.name is not None
            or isinstance(self, inductor_graph.SubgraphLowering)
            or self.is_const_graph
        )
        state = None if nested else _Lowering(self, inlining)
        token = _lowering.set(state)
        try:
            result = run(self, *args)
        finally:
            _lowering.reset(token)
        if state is not None:
            state.finish()
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

    def known(box: ir.StorageBox) -> tuple[_Lowering, _Value] | None:
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
    def watched_should_realize(self: ir.StorageBox, *args: Any, **kwargs: Any) -> bool:
        found = known(self)
        asked = functools.partial(should_realize, self, *args, **kwargs)
        if found is None:
            return asked()
        fanout = kwargs.get("graph_reuse", True)
        return _decided(found[1], asked, lambda: _rule_of_reuse(self, fanout=fanout))

    @functools.wraps(has_exceeded)
    def watched_has_exceeded(self: ir.StorageBox) -> bool:
        found = known(self)
        asked = functools.partial(has_exceeded, self)
        return asked() if found is None else _decided(found[1], asked, lambda: _rule_of_reads(self))

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


def _decided(value: _Value, asked: Callable[[], bool], rule: Callable[[], Rule]) -> bool:
    """Whether to store a value that a rule of thumb was asked about."""
    if value.wanted == "inline" or value.stored:
        return False
    if value.wanted == "store":
        value.pending = "schedule"
        return True
    said = asked()
    if said:
        value.pending = rule()
    return said


def _rule_of_reuse(box: ir.StorageBox, *, fanout: bool) -> Rule:
    """Which of Inductor's rules wants a value stored that has several users."""
    data: Any = box.data
    if data.has_large_inner_fn():
        return "many_operations"
    many = fanout and box.num_reads() > inductor_config.realize_reads_threshold
    return "many_reads" if many else "heavy_operation"


def _rule_of_reads(box: ir.StorageBox) -> Rule:
    """Which of Inductor's rules wants a value stored that has accumulated much."""
    data: Any = box.data
    return "many_operations" if data.has_large_inner_fn() else "accumulated_reads"
