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
from fusewise.search.region import arrange, cycles
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
        self._timed_aligns = [(at, s) for at, s in enumerate(default.steps) if s.kind != "fuse"]
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
        self._home = {name: i for i, part in enumerate(parts) for name in part.part.names}
        self._kept = [tree for tree in trees if tree.nodes[0] not in self._home]
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

        Of the parts on a cycle the one that loses least by it goes back to a plan further down,
        and in the end to its start, until no cycle is left.
        """
        options: list[list[State]] = []
        for part, start in zip(self.parts, self.start, strict=True):
            better = [state for state in part.ranked(_FALLBACKS) if state.us < start.us]
            options.append([*better, start])
        at = [0] * len(options)
        while True:
            chosen = [some[i] for some, i in zip(options, at, strict=True)]
            trees = self.trees(chosen)
            if arrange(self._problem, trees) is not None:
                return chosen
            before = list(at)
            for cycle in cycles(self._problem, trees):
                involved = {
                    self._home[name] for tree in cycle for name in tree.nodes if name in self._home
                }
                losses = [
                    (options[i][at[i] + 1].us - options[i][at[i]].us, i)
                    for i in involved
                    if at[i] + 1 < len(options[i])
                ]
                # The starts close no cycle together, so some part on a cycle has further to go,
                # unless it has gone there on account of an earlier cycle just now.
                if losses:
                    at[min(losses)[1]] += 1
            if at == before:
                # Nothing on a cycle has further to go: what is built of this is not taken.
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

    def deviations(self, keep: int) -> list[tuple[str, list[State]]]:
        """The start with a single move (``neighbour``) or one part (``part``) changed.

        What gains most comes first; of the moves and the parts half each, as far as there are any
        that gain.
        """
        moves: list[tuple[float, int, State]] = []
        parts: list[tuple[float, int, State]] = []
        for i, part in enumerate(self.parts):
            before = self.start[i].us
            moves += [
                (state.us - before, i, state)
                for state in part.found.values()
                if state.origin == "neighbour" and state.us < before
            ]
            state = part.ranked(1)[0]
            if state.us < before:
                parts.append((state.us - before, i, state))
        moves.sort()
        parts.sort()
        chosen = [*parts[: keep // 2], *moves[: keep - min(len(parts), keep // 2)]]
        return [
            (
                "neighbour" if state.origin == "neighbour" else "part",
                [state if at == i else kept for at, kept in enumerate(self.start)],
            )
            for _, i, state in sorted(chosen)
        ]
