"""Combo kernels under a user's rules: which kernels may run in one launch.

Inductor puts independent kernels into one launch after fusion, where no plan reaches. Its grouping
is replaced once a process by a dispatcher that asks a context variable: with no rules in this
context, Inductor groups as if fusewise were not there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.plans import members, owners
from fusewise.schedule.rules import RuleSet
from fusewise.search.rules import Rulings

_Node = inductor_scheduler.BaseSchedulerNode

_active: ContextVar[RuleSet | None] = ContextVar("fusewise_combo_rules", default=None)
_lock = threading.Lock()
_installed = False


@contextmanager
def combined_by(rules: RuleSet | None) -> Iterator[None]:
    """Have combo kernels keep ``rules`` in this context; None for Inductor's own."""
    if rules is None:
        yield
        return
    _install()
    token = _active.set(rules)
    try:
        yield
    finally:
        _active.reset(token)


def _install() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        foreach = inductor_scheduler.ForeachKernelSchedulerNode
        original = foreach.group_nodes_for_combo_kernels

        def group(scheduler: inductor_scheduler.Scheduler) -> list[list[_Node]]:
            groups = original(scheduler)
            rules = _active.get()
            return groups if rules is None else _kept(scheduler, groups, rules)

        foreach.group_nodes_for_combo_kernels = staticmethod(group)  # type: ignore[method-assign]
        _installed = True


def _kept(
    scheduler: inductor_scheduler.Scheduler, groups: list[list[_Node]], rules: RuleSet
) -> list[list[_Node]]:
    leaves = [leaf for node in scheduler.nodes for leaf in node.get_nodes()]
    # The kind of graph says nothing of any node, which is all that is looked at here.
    problem = extract_problem(scheduler, leaves, key="", kind="inference")
    rulings, owner = Rulings(problem, rules), owners(leaves)

    def mask(node: _Node) -> int:
        return sum(1 << problem.index[name] for name in members(node, owner))

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
