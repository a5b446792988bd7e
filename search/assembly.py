"""From the plans of parts to plans of the whole graph.

Parts are searched apart, so two good parts can close a cycle through a third place: every whole
plan is checked before it is given out. Nothing here asks for verdicts or costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from fusewise.schedule.plan import Plan, Step, build_plan
from fusewise.schedule.problem import Problem
from fusewise.search.part_beam import PartBeam, State
from fusewise.search.region import arrange
from fusewise.search.tree import Join, Tree, subtrees, trees_of

#: Plans of one part that are tried where its best closes a cycle with other parts.
_FALLBACKS: Final = 4


class Stepwise:
    """Writes trees as steps, with the default's ``align`` steps where they stood.

    An ``align`` works on the groups of its moment. So a join that takes part of the default's
    joins keeps the moment of that join, and all others come after the last ``align``.
    """

    def __init__(self, problem: Problem, default: Plan) -> None:
        self._names = [node.name for node in problem.nodes]
        self._problem = problem
        self._timed_aligns = [(at, s) for at, s in enumerate(default.steps) if s.kind == "align"]
        self.aligns = tuple(step for _, step in self._timed_aligns)
        self._end = len(default.steps)
        self._roots = {name: tree for tree in trees_of(problem, default) for name in tree.nodes}
        self._at: dict[frozenset[str], int] = {}
        self._moments: dict[Tree, int] = {}
        if self.aligns:
            group = {name: frozenset((name,)) for name in self._names}
            for at, step in enumerate(default.steps):
                if step.kind == "fuse":
                    joined = group[step.first] | group[step.second]
                    self._at[joined] = at
                    group.update(dict.fromkeys(joined, joined))

    def plan(self, trees: Sequence[Tree], foreign: frozenset[str]) -> Plan:
        """The canonical plan of ``trees``.

        The default's aligns are kept but for those of ``foreign`` nodes, whose groups do not
        descend from the default.
        """
        kept = [
            (at, -1, step)
            for at, step in self._timed_aligns
            if step.first not in foreign and step.second not in foreign
        ]
        if not kept:
            return build_plan(self._names, [step for tree in trees for step in tree.steps])
        timed: list[tuple[int, int, Step]] = kept
        for tree in trees:
            for sub in subtrees(tree):
                if isinstance(sub, Join):
                    timed.append((self._moment(sub), len(timed), sub.step))
        timed.sort(key=lambda entry: entry[:2])
        return build_plan(self._names, [step for _, _, step in timed])

    def _moment(self, tree: Tree) -> int:
        """Position in the default's steps; -1 for a leaf, past the end for what is new."""
        if not isinstance(tree, Join):
            return -1
        known = self._moments.get(tree)
        if known is None:
            below = max(self._moment(tree.first), self._moment(tree.second))
            origin = self._parting(tree.first, tree.second)
            known = origin if below < origin else self._end
            self._moments[tree] = known
        return known

    def _parting(self, first: Tree, second: Tree) -> int:
        """Position of the default's step that brought the two sides together."""
        a, b = first.nodes[0], second.nodes[0]
        top = self._roots[a]
        mask_a = 1 << self._problem.index[a]
        mask_b = 1 << self._problem.index[b]
        while isinstance(top, Join) and top.mask & mask_b:
            if top.first.mask & mask_a and top.first.mask & mask_b:
                top = top.first
            elif top.second.mask & mask_a and top.second.mask & mask_b:
                top = top.second
            else:
                # The other way round it is no part of the default's join.
                return self._at[top.members] if top.first.mask & mask_a else -1
        return -1


class Whole:
    """Combines one plan of each part with the groups that no part holds."""

    def __init__(
        self,
        problem: Problem,
        trees: Sequence[Tree],
        parts: Sequence[PartBeam],
        start: Sequence[State],
        foreign: frozenset[str] = frozenset(),
    ) -> None:
        """Args:
        trees: all groups of the default.
        parts: disjoint parts, searched.
        start: a plan of each part that together close no cycle.
        foreign: nodes of parts whose start does not descend from the default.
        """
        self._problem = problem
        self._trees = tuple(trees)
        held = {name for part in parts for name in part.part.names}
        self._kept = [tree for tree in trees if tree.nodes[0] not in held]
        self._foreign = foreign
        self.parts = tuple(parts)
        self.start = tuple(start)

    def with_parts(
        self, parts: Sequence[PartBeam], start: Sequence[State], foreign: frozenset[str]
    ) -> Whole:
        """The same graph in other parts."""
        return Whole(self._problem, self._trees, parts, start, foreign)

    def trees(self, states: Sequence[State]) -> list[Tree]:
        """All groups of the graph."""
        found = list(self._kept)
        for part, state in zip(self.parts, states, strict=True):
            found += [part.part.tree[mask] for mask in state.masks]
        return found

    def arranged(self, states: Sequence[State]) -> list[Tree] | None:
        """All groups of the graph in a valid order, or None where the parts close a cycle."""
        return arrange(self._problem, self.trees(states))

    def foreign(self, states: Sequence[State]) -> frozenset[str]:
        """Nodes whose groups do not descend from the default."""
        return self._foreign | {
            name
            for part, state in zip(self.parts, states, strict=True)
            if not state.derived
            for name in part.part.names
        }

    def best(self) -> list[State]:
        """The best plan of each part, but for parts that would close a cycle with others.

        Parts are taken over many at a time; where that closes a cycle, half of them at a time.
        """
        chosen = list(self.start)
        ranked = [part.ranked(_FALLBACKS) for part in self.parts]

        def adopt(ids: Sequence[int]) -> None:
            ids = [i for i in ids if ranked[i][0].us < chosen[i].us]
            if not ids:
                return
            trial = list(chosen)
            for i in ids:
                trial[i] = ranked[i][0]
            if self.arranged(trial) is not None:
                chosen[:] = trial
            elif len(ids) > 1:
                adopt(ids[: len(ids) // 2])
                adopt(ids[len(ids) // 2 :])
            else:
                for state in ranked[ids[0]][1:]:
                    trial[ids[0]] = state
                    if state.us < chosen[ids[0]].us and self.arranged(trial) is not None:
                        chosen[:] = trial
                        return

        adopt(range(len(self.parts)))
        return chosen

    def near_best(self, best: Sequence[State], keep: int) -> Iterator[list[State]]:
        """Combinations in the order of their time, ``best`` first; cycles are not looked at."""
        ranks = [
            [best[i], *(s for s in part.ranked(keep + _FALLBACKS) if s > best[i])]
            for i, part in enumerate(self.parts)
        ]
        first = tuple(0 for _ in ranks)
        heap = [(0.0, first)]
        seen = {first}
        while heap:
            extra, at = heapq.heappop(heap)
            yield [options[rank] for options, rank in zip(ranks, at, strict=True)]
            for i, options in enumerate(ranks):
                if at[i] + 1 < len(options):
                    following = (*at[:i], at[i] + 1, *at[i + 1 :])
                    if following not in seen:
                        seen.add(following)
                        more = options[at[i] + 1].us - options[at[i]].us
                        heapq.heappush(heap, (extra + more, following))

    def deviations(self, keep: int) -> list[list[State]]:
        """The start with one part changed for its best, the parts that gain most first."""
        gains = []
        for i, part in enumerate(self.parts):
            state = part.ranked(1)[0]
            if state.us < self.start[i].us:
                gains.append((state.us - self.start[i].us, i, state))
        return [
            [state if at == i else kept for at, kept in enumerate(self.start)]
            for _, i, state in sorted(gains)[:keep]
        ]
