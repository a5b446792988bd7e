"""Saving and restoring what Inductor's fusion checks change on the live scheduler nodes.

``Scheduler.can_fuse`` and ``BaseScheduling.fuse`` reorder loops, recompute loop bodies and fill
caches on the nodes that they look at. A question must leave no trace, so the whole attribute
dictionary of each leaf is saved and put back: that covers every attribute of every Inductor
version without a list of names that would go stale.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch._inductor import scheduler as inductor_scheduler
from torch.utils._ordered_set import OrderedSet

_CONTAINERS = (OrderedSet, list, dict, set)


class LeafState:
    """The attributes of one scheduler node at one moment."""

    __slots__ = ("_attributes", "_indexing", "_node")

    def __init__(self, node: inductor_scheduler.BaseSchedulerNode) -> None:
        self._node = node
        self._attributes = _copy(node.__dict__)
        body = getattr(node, "_body", None)
        # Index inversion edits the expressions of a loop body in place.
        expressions: dict[str, Any] | None = getattr(body, "indexing_exprs", None)
        self._indexing = None if expressions is None else (expressions, dict(expressions))

    def restore(self) -> None:
        """Put the node back as it was. The state stays usable for another time."""
        self._node.__dict__.clear()
        self._node.__dict__.update(_copy(self._attributes))
        if self._indexing is not None:
            expressions, saved = self._indexing
            expressions.clear()
            expressions.update(saved)


class GraphState:
    """All that fusion changes on a scheduler, its nodes and its buffers."""

    def __init__(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: Iterable[inductor_scheduler.BaseSchedulerNode],
    ) -> None:
        self._scheduler = scheduler
        self._attributes = {
            name: copy_container(value)
            for name, value in scheduler.__dict__.items()
            if isinstance(value, _CONTAINERS)
        }
        self._leaves = [LeafState(leaf) for node in nodes for leaf in (node, *leaves(node))]
        self._users = [(buf, list(buf.users)) for buf in scheduler.name_to_buf.values()]

    def restore(self) -> None:
        """Put scheduler, nodes and buffers back as they were."""
        for name, value in self._attributes.items():
            setattr(self._scheduler, name, copy_container(value))
        for leaf in self._leaves:
            leaf.restore()
        for buf, users in self._users:
            buf.users = list(users)
        forget_tilings()


def leaves(
    node: inductor_scheduler.BaseSchedulerNode,
) -> list[inductor_scheduler.BaseSchedulerNode]:
    """The single nodes inside ``node``; empty where it is single itself."""
    return [leaf for leaf in node.get_nodes() if leaf is not node]


def forget_tilings() -> None:
    """Drop Inductor's tiling cache, which is keyed by node and knows nothing of its loop order."""
    from torch._inductor.codegen.simd import SIMDScheduling

    SIMDScheduling.candidate_tilings.cache_clear()


def _copy(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: copy_container(value) for name, value in attributes.items()}


def copy_container(value: Any) -> Any:
    """A copy of a container of Inductor's, its members shared; anything else itself."""
    if isinstance(value, OrderedSet):
        return OrderedSet(value)
    if type(value) in (list, dict, set, defaultdict):
        return value.copy()
    return value
