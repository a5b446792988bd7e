"""Carrying a plan over to a changed graph: what still matches by signature stays, as it was.

Everywhere else the compiler's own plan holds. Each step is asked of Inductor, so what comes out is
legal whatever has changed; nothing is compiled or timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from fusewise.schedule.plan import Plan, Step, build_plan, is_acyclic, split_steps
from fusewise.schedule.plan_file import PlannedGraph
from fusewise.schedule.problem import Problem
from fusewise.search.legality import Legality
from fusewise.search.tree import Join, Leaf, Tree


@dataclass(frozen=True)
class Carried:
    """A plan of a changed graph."""

    plan: Plan
    #: Groups of the old plan that are in it, by the new names, single nodes left out.
    groups: tuple[tuple[str, ...], ...]
    #: Groups of the old plan that are not, by the old names, each with the reason.
    lost: tuple[tuple[tuple[str, ...], str], ...]
    #: Nodes of the new graph that are none of the old one.
    new_nodes: tuple[str, ...]


def carry_over(
    planned: PlannedGraph, problem: Problem, default: Plan, legality: Legality
) -> Carried:
    """The plan of ``planned`` as far as it fits ``problem``, and ``default`` elsewhere.

    Nodes are matched by signature and order, so that of many alike each stands for its like. A
    group that had a node alone keeps it alone where it still is there.
    """
    old = planned.schedule.plan
    to_new = _matched(planned, problem)
    new_nodes = tuple(n.name for n in problem.nodes if n.name not in set(to_new.values()))
    growing = _Growing(problem, legality)
    carried: list[tuple[str, ...]] = []
    lost: list[tuple[tuple[str, ...], str]] = []
    kept: set[str] = set()
    for group in old.groups if old is not None else ():
        gone = [name for name in group if name not in to_new]
        members = frozenset(to_new[name] for name in group if name in to_new)
        if gone:
            lost.append((group, f"{', '.join(gone)} is no longer there"))
            continue
        if len(group) == 1:
            kept |= members
            continue
        refusal = growing.take(_steps_within(old, group, to_new))
        if refusal:
            lost.append((group, refusal))
            continue
        carried.append(growing.tree_of(to_new[group[0]]).nodes)
        kept |= members
    # What the default does with nodes that are spoken for is left out of it.
    rest = frozenset(node.name for node in problem.nodes) - kept
    for step in split_steps(default.steps, [rest, frozenset(kept)]):
        if step.kind == "fuse" and step.first in rest and step.second in rest:
            growing.take([step])
    plan = build_plan([node.name for node in problem.nodes], growing.steps)
    return Carried(plan, tuple(carried), tuple(lost), new_nodes)


def _matched(planned: PlannedGraph, problem: Problem) -> Mapping[str, str]:
    """New names of the old nodes that are still there."""
    old = [node for node in planned.nodes if node.signature]
    order = {name: i for i, name in enumerate(_in_order(planned))}
    old.sort(key=lambda node: order[node.name])
    before = [node.signature for node in old]
    after = [node.signature for node in problem.nodes]
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return {
        old[block.a + i].name: problem.nodes[block.b + i].name
        for block in blocks
        for i in range(block.size)
    }


def _in_order(planned: PlannedGraph) -> list[str]:
    """Names of nodes as the compiler had them: by the number that they end in."""
    names = [node.name for node in planned.nodes]
    numbers = {name: int("".join(filter(str.isdigit, name)) or 0) for name in names}
    return sorted(names, key=lambda name: (numbers[name], name))


def _steps_within(plan: Plan | None, group: Sequence[str], to_new: Mapping[str, str]) -> list[Step]:
    """The fusions that build one group, by new names."""
    inside = set(group)
    return [
        Step(step.kind, to_new[step.first], to_new[step.second], step.reorder)
        for step in (plan.steps if plan is not None else ())
        if step.kind == "fuse" and step.first in inside
    ]


class _Growing:
    """Groups under construction, legal and without cycles at each moment."""

    def __init__(self, problem: Problem, legality: Legality) -> None:
        self._problem = problem
        self._legality = legality
        self._trees: dict[str, Tree] = {
            node.name: Leaf(node.name, i) for i, node in enumerate(problem.nodes)
        }
        self.steps: list[Step] = []

    def tree_of(self, name: str) -> Tree:
        """The group that a node is in."""
        return self._trees[name]

    def take(self, steps: Iterable[Step]) -> str:
        """Take all of ``steps`` or none; why none, "" where all were taken."""
        before, taken = dict(self._trees), list(self.steps)
        for step in steps:
            refusal = self._join(step)
            if refusal:
                self._trees, self.steps = before, taken
                return refusal
        return ""

    def _join(self, step: Step) -> str:
        first, second = self._trees[step.first], self._trees[step.second]
        if first is second:
            return ""
        verdict = self._legality.verdict(first, second)
        if not verdict.legal:
            return f"{step.first} with {step.second}: {verdict.detail or verdict.reason}"
        join = Join(first, second, reorder=verdict.reorder)
        for name in join.nodes:
            self._trees[name] = join
        if not is_acyclic(self._problem, [tree.nodes for tree in set(self._trees.values())]):
            for tree in (first, second):
                for name in tree.nodes:
                    self._trees[name] = tree
            return f"{step.first} with {step.second} would close a cycle"
        self.steps.append(join.step)
        return ""
