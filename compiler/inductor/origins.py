"""Where an operation comes from: the user's module, line and operator, as a graph's nodes tell.

Reads what Dynamo and AOTAutograd leave on the nodes of a captured graph; changes nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch.fx
from torch._inductor.virtualized import V

from fusewise.schedule.patterns import Operation

_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')
#: How Dynamo writes the variable that a module was reached by: ``L['self']``, ``G['model']``.
_ROOT = re.compile(r"^[LG]\['([^']*)'\]\.?")
#: An item of a container, where it is not written as an attribute: ``[0]`` or ``['a']``.
_ITEM = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")


def operation(node: torch.fx.Node) -> Operation:
    """A node of a captured graph as rules see it."""
    return Operation(
        node.name, str(node.target), written_as(node), module_path(node), source_line(node)
    )


def operations(gm: torch.fx.GraphModule) -> Iterator[Operation]:
    """All operations of a captured graph in its order."""
    return (operation(node) for node in gm.graph.nodes if node.op == "call_function")


def positions() -> dict[torch.fx.Node, int]:
    """Where each node of the graph that is being lowered in this context stands in it."""
    return {node: i for i, node in enumerate(V.graph.graph.nodes)}


def origins_of(leaves: Iterable[Any], position: Mapping[torch.fx.Node, int]) -> list[torch.fx.Node]:
    """Nodes of the lowered graph that ended up in scheduler nodes, in its order.

    What is computed in a graph within another also comes of the operator that runs that graph,
    which is no node of it and is left out.

    Args:
        leaves: scheduler nodes, none of them fused.
        position: of the graph's nodes.
    """
    found: dict[torch.fx.Node, None] = {}
    for leaf in leaves:
        if leaf.node is not None:
            found |= dict.fromkeys(leaf.node.get_origins())
    own = [origin for origin in found if origin in position] or list(found)
    return sorted(own, key=lambda origin: (position.get(origin, -1), str(origin)))


def module_path(node: torch.fx.Node) -> str:
    """Path of the innermost module that ``node`` is in, "" where it is in none that is known.

    It begins at the module that was compiled, as in ``named_modules()``; where a function was, at
    the name by which it knows the module. Nodes of a backward graph are where those are that they
    are the derivative of.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    root = _ROOT.match(path)
    if root is not None:
        rest = path[root.end() :]
        path = rest if root[1] == "self" else f"{root[1]}.{rest}" if rest else root[1]
    return _ITEM.sub(r".\1", path.replace("._modules[", "[")).strip(".")


def source_line(node: torch.fx.Node) -> str:
    """``file:line`` of the user's program, "" where unknown."""
    found = _FILE_LINE.findall(node.meta.get("stack_trace") or "")
    return ":".join(found[-1]) if found else ""


def written_as(node: torch.fx.Node) -> str:
    """The operator that ``node`` was a part of before that was taken apart, "" where unknown."""
    return str(node.meta.get("original_aten") or "")


def lowered_operations() -> dict[str, Operation]:
    """Operations of the graph that is being lowered in this context, by name, in its order."""
    module: Any = V.graph.module
    return {found.name: found for found in operations(module)}


def idle_operations() -> frozenset[str]:
    """Of the graph that is being lowered, the operations that compute nothing: views and parts."""
    module: Any = V.graph.module
    return frozenset(
        node.name
        for node in module.graph.nodes
        if node.target is operator.getitem or getattr(node.target, "is_view", False)
    )


def operations_within(gm: torch.fx.GraphModule) -> Iterator[tuple[str, list[Operation]]]:
    """Graphs within a graph (of ``torch.cond``, of a loop) by name, each with its operations."""
    for name, child in gm.named_modules():
        if name and isinstance(child, torch.fx.GraphModule):
            yield name, list(operations(child))
