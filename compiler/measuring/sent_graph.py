"""A captured graph on its way to the measuring process, node by node.

torch.fx serialises a graph module as code and traces it again, which runs operators without
inputs then and there and renames the rest; the reference needs the graph as it is.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.node import map_aggregate


@dataclass(frozen=True)
class _Value:
    """Stands for the value of a node in the arguments of another."""

    name: str


@dataclass(frozen=True)
class _Operator:
    """An operator of torch's registry, such as ``aten::add.Tensor``."""

    name: str


def send_graph(gm: torch.fx.GraphModule) -> bytes | None:
    """``gm`` as bytes; None where it holds what cannot be sent (subgraphs, symbolic numbers,
    constants without values)."""
    nodes = []
    constants: dict[str, torch.Tensor] = {}
    for node in gm.graph.nodes:
        target: Any = node.target
        if node.op == "get_attr":
            value = getattr(gm, str(target), None)
            if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
                return None
            # Inductor compiles under a mode in which real tensors are refused.
            with unset_fake_temporarily():
                constants[str(target)] = value.detach()
        elif isinstance(target, torch._ops.OpOverload):
            target = _Operator(target.name())
        elif node.op == "call_function" and isinstance(target, torch._ops.OperatorBase):
            return None
        args, kwargs = map_aggregate((node.args, node.kwargs), _told)
        nodes.append((node.name, node.op, target, args, kwargs))
    try:
        with unset_fake_temporarily():
            return pickle.dumps((nodes, constants))
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
        return None


def _told(argument: Any) -> Any:
    return _Value(argument.name) if isinstance(argument, torch.fx.Node) else argument


def receive_graph(sent: bytes) -> torch.fx.GraphModule:
    """The graph that :func:`send_graph` sent, its nodes in the same order under the same names."""
    nodes, constants = pickle.loads(sent)
    graph = torch.fx.Graph()
    made: dict[str, torch.fx.Node] = {}

    def resolved(argument: Any) -> Any:
        return made[argument.name] if isinstance(argument, _Value) else argument

    for name, op, target, args, kwargs in nodes:
        called = _operator(target.name) if isinstance(target, _Operator) else target
        made[name] = graph.create_node(
            op, called, map_aggregate(args, resolved), map_aggregate(kwargs, resolved), name
        )
    return torch.fx.GraphModule(constants, graph)


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
