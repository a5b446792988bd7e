"""Inductor's own rules on which groups may be fused, as questions that leave no trace.

Implements :class:`fusewise.search.legality.Legality` on a live, unfused graph. A question builds
the two groups as Inductor would, asks ``Scheduler.can_fuse`` and puts everything back. What was
built is kept, so that a group is put together once however often it is asked about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import scheduler as inductor_scheduler

from fusewise.compiler.inductor.extract import score_of
from fusewise.compiler.inductor.hooks import refusals
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.plans import node_name
from fusewise.compiler.inductor.refusals import Refusal, classify
from fusewise.compiler.inductor.state import LeafState, forget_tilings
from fusewise.compiler.inductor.wordless import wordless_ground
from fusewise.schedule.problem import PossibleFusion
from fusewise.search.legality import Verdict
from fusewise.search.tree import Join, Leaf, Tree

_Node = inductor_scheduler.BaseSchedulerNode
#: Attributes that a loop transformation or the pruning of dependencies replaces.
_MARKS = ("_body", "_sizes", "group", "read_writes", "unmet_dependencies")


@dataclass(frozen=True)
class _Built:
    """A group as Inductor represents it, with the state of what its making changed."""

    node: _Node
    changed: tuple[LeafState, ...]


class InductorLegality:
    """Answers of Inductor, memoised. Good as long as the live graph is."""

    def __init__(self, live: LiveGraph) -> None:
        self._scheduler = live.scheduler
        self._leaves = {node_name(node): node for node in live.nodes}
        self._ops = {node_name(n): tuple(n.get_operation_names()) for n in live.nodes}
        self._built: dict[Tree, _Built] = {}
        self._verdicts: dict[tuple[Tree, Tree], Verdict] = {}
        self._reorders = any(
            getattr(inductor_config, name, False)
            for name in ("loop_ordering_after_fusion", "loop_index_inversion_in_fusion")
        ) and any(node.is_gpu() for node in live.nodes)
        # Inductor prunes before it looks for fusions; the questions start from there as well.
        live.scheduler.prune_redundant_deps(list(live.nodes))
        self._original = {name: LeafState(node) for name, node in self._leaves.items()}
        self._marks = {name: _marks(node) for name, node in self._leaves.items()}

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        """Whether ``first`` and ``second`` may be fused in this order, whatever the others are."""
        known = self._verdicts.get((first, second))
        if known is None:
            known = self._ask(first, second)
            self._verdicts[first, second] = known
        return known

    @property
    def reordered(self) -> bool:
        """Whether loops had to be turned round for any fusion that was found to be legal."""
        return any(verdict.reorder for verdict in self._verdicts.values())

    def possible_fusions(self) -> list[PossibleFusion]:
        """Pairs of single nodes that Inductor would consider and allow, with its score."""
        result = []
        position = {name: i for i, name in enumerate(self._leaves)}
        for pair in self._pairs():
            # Epilogues and foreach fusions depend on which side comes first.
            orders = [pair, pair[::-1]] if self._order_dependent(pair[1]) else [pair]
            for first, second in orders:
                verdict = self.verdict(Leaf(first, position[first]), Leaf(second, position[second]))
                if verdict.legal:
                    score = score_of(self._scheduler, self._leaves[first], self._leaves[second])
                    result.append(PossibleFusion(first, second, score, verdict.reorder))
                    break
        return result

    def _order_dependent(self, name: str) -> bool:
        node = self._leaves[name]
        return bool(node.is_template() or node.is_foreach())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Pairs of nodes that use one buffer, as many for each buffer as Inductor looks at."""
        users: dict[str, list[str]] = defaultdict(list)
        for name, node in self._leaves.items():
            if not self._scheduler.unfusable_node(node):
                for buffer in node.used_buffer_names():
                    users[buffer].append(name)
        reach = inductor_config.max_fusion_buffer_group_pairwise_attempts
        seen = set()
        for names in users.values():
            for i, first in enumerate(names):
                for second in names[i + 1 : i + 1 + reach]:
                    if (first, second) not in seen:
                        seen.add((first, second))
                        yield first, second

    def _ask(self, first: Tree, second: Tree) -> Verdict:
        with self._assembled(first, second) as (node1, node2):
            if node1 is None or node2 is None:
                side = first if node1 is None else second
                return Verdict(False, Refusal.ORDER, f"{'+'.join(side.nodes)} is illegal itself")
            for reorder in (False, True) if self._reorders else (False,):
                with refusals() as reasons:
                    legal = self._scheduler.can_fuse(node1, node2, reorder)
                if legal:
                    return Verdict(True, reorder=reorder)
            if reasons:
                return Verdict(False, classify(reasons[-1]), reasons[-1])
            return Verdict(False, *wordless_ground(self._scheduler, node1, node2))

    @contextmanager
    def _assembled(self, first: Tree, second: Tree) -> Iterator[tuple[_Node | None, _Node | None]]:
        one, two = self._build(first), self._build(second)
        fused = self._scheduler.name_to_fused_node
        try:
            for tree, built in ((first, one), (second, two)):
                if built is None:
                    continue
                for state in built.changed:
                    state.restore()
                for op in self._ops_of(tree):
                    fused[op] = built.node
            nodes = [built.node for built in (one, two) if built is not None]
            self._scheduler.prune_redundant_deps(nodes)
            yield one.node if one else None, two.node if two else None
        finally:
            self._put_back((*first.nodes, *second.nodes))

    def _build(self, tree: Tree) -> _Built | None:
        """The group that ``tree`` describes; None where Inductor refuses one of its joins."""
        if isinstance(tree, Leaf):
            return _Built(self._leaves[tree.nodes[0]], ())
        assert isinstance(tree, Join)
        if tree in self._built:
            return self._built[tree]
        with self._assembled(tree.first, tree.second) as (node1, node2):
            # The check comes first because it lines up the loops that are then fused.
            if node1 is None or node2 is None:
                return None
            if not self._scheduler.can_fuse(node1, node2, tree.reorder):
                return None
            fused = self._scheduler.get_backend(node1.get_device()).fuse(node1, node2)
            changed = [name for name in tree.nodes if not self._is_original(name)]
            states = [LeafState(self._leaves[name]) for name in changed]
            built = _Built(fused, (*states, LeafState(fused)))
        self._built[tree] = built
        return built

    def _ops_of(self, tree: Tree) -> Iterable[str]:
        for name in tree.nodes:
            yield from self._ops[name]

    def _is_original(self, name: str) -> bool:
        now = _marks(self._leaves[name])
        return all(a is b for a, b in zip(now, self._marks[name], strict=True))

    def _put_back(self, names: Iterable[str]) -> None:
        touched = False
        for name in names:
            if not self._is_original(name):
                self._original[name].restore()
                touched = True
            for op in self._ops[name]:
                self._scheduler.name_to_fused_node[op] = self._leaves[name]
        if touched:
            forget_tilings()


def _marks(node: _Node) -> tuple[Any, ...]:
    return tuple(getattr(node, name, None) for name in _MARKS)
