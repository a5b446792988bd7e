"""Combo kernels: which kernels run in one launch, by a schedule's sets and a user's rules.

Inductor puts independent kernels into one launch after fusion, where no plan reaches. Its grouping
is replaced once a process by a dispatcher that asks a context variable: with neither sets nor rules
in this context, Inductor groups as if fusewise were not there. Nothing here decides what is worth a
common launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.hooks import is_subgraph
from fusewise.compiler.inductor.plans import members, owners
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.schedule.errors import PlanError
from fusewise.schedule.problem import mask_of
from fusewise.schedule.rules import RuleSet
from fusewise.search.rules import Rulings

_Node = inductor_scheduler.BaseSchedulerNode

_Sets = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Wanted:
    #: The user's, or None.
    rules: RuleSet | None
    #: Kernels for one launch each, a kernel by one of its nodes; without any, Inductor's sets.
    sets: _Sets


_active: ContextVar[_Wanted | None] = ContextVar("fusewise_combos", default=None)


@contextmanager
def combined_by(rules: RuleSet | None, sets: _Sets = ()) -> Iterator[None]:
    """Have combo kernels keep ``rules`` in this context, and be those of ``sets``.

    None and no sets for Inductor's own. What is compiled raises :class:`PlanError` where the
    kernels of a set cannot run in one launch, or may not.
    """
    if rules is None and not sets:
        yield
        return
    _install()
    with holding(_active, _Wanted(rules, sets)):
        yield


@once
def _install() -> None:
    foreach = inductor_scheduler.ForeachKernelSchedulerNode
    original = foreach.group_nodes_for_combo_kernels

    def group(scheduler: inductor_scheduler.Scheduler) -> list[list[_Node]]:
        wanted = _active.get()
        # A subgraph has kernels of its own, of which a schedule says nothing.
        if wanted is None or is_subgraph(V.graph):
            return original(scheduler)
        groups = _chosen(scheduler, wanted.sets) if wanted.sets else original(scheduler)
        if wanted.rules is None:
            return groups
        kept = _kept(scheduler, groups, wanted.rules)
        if wanted.sets and len(kept) != len(groups):
            raise _refused(wanted.sets[0], "the rules do not let all of the sets be")
        return kept

    foreach.group_nodes_for_combo_kernels = staticmethod(group)  # type: ignore[method-assign]


def _chosen(scheduler: inductor_scheduler.Scheduler, sets: _Sets) -> list[list[_Node]]:
    """The kernels of each set.

    Raises:
        PlanError: some cannot run in one launch; names them and the ground.
    """
    groups = []
    mixed = _mixed_order_buffers(scheduler)
    for names in sets:
        nodes: list[_Node] = []
        for name in names:
            node = scheduler.name_to_fused_node.get(name)
            if node is None:
                raise _refused(names, f"the graph has no node {name!r}")
            if node in nodes:
                raise _refused(names, f"{name!r} is in the same kernel as another of them")
            if not inductor_scheduler.ForeachKernelSchedulerNode.combinable_nodes([node]):
                raise _refused(names, f"the kernel of {name!r} is not one that Inductor combines")
            if node.used_buffer_names() & mixed:
                raise _refused(names, f"{name!r} reads what a reduction in mixed order gives")
            nodes.append(node)
        devices = {node.get_device() for node in nodes}
        streams = {getattr(scheduler, "node_to_stream", {}).get(node) for node in nodes}
        if len(devices) > 1 or len(streams) > 1:
            raise _refused(names, "they run on different devices or streams")
        if any(device is None or device.type == "cpu" for device in devices):
            raise _refused(names, "only kernels on a GPU share launches")
        groups.append(nodes)
    _check_order(scheduler, sets, groups)
    return groups


def _mixed_order_buffers(scheduler: inductor_scheduler.Scheduler) -> set[str]:
    """Buffers whose readers Inductor keeps out of combo kernels."""
    mixed: Any = getattr(inductor_scheduler, "FusedMixOrderReductions", ())
    return {
        str(name)
        for node in scheduler.nodes
        if isinstance(node, mixed)
        for name in node.get_buffer_names()
    }


def _check_order(
    scheduler: inductor_scheduler.Scheduler, sets: _Sets, groups: list[list[_Node]]
) -> None:
    """See that kernels can be put together so: that some order of launches has all they need.

    Raises:
        PlanError: two of a set depend on each other, or two sets do.
    """
    launch: dict[_Node, int] = {node: -1 - i for i, node in enumerate(scheduler.nodes)}
    launch |= {node: at for at, nodes in enumerate(groups) for node in nodes}
    needs: dict[int, set[int]] = {at: set() for at in launch.values()}
    for node, at in launch.items():
        for needed in scheduler._get_unmet_dep_nodes(node):
            # A path from a launch to itself is a cycle like any other.
            needs[at].add(launch[needed])
    users: dict[int, list[int]] = {at: [] for at in needs}
    for at, needed_launches in needs.items():
        for other in needed_launches:
            users[other].append(at)
    waiting = {at: len(needed_launches) for at, needed_launches in needs.items()}
    ready = [at for at, n in waiting.items() if n == 0]
    while ready:
        at = ready.pop()
        del waiting[at]
        for user in users[at]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    stuck = [at for at in waiting if at >= 0]
    if stuck:
        raise _refused(sets[min(stuck)], "what one of them computes another needs")


def _refused(names: tuple[str, ...], why: str) -> PlanError:
    return PlanError(
        f"the kernels of {', '.join(names)} cannot run in one launch: {why}",
        subject="schedule",
        remedy="leave the set out, or search again",
    )


def _kept(
    scheduler: inductor_scheduler.Scheduler, groups: list[list[_Node]], rules: RuleSet
) -> list[list[_Node]]:
    leaves = [leaf for node in scheduler.nodes for leaf in node.get_nodes()]
    # The kind of graph says nothing of any node, which is all that is looked at here.
    problem = extract_problem(scheduler, leaves, key="", kind="inference")
    rulings, owner = Rulings(problem, rules), owners(leaves)

    def mask(node: _Node) -> int:
        return mask_of(problem.index[name] for name in members(node, owner))

    return [part for nodes in groups for part in parted(nodes, mask, rulings.permits)]


def parted(
    nodes: Iterable[Any], mask: Callable[[Any], int], permits: Callable[[int], bool]
) -> list[list[Any]]:
    """``nodes`` in as few lists as come of taking each into the first list that may have it."""
    parts: list[tuple[int, list[Any]]] = []
    for node in nodes:
        own = mask(node)
        for at, (taken, inside) in enumerate(parts):
            if permits(taken | own):
                inside.append(node)
                parts[at] = (taken | own, inside)
                break
        else:
            parts.append((own, [node]))
    return [inside for _, inside in parts]
