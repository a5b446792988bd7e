"""Plans on a live scheduler: reading Inductor's own, and applying any.

This is the one place where a plan becomes fused nodes. Nothing here knows where a plan came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.scheduler import FusedSchedulerNode
from torch.utils._ordered_set import OrderedSet

from fusewise.compiler.inductor.hooks import refusals
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, Step, build_plan

_Node = inductor_scheduler.BaseSchedulerNode


def node_name(node: _Node) -> str:
    """Name under which a scheduler node stands in problems and plans."""
    return str(node.get_first_name())


def record_plan(
    scheduler: inductor_scheduler.Scheduler,
    nodes: Sequence[_Node],
    stock: Callable[[list[_Node]], list[_Node]],
) -> tuple[list[_Node], Plan]:
    """Run Inductor's own fusion and write down what it did.

    Returns:
        The fused nodes, and the plan that builds them again. A check that changed the loops of
        two nodes without fusing them is in the plan as an ``align`` step.
    """
    names = [node_name(node) for node in nodes]
    steps: list[Step] = []
    with _recording(scheduler, steps):
        fused = stock(list(nodes))
    return fused, build_plan(names, steps)


@contextmanager
def _recording(scheduler: inductor_scheduler.Scheduler, steps: list[Step]) -> Iterator[None]:
    original_can_fuse = scheduler.can_fuse
    original_fuse = scheduler.fuse_two_nodes
    original_prune = scheduler.prune_redundant_deps
    depth = 0
    reordered: dict[tuple[_Node, _Node], bool] = {}

    def can_fuse(
        node1: _Node, node2: _Node, can_reorder: bool = False, *args: Any, **kwargs: Any
    ) -> bool:
        nonlocal depth
        depth += 1
        before = _loops(node1) + _loops(node2) if depth == 1 else []
        try:
            legal = bool(original_can_fuse(node1, node2, can_reorder, *args, **kwargs))
        finally:
            depth -= 1
        if depth == 0:
            reordered[node1, node2] = can_reorder
            if not _same(before, _loops(node1) + _loops(node2)):
                steps.append(Step("align", node_name(node1), node_name(node2), can_reorder))
        return legal

    def fuse_two_nodes(node1: _Node, node2: _Node, fused_nodes: OrderedSet[_Node]) -> _Node:
        flag = reordered.get((node1, node2), False)
        steps.append(Step("fuse", node_name(node1), node_name(node2), flag))
        return original_fuse(node1, node2, fused_nodes)

    def prune_redundant_deps(nodes: list[_Node]) -> None:
        alone = [node for node in nodes if not isinstance(node, FusedSchedulerNode)]
        before = [node.unmet_dependencies for node in alone]
        original_prune(nodes)
        if not steps:
            # Every plan starts from the pruned nodes.
            return
        for node, dependencies in zip(alone, before, strict=True):
            if node.unmet_dependencies is not dependencies:
                steps.append(Step("prune", node_name(node), node_name(node)))

    # Attributes of the instance shadow the methods, so nested checks come through here as well.
    scheduler.can_fuse = can_fuse  # type: ignore[method-assign]
    scheduler.fuse_two_nodes = fuse_two_nodes  # type: ignore[method-assign]
    scheduler.prune_redundant_deps = prune_redundant_deps  # type: ignore[method-assign]
    try:
        yield
    finally:
        del scheduler.can_fuse, scheduler.fuse_two_nodes, scheduler.prune_redundant_deps


def _loops(node: _Node) -> list[tuple[Any, Any, Any]]:
    """What a loop transformation replaces, leaf by leaf."""
    return [
        (getattr(leaf, "_body", None), getattr(leaf, "_sizes", None), leaf.read_writes)
        for leaf in node.get_nodes()
    ]


def _same(before: list[tuple[Any, Any, Any]], after: list[tuple[Any, Any, Any]]) -> bool:
    return all(
        a is b for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)
    )


def apply_plan(
    scheduler: inductor_scheduler.Scheduler, nodes: Sequence[_Node], plan: Plan
) -> list[_Node]:
    """Fuse ``nodes`` exactly as ``plan`` says, each step checked by Inductor itself.

    Raises:
        PlanError: the plan is of another graph, or a step is refused; names the group and the
            reason. The nodes are then partly fused and must be restored or thrown away.
    """
    names = [node_name(node) for node in nodes]
    planned = [name for group in plan.groups for name in group]
    if sorted(names) != sorted(planned):
        foreign = sorted(set(planned) ^ set(names))
        raise PlanError(
            f"it places {len(planned)} nodes and the graph has {len(names)}; "
            f"{foreign[0]!r} is only in one of them",
            subject="plan",
            remedy="use a plan that was made for this graph",
        )
    fused: OrderedSet[_Node] = OrderedSet(nodes)
    scheduler.prune_redundant_deps(list(nodes))
    for step in plan.steps:
        _take(scheduler, step, plan, fused)
    result = sorted(fused, key=lambda node: node.min_order)
    scheduler.prune_redundant_deps(result)
    _check_groups(result, plan, owners(nodes))
    return list(scheduler.topological_sort_schedule(result))


def _take(
    scheduler: inductor_scheduler.Scheduler, step: Step, plan: Plan, fused: OrderedSet[_Node]
) -> None:
    node1 = scheduler.name_to_fused_node[step.first]
    node2 = scheduler.name_to_fused_node[step.second]
    if step.kind == "prune":
        scheduler.prune_redundant_deps([node1])
        return
    # Inductor prunes once a round, and what it pruned of single nodes is in the plan's own steps.
    pair = [node1, node2]
    scheduler.prune_redundant_deps([n for n in pair if isinstance(n, FusedSchedulerNode)])
    with refusals() as reasons:
        legal = scheduler.can_fuse(node1, node2, step.reorder)
        if step.kind == "align":
            return
        if not legal:
            # Other plans have no rounds: each of their steps may need what a round would prune.
            scheduler.prune_redundant_deps(pair)
            legal = scheduler.can_fuse(node1, node2, step.reorder)
        legal = legal and not scheduler.will_fusion_create_cycle(node1, node2)
    if not legal:
        group = plan.groups[plan.group_of()[step.first]]
        why = reasons[-1] if reasons else "refused by the code generator"
        raise PlanError(
            f"group {group} is illegal: {step.first} cannot be fused with {step.second} ({why})",
            subject="plan",
            remedy="split the group, or search again",
        )
    scheduler.fuse_two_nodes(node1, node2, fused)


def _check_groups(fused: Sequence[_Node], plan: Plan, owner: Mapping[str, str]) -> None:
    built = {frozenset(members(node, owner)) for node in fused}
    for group in plan.groups:
        if frozenset(group) not in built:
            raise PlanError(
                f"group {group} did not come out of its steps",
                subject="plan",
                remedy="write plans with build_plan, which keeps groups and steps together",
            )


def owners(nodes: Iterable[_Node]) -> dict[str, str]:
    """For each operation, the problem node that it belongs to; a foreach node has many."""
    return {op: node_name(node) for node in nodes for op in node.get_operation_names()}


def members(node: _Node, owner: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the problem nodes inside a fused node, in fused order.

    ``owner`` is that of the nodes before fusion (:func:`owners`).
    """
    return tuple(dict.fromkeys(owner[op] for op in node.get_operation_names()))
