"""All legal plans of a small problem, and searches that walk among them.

A plan here is a partition that pairwise fusions lead to, each allowed by Inductor's own rules,
with each group put together as it was first found. Nothing is measured.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from fusewise.schedule.plan import is_acyclic
from fusewise.schedule.problem import Problem
from fusewise.search.legality import Legality
from fusewise.search.tree import Join, Leaf, Tree

Partition = frozenset[frozenset[str]]
#: Temperatures of the annealing, relative to the time that it begins with.
_HOT, _COLD = 0.05, 0.001


class TooManyError(Exception):
    """A problem has more legal plans than were asked for."""


class LegalPlans:
    """Every legal partition, with those that are one fusion apart from it."""

    def __init__(self, problem: Problem, legality: Legality, most: int) -> None:
        """Enumerate them.

        Raises:
            TooManyError: there are more than ``most``.
        """
        self._problem = problem
        self._legality = legality
        #: How each group is put together.
        self._trees: dict[frozenset[str], Tree] = {
            frozenset((node.name,)): Leaf(node.name, i) for i, node in enumerate(problem.nodes)
        }
        #: Groups that two groups make together; None where that is refused.
        self._joined: dict[frozenset[frozenset[str]], frozenset[str] | None] = {}
        self.unfused: Partition = frozenset(self._trees)
        self.next_to: dict[Partition, list[Partition]] = {self.unfused: []}
        waiting = deque([self.unfused])
        while waiting:
            at = waiting.popleft()
            for other in self._merges(at):
                if other not in self.next_to:
                    if len(self.next_to) >= most:
                        raise TooManyError
                    self.next_to[other] = []
                    waiting.append(other)
                self.next_to[at].append(other)
                self.next_to[other].append(at)

    def trees(self, partition: Partition) -> list[Tree]:
        """How the groups are put together, in the order of their first nodes."""
        found = [self._trees[group] for group in partition]
        return sorted(found, key=lambda tree: tree.mask & -tree.mask)

    def _merges(self, partition: Partition) -> Iterator[Partition]:
        groups = sorted(partition, key=sorted)
        for i, first in enumerate(groups):
            for second in groups[i + 1 :]:
                joined = self._join(first, second)
                if joined is None:
                    continue
                other = (partition - {first, second}) | {joined}
                if is_acyclic(self._problem, [tuple(group) for group in other if len(group) > 1]):
                    yield other

    def _join(self, first: frozenset[str], second: frozenset[str]) -> frozenset[str] | None:
        pair = frozenset((first, second))
        if pair not in self._joined:
            self._joined[pair] = None
            a, b = self._trees[first], self._trees[second]
            for one, other in ((a, b), (b, a)):
                verdict = self._legality.verdict(one, other)
                if verdict.legal:
                    self._joined[pair] = first | second
                    tree = Join(one, other, reorder=verdict.reorder)
                    self._trees.setdefault(first | second, tree)
                    break
        return self._joined[pair]


def greedy(plans: LegalPlans, us: Callable[[Partition], float]) -> Partition:
    """From every node alone, the fusion that is predicted to save most, as long as one does."""
    at = plans.unfused
    while True:
        larger = [other for other in plans.next_to[at] if len(other) < len(at)]
        best = min(larger, key=lambda p: (us(p), sorted(map(sorted, p))), default=None)
        if best is None or us(best) >= us(at):
            return at
        at = best


def annealed(
    plans: LegalPlans,
    us: Callable[[Partition], float],
    start: Partition,
    steps: int,
    draw: random.Random,
) -> list[Partition]:
    """The partitions that simulated annealing comes across in ``steps`` predictions.

    Kirkpatrick, Gelatt and Vecchi, Science 220 (1983): a random step up is taken with a chance
    that falls with the temperature, which falls geometrically.
    """
    at = start
    seen = {start: None}
    for step in range(steps):
        if not plans.next_to[at]:
            break
        heat = us(start) * _HOT * (_COLD / _HOT) ** (step / steps)
        other = draw.choice(plans.next_to[at])
        seen[other] = None
        up = us(other) - us(at)
        if up <= 0 or draw.random() < math.exp(-up / heat):
            at = other
    return list(seen)


def drawn(partitions: Sequence[Partition], count: int, draw: random.Random) -> list[Partition]:
    """``count`` partitions by chance, without those that come twice."""
    return list(dict.fromkeys(draw.choice(partitions) for _ in range(count)))
