"""A part of a model as a program of its own: its graph, its inputs and its fingerprint.

Says what a piece is; which statements belong to one is decided in ``program.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fusewise.datasets.graphnet.cutting import name_of
from fusewise.datasets.graphnet.meta import TensorMeta, draw
from fusewise.datasets.graphnet.tracing import TensorSpec

_FACTORIES = {
    *("arange", "zeros", "ones", "full", "empty", "eye", "linspace", "rand", "randn", "tensor"),
    *("as_tensor", "logspace", "tril_indices", "triu_indices"),
}


@dataclass(frozen=True)
class PieceInput:
    """One argument of a piece."""

    #: The value of the model that it stands for.
    node: fx.Node
    spec: TensorSpec
    requires_grad: bool
    #: What is known of the value, where it is an argument of the model.
    meta: TensorMeta | None
    #: Whether a root or logarithm is taken of it, which negative numbers have none of.
    positive: bool = False
    #: Further statements of the model whose result is the very same tensor.
    also: tuple[fx.Node, ...] = ()
    #: Whether the piece writes to a copy of it. A leaf that requires a gradient cannot be written
    #: to, and another would keep the autograd graph of one run for the next.
    cloned: bool = False

    def draw(self, generator: torch.Generator) -> torch.Tensor:
        """A leaf of that layout on the CPU, drawn from the model's own distribution if known."""
        spec = self.spec
        values = draw(self.meta or self._anything(spec.shape), generator)
        if values.stride() != spec.stride:
            flat = draw(self._anything((spec.elements,)), generator)
            values = flat.as_strided(spec.shape, spec.stride)
        if self.meta is None and spec.dtype is torch.bool and 0 not in spec.shape:
            values[..., :1] = True  # a mask that hides all makes NaN of what it hides
        return values.detach().requires_grad_(self.requires_grad)

    def _anything(self, shape: tuple[int, ...]) -> TensorMeta:
        if self.positive:
            return TensorMeta("", shape, self.spec.dtype, mean=1.0, std=0.5, low=1e-3)
        return TensorMeta("", shape, self.spec.dtype, mean=0.0, std=1.0)


@dataclass(frozen=True)
class Piece:
    """A part of a model as a graph of its own."""

    graph: fx.Graph
    inputs: tuple[PieceInput, ...]
    #: The values of the model that it returns, as a tuple in this order.
    outputs: tuple[fx.Node, ...]
    fingerprint: str
    #: Whether an output depends differentiably on an input.
    training: bool
    #: Floating-point operations of its extern operations, forward.
    flops: int
    #: About how many lowered operations it is, without the extern ones.
    weight: int

    @property
    def bytes(self) -> int:
        """Memory that its arguments take."""
        return sum(each.spec.bytes for each in self.inputs)

    def module(self) -> fx.GraphModule:
        """The piece as a module without parameters; takes :attr:`inputs` in order."""
        return fx.GraphModule(torch.nn.Module(), self.graph, class_name="GraphNetPiece")


def build_graph(
    nodes: Sequence[fx.Node],
    inputs: Sequence[PieceInput],
    outputs: Sequence[fx.Node],
    specs: Mapping[fx.Node, TensorSpec],
) -> fx.Graph:
    """The statements ``nodes`` as a graph of ``inputs`` that returns ``outputs``.

    What it makes anew is on the device of its first input.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for i, each in enumerate(inputs):
        argument = graph.placeholder(f"x{i}")
        copies.update(dict.fromkeys((each.node, *each.also), argument))
    device = graph.call_function(getattr, (copies[inputs[0].node], "device"))
    for each in inputs:
        if each.cloned:
            clone = graph.call_method("clone", (copies[each.node],))
            copies.update(dict.fromkeys((each.node, *each.also), clone))
    for node in nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), copies.__getitem__)
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: device, (args, kwargs))
        if name_of(node) in _FACTORIES and specs[node].shape:
            kwargs = {**kwargs, "device": device}
        copies[node] = graph.create_node(node.op, node.target, args, kwargs)
    graph.output(tuple(copies[node] for node in outputs))
    if not device.users:
        graph.erase_node(device)
    return graph


def fingerprint(graph: fx.Graph, inputs: Sequence[PieceInput], *, training: bool) -> str:
    """Hash of operations, literals and layouts; names and the values of arguments are left out."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    lines = [f"training {training}"]
    lines += [f"{each.spec} {each.requires_grad}" for each in inputs]
    for node in graph.nodes:
        numbered: Any = lambda n: _Number(number[n])  # noqa: E731
        args = fx.map_arg((node.args, dict(node.kwargs)), numbered)
        target = node.target if isinstance(node.target, str) else _qualified(node)
        lines.append(f"{node.op} {'' if node.op == 'placeholder' else target} {args!r}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _qualified(node: fx.Node) -> str:
    target = node.target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"


class _Number:
    """The number of a node, where its name would be shown."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"%{self.number}"
