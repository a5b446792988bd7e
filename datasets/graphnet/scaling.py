"""Makes the batch of a captured graph larger.

Its batch is baked in as literals. They are rewritten node by node on fake tensors: a node that
fails, or whose result does not follow the batch, is tried with each literal and operand changed in
turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fusewise.datasets.graphnet.meta import TensorMeta
from fusewise.datasets.graphnet.tracing import Trace, empty, nests, storage, tensors, unnest, where

_TAKES_SHAPE = {
    *("view", "reshape", "expand", "repeat", "broadcast_to", "unflatten", "tile", "new_zeros"),
    *("new_ones", "new_full", "new_empty", "zeros", "ones", "full", "empty", "rand", "randn"),
}
_VIEWS = {"view", "reshape"}


@dataclass(frozen=True)
class Edit:
    """Other arguments for a node, and methods to call on some operands first."""

    args: Any
    kwargs: Any
    calls: Mapping[fx.Node, tuple[str, tuple[Any, ...]]] = field(default_factory=dict)


class Scaling:
    """One run with a larger batch beside the run with the graph's own."""

    def __init__(self, graph: fx.Graph, base: Trace, batch: int, factor: int) -> None:
        self.graph, self.base = graph, base
        self.batch, self.factor = batch, factor
        #: Why the graph could not follow; "" where it did.
        self.refusal = ""
        self._undo: list[tuple[fx.Node, Any, Any, list[fx.Node]]] = []

    def run(self, inputs: Mapping[fx.Node, TensorMeta]) -> Trace | None:
        """The larger run, with the graph rewritten; None, with the graph as before."""
        trace = Trace(self.base.mode, ended=self.base.ended)
        nesting, grew = 0, False
        try:
            for node in self.graph.nodes:
                if node in inputs:
                    trace.values[node] = empty(trace.mode, inputs[node])
                elif node in self.base.values:
                    if not self._settle(trace, node):
                        self._take_back()
                        return None
                    nesting += nests(node)
                    grew = grew or _grew(self.base.values[node], trace.values[node])
        finally:
            unnest(nesting)
        if not grew:
            self.refusal = "no result of it grows"
            self._take_back()
            return None
        return trace

    def _settle(self, trace: Trace, node: fx.Node) -> bool:
        """Whether the node's result follows the batch, after the first edit with which it does."""
        failures = []
        for strict in (True, False):
            for edit in self._edits(trace, node):
                try:
                    replaced = self._called(trace, edit)
                    value = trace.record(node, partial(self._try, trace, node, edit, replaced))
                except Exception as error:  # noqa: BLE001 - whatever fails, the next is tried
                    failures.append(f"fails: {error}")
                    continue
                if self._overlaps(trace, node, replaced):
                    continue
                if self._follows(trace, node, value, strict=strict):
                    self._write(trace, node, edit, replaced)
                    return True
        # The first is that of the node as it stands.
        why = failures[0] if failures else "gives no more for more"
        self.refusal = f"{where(node)} {why}"[:300]
        return False

    def _overlaps(self, trace: Trace, node: fx.Node, replaced: Mapping[fx.Node, Any]) -> bool:
        """Whether it writes to a tensor that has one element in several places.

        Kernels refuse that, fake tensors do not.
        """
        operands = [replaced.get(n, trace.values[n]) for n in node.all_input_nodes]
        return any(
            storage(tensor) in trace.writes[node]
            for operand in operands
            for tensor in tensors(operand)
            if (0, True) in zip(tensor.stride(), (n > 1 for n in tensor.shape), strict=True)
        )

    def _called(self, trace: Trace, edit: Edit) -> dict[fx.Node, torch.Tensor]:
        with trace.mode, torch.no_grad():
            return {
                operand: getattr(trace.values[operand], method)(*rest)
                for operand, (method, rest) in edit.calls.items()
            }

    def _try(self, trace: Trace, node: fx.Node, edit: Edit, replaced: Any) -> Any:
        return trace.run(node, edit.args, edit.kwargs, replaced)

    def _write(self, trace: Trace, node: fx.Node, edit: Edit, replaced: Any) -> None:
        """Put an accepted edit into the graph."""
        if not edit.calls and edit.args is node.args:
            return
        made: dict[fx.Node, fx.Node] = {}
        value = trace.values.pop(node)
        with self.graph.inserting_before(node):
            for operand, (method, rest) in edit.calls.items():
                made[operand] = new = self.graph.call_method(method, (operand, *rest))
                trace.values[new], trace.writes[new] = replaced[operand], frozenset()
        trace.values[node] = value
        self._undo.append((node, node.args, node.kwargs, list(made.values())))
        node.args, node.kwargs = fx.map_arg((edit.args, edit.kwargs), lambda n: made.get(n, n))

    def _take_back(self) -> None:
        for node, args, kwargs, made in reversed(self._undo):
            node.args, node.kwargs = args, kwargs
            for new in made:
                self.graph.erase_node(new)

    def _edits(self, trace: Trace, node: fx.Node) -> Iterator[Edit]:
        yield Edit(node.args, node.kwargs)
        name = getattr(node.target, "__name__", node.target)
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        if name in _TAKES_SHAPE:
            for i, leaf in enumerate(leaves):
                if type(leaf) is int and leaf > 0 and leaf % self.batch == 0:
                    larger = [*leaves[:i], leaf * self.factor, *leaves[i + 1 :]]
                    yield Edit(*pytree.tree_unflatten(larger, spec))
        fixed = [operand for operand in node.all_input_nodes if self._is_fixed(trace, operand)]
        for chosen in [[operand] for operand in fixed] + ([fixed] if len(fixed) > 1 else []):
            calls = {operand: self._repeat(trace, node, operand) for operand in chosen}
            yield Edit(node.args, node.kwargs, calls)

    def _is_fixed(self, trace: Trace, operand: fx.Node) -> bool:
        """Whether the operand has a batch of its own that did not grow."""
        value, base = trace.values.get(operand), self.base.values.get(operand)
        if not isinstance(value, torch.Tensor) or not isinstance(base, torch.Tensor):
            return False
        return value.dim() > 0 and 0 < value.shape[0] == base.shape[0]

    def _repeat(self, trace: Trace, node: fx.Node, operand: fx.Node) -> tuple[str, tuple[Any, ...]]:
        value = trace.values[operand]
        if value.shape[0] == 1 and not self.base.writes.get(node):
            return "expand", (self.factor, *[-1] * (value.dim() - 1))
        return "repeat", (self.factor, *[1] * (value.dim() - 1))

    def _follows(self, trace: Trace, node: fx.Node, value: Any, *, strict: bool) -> bool:
        new, old = tensors(value), tensors(self.base.values[node])
        if len(new) != len(old):
            return False
        for a, b in zip(old, new, strict=True):
            if a.dim() != b.dim():
                return False
            pairs = list(zip(a.shape, b.shape, strict=True))
            if any(size not in (own, own * self.factor) for own, size in pairs):
                return False
            if strict and pairs and a.shape != b.shape and not self._outermost(trace, node, a, b):
                return False
        return True

    def _outermost(self, trace: Trace, node: fx.Node, own: Any, larger: Any) -> bool:
        """A view of something batched outermost is batched outermost, not in its next size."""
        if node.target not in _VIEWS or larger.shape[0] != own.shape[0]:
            return True
        source = node.args[0]
        base = self.base.values[source]  # type: ignore[index]
        new = trace.values[source]  # type: ignore[index]
        return not (base.dim() and new.shape[0] == base.shape[0] * self.factor)


def _grew(old: Any, new: Any) -> bool:
    pairs = zip(tensors(old), tensors(new), strict=True)
    return any(a.shape != b.shape for a, b in pairs)
