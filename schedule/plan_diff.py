"""What differs between two plan files: environment, choices, nodes and groups of each graph.

Graphs are paired by kind and place; nodes by name, as both files name them. Reads data only.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fusewise.schedule.plan_file import PlanFile, PlannedGraph, PlannedNode
from fusewise.schedule.schedule import Choice


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same; "" stands for what is not there."""

    what: str
    first: str
    second: str


class MovedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that shares its kernel with others than before."""

    node: str
    operations: tuple[str, ...]
    #: The others in its group; empty where it is alone.
    first: tuple[str, ...]
    second: tuple[str, ...]


class GraphDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the plans of one graph differ."""

    kind: str
    #: In which of the files the graph is: ``both``, ``first`` or ``second``.
    present: str = "both"
    #: Parts of the key.
    key: tuple[str, ...] = ()
    choices: tuple[Difference, ...] = ()
    #: Nodes that are in one file only, or are others of the same name.
    nodes: tuple[Difference, ...] = ()
    #: Groups that are in one of the files only.
    only_first: tuple[tuple[str, ...], ...] = ()
    only_second: tuple[tuple[str, ...], ...] = ()
    moved: tuple[MovedNode, ...] = ()
    #: Whether the same groups are put together in another order.
    steps: bool = False

    @property
    def same(self) -> bool:
        """Whether the plans are the same."""
        return self == GraphDifference(kind=self.kind)


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How two plan files differ."""

    environment: tuple[Difference, ...]
    graphs: tuple[GraphDifference, ...]

    @property
    def same(self) -> bool:
        """Whether the files hold the same plans for the same environment."""
        return not self.environment and all(graph.same for graph in self.graphs)


def diff_plans(first: PlanFile, second: PlanFile) -> PlanDifference:
    """What differs from ``first`` to ``second``. Times are left out: they are never the same."""
    environment = [
        Difference(what=name, first=getattr(first, name), second=getattr(second, name))
        for name in ("fusewise", "torch", "triton")
        if getattr(first, name) != getattr(second, name)
    ]
    return PlanDifference(
        environment=tuple(environment), graphs=tuple(_graphs(first.graphs, second.graphs))
    )


def _graphs(first: Sequence[PlannedGraph], second: Sequence[PlannedGraph]) -> list[GraphDifference]:
    found = []
    for kind in dict.fromkeys(graph.kind for graph in (*first, *second)):
        ours = [graph for graph in first if graph.kind == kind]
        theirs = [graph for graph in second if graph.kind == kind]
        found += [_graph(a, b) for a, b in zip(ours, theirs, strict=False)]
        rest = len(ours) - len(theirs)
        present = "first" if rest > 0 else "second"
        found += [GraphDifference(kind=kind, present=present) for _ in range(abs(rest))]
    return found


def _graph(first: PlannedGraph, second: PlannedGraph) -> GraphDifference:
    parts = dict.fromkeys((*first.key_parts, *second.key_parts))
    ours, theirs = _groups(first), _groups(second)
    only_first = [group for group in ours if set(group) not in map(set, theirs)]
    only_second = [group for group in theirs if set(group) not in map(set, ours)]
    known = {node.name: node for node in (*second.nodes, *first.nodes)}
    same_groups = not only_first and not only_second
    return GraphDifference(
        kind=first.kind,
        key=tuple(p for p in parts if first.key_parts.get(p) != second.key_parts.get(p)),
        choices=tuple(_choices(first, second)),
        nodes=tuple(_nodes(first, second)),
        only_first=tuple(only_first),
        only_second=tuple(only_second),
        moved=tuple(_moved(ours, theirs, known)),
        steps=same_groups and first.schedule.plan != second.schedule.plan,
    )


def _groups(graph: PlannedGraph) -> tuple[tuple[str, ...], ...]:
    return graph.schedule.plan.groups if graph.schedule.plan is not None else ()


def _choices(first: PlannedGraph, second: PlannedGraph) -> list[Difference]:
    ours, theirs = (
        {choice.name: choice for choice in (*g.schedule.lowering, *g.schedule.codegen)}
        | {f"{choice.name} came to": choice for choice in g.blocks}
        for g in (first, second)
    )
    return [
        Difference(what=name, first=_value(ours.get(name)), second=_value(theirs.get(name)))
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]


def _value(choice: Choice | None) -> str:
    return "" if choice is None else str(choice.value)


def _nodes(first: PlannedGraph, second: PlannedGraph) -> list[Difference]:
    ours, theirs = ({node.name: node for node in g.nodes} for g in (first, second))
    return [
        Difference(what=name, first=_told(ours.get(name)), second=_told(theirs.get(name)))
        for name in dict.fromkeys((*ours, *theirs))
        if name not in ours or name not in theirs or ours[name].signature != theirs[name].signature
    ]


def _told(node: PlannedNode | None) -> str:
    return "" if node is None else f"{', '.join(node.operations)} ({node.signature})"


def _moved(
    first: Sequence[tuple[str, ...]],
    second: Sequence[tuple[str, ...]],
    known: dict[str, PlannedNode],
) -> list[MovedNode]:
    """Nodes of both plans whose company has changed, in the order of the first plan."""
    ours = {name: group for group in first for name in group}
    theirs = {name: group for group in second for name in group}
    return [
        MovedNode(
            node=name,
            operations=known[name].operations if name in known else (),
            first=tuple(other for other in group if other != name),
            second=tuple(other for other in theirs[name] if other != name),
        )
        for name, group in ours.items()
        if name in theirs and set(group) != set(theirs[name])
    ]
