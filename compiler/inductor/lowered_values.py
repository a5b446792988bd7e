"""One graph while it is lowered: its values, what rules and verdicts say of each, what comes of it.

Told of every node and of every storing by the dispatchers in ``inlining``; stores nothing but what
a verdict wants stored.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
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
    reads_nothing,
)
from fusewise.schedule.errors import PlanError
from fusewise.schedule.inlining import OPTIONAL, RULES, InliningDecision, Rule, Verdict

_DONE: Mapping[Verdict, str] = {"store": "stored", "inline": "inlined"}
#: Operators that, on a GPU, compute operands that are not stored where they need them, and want all
#: of them in memory once one of them is.
_EITHER_WAY = frozenset({torch.ops.aten.cat.default})


@dataclass(eq=False)
class Value:
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
    #: Whether it may have to be stored only since it was stored already.
    either_way: bool = False
    is_read: bool = False
    #: Nodes that inlined it, themselves stored or not.
    inlined_into: list[torch.fx.Node] = field(default_factory=list)
    computation: Computation | None = None

    @property
    def stored(self) -> bool:
        return is_stored(self.box)

    @property
    def final_rule(self) -> Rule:
        """Why it was stored or not, once nothing more can come."""
        if self.wanted is not None:
            return "schedule"
        return self.rule if self.stored or not reads_nothing(self.box) else "reads_nothing"

    def require(self, rule: Rule, *, either_way: bool = False) -> None:
        """Take note of a rule that stores it; the first that nobody may overrule is what counts."""
        if rule in OPTIONAL:
            self.rule = self.rule if self.stored else rule
        elif self.required is None:
            self.rule = self.required = rule
            self.read_before = self.is_read
            self.either_way = either_way


class Lowering:
    """One graph while it is lowered."""

    def __init__(
        self,
        graph: inductor_graph.GraphLowering,
        wanted: Mapping[str, Verdict],
        *,
        record: bool,
    ) -> None:
        self._graph = graph
        self._nodes: torch.fx.Graph = graph.module.graph  # type: ignore[assignment]
        self._wanted = wanted
        self._record = record
        self._values: dict[torch.fx.Node, Value] = {}
        #: Values by their boxes, which are kept: the id of one that is gone may be another's.
        self._by_box: dict[int, tuple[ir.StorageBox, Value]] = {}
        #: The value that a node without one of its own gives, such as a view.
        self._same_as: dict[torch.fx.Node, Value] = {}
        #: The node in hand, the values that it takes, and whether its operator is still at work.
        self._node: torch.fx.Node | None = None
        self._operands: list[Value] = []
        self._in_operator = False
        #: Whether a rule of thumb is about to store.
        self._optional = False
        #: Graphs within the graph that are being lowered.
        self._depth = 0

    def value_in(self, box: ir.StorageBox) -> Value | None:
        """The value that a box holds, if it is one of the graph's."""
        held = self._by_box.get(id(box))
        return None if held is None else held[1]

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
        taken_apart = node.target is operator.getitem
        self._operands = [] if taken_apart else list(self._values_of(node.all_input_nodes))
        try:
            result = run()
            if node.op == "call_function":
                self._done(node, result)
        finally:
            self._node = None
        return result

    def _values_of(self, nodes: Iterable[torch.fx.Node]) -> Iterator[Value]:
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
        value = Value(node, box, self._wanted.get(node.name))
        if value.stored:
            value.require("own")
        self._values[node] = value
        self._by_box[id(box)] = box, value

    def _done(self, node: torch.fx.Node, result: Any) -> None:
        self.computed(result)
        box, value = box_of(result), self._values.get(node)
        if box is not None and value is not None and value.box is not box and is_stored(box):
            # What Inductor wants in another layout it copies, and goes on with the copy.
            value.require(value.pending or self._required(value))
            value.box = box
            self._by_box[id(box)] = box, value
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
                if not operand.stored or reads_nothing(operand.box):
                    operand.inlined_into.append(node)
        if value is not None and self._record:
            value.computation = Computation.of(value.box)

    @contextmanager
    def rule_of_thumb(self) -> Iterator[None]:
        """Whatever is stored in here is by a rule that may be overruled."""
        outer, self._optional = self._optional, True
        try:
            yield
        finally:
            self._optional = outer

    def realizing(self, value: Value) -> None:
        """A value is stored, or would be if it were not yet."""
        if self._optional:
            value.require(value.pending or "read_often")
            return
        rule, node = self._required(value), self._node
        chooses = rule == "operand" and node is not None and node.target in _EITHER_WAY
        value.require(rule, either_way=chooses and value.stored)

    def _required(self, value: Value) -> Rule:
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

    def finish(self) -> tuple[InliningDecision, ...]:
        """Check the verdicts against what came of them; what was decided, if it was recorded.

        Raises:
            PlanError: a verdict that cannot be.
        """
        names = {node.name: node for node in self._nodes.nodes}
        for name, verdict in self._wanted.items():
            why = self._refusal(names.get(name), verdict)
            if why:
                near = difflib.get_close_matches(name, [n.name for n in self._values], n=1)
                hint = f", nearest is {near[0]!r}" if name not in names and near else ""
                raise PlanError(
                    f"node {name!r} cannot be {_DONE[verdict]}: {why}{hint}",
                    subject="schedule",
                    remedy=f"leave out the choice node:{name}",
                )
        return tuple(self._decisions()) if self._record else ()

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
        if verdict == "store" and reads_nothing(value.box):
            return RULES["reads_nothing"]
        if value.required is None:
            return ""
        if verdict == "inline":
            return f"{RULES[value.required]}, so it is stored"
        if value.read_before or value.either_way:
            return ""
        return f"{RULES[value.required]}, so it is stored anyway"

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
                rule=value.final_rule,
                buffer=value.box.get_name() if value.stored else "",
                inlined_into=tuple(n.name for n in sorted(ends, key=lambda n: position[n])),
                ops=value.computation.ops,
                reads=value.computation.reads,
                bytes=value.computation.bytes,
                read_bytes=value.computation.read_bytes,
                iterations=value.computation.iterations,
                operations=value.computation.operations,
            )


def decided(value: Value, asked: Callable[[], bool], rule: Callable[[], Rule]) -> bool:
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


def rule_of_reuse(box: ir.StorageBox, *, fanout: bool) -> Rule:
    """Which of Inductor's rules wants a value stored that has several users."""
    data: Any = box.data
    if data.has_large_inner_fn():
        return "many_operations"
    many = fanout and box.num_reads() > inductor_config.realize_reads_threshold
    return "many_reads" if many else "heavy_operation"


def rule_of_reads(box: ir.StorageBox) -> Rule:
    """Which of Inductor's rules wants a value stored that has accumulated much."""
    data: Any = box.data
    return "many_operations" if data.has_large_inner_fn() else "accumulated_reads"
