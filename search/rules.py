"""What a user's rules mean for one problem: which nodes may share a kernel, which have to.

Of two rules that speak of the same pair of nodes the later one decides. What is forbidden is never
done; what is demanded is done where it is legal and nothing forbids it. Knows nothing of plans that
exist (:mod:`fusewise.search.repair`) or of how rules are written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fusewise.schedule.patterns import operations
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Node, Problem, bits, mask_of
from fusewise.schedule.rules import BOUNDS, LOWERING, PAIRED, Rule, RuleSet, Selector
from fusewise.search.legality import Legality, Verdict
from fusewise.search.tree import Tree

#: Reason code of a merge that a rule forbids.
RULE: Final = "rule"
#: Kinds of nodes that nothing is ever fused with.
_CLOSED: Final = frozenset({"extern", "nop"})


class Demand(NamedTuple):
    """Two nodes that share data and that a rule wants in one kernel; places in the problem."""

    rule: int
    first: int
    second: int


class Conflict(NamedTuple):
    """A rule that does not have its way because of another one."""

    #: Places of the two rules, and the pairs of nodes that both speak of.
    winner: int
    loser: int
    pairs: int


class Refused(NamedTuple):
    """Why nodes may not be one kernel: the rule, and in words what it minds."""

    rule: int
    detail: str


@dataclass(frozen=True, slots=True)
class RuleUse:
    """What one rule was about in one problem."""

    #: Nodes that compute something it selects.
    nodes: int
    #: Pairs of nodes that share data and that it speaks of.
    pairs: int
    #: Whether it selects anything at all; a rule about pairs on both sides.
    matched: bool


class Rulings:
    """The rules on one problem."""

    def __init__(
        self, problem: Problem, rules: RuleSet, lowered: Mapping[int, int] | None = None
    ) -> None:
        """Args:
        problem: the graph.
        rules: the rules.
        lowered: for rules that act at lowering, by their place, the operations they matched there.
        """
        self.problem = problem
        self.rules = rules
        #: For each node the bitset of those that share a buffer with it.
        self.near = _near(problem)
        #: For each node the bitset of those that must not share a kernel with it.
        self.forbidden = [0] * len(problem.nodes)
        self._demanded = [0] * len(problem.nodes)
        self._matched: dict[Selector, tuple[frozenset[str], ...]] = {}
        self._rows_of: dict[int, dict[int, int]] = {}
        self._bounds: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in BOUNDS}
        conflicts: dict[tuple[int, int], int] = {}
        uses = []
        for at, rule in enumerate(rules.rules):
            if rule.action in LOWERING:
                count = (lowered or {}).get(at, 0)
                uses.append(RuleUse(count, 0, count > 0))
            elif rule.action == "at_most":
                uses.append(self._bind(at, rule))
            else:
                uses.append(self._decide(at, rule, conflicts))
        self.uses: tuple[RuleUse, ...] = tuple(uses)
        self.conflicts: tuple[Conflict, ...] = tuple(
            Conflict(winner, loser, pairs) for (winner, loser), pairs in conflicts.items()
        )

    def _decide(self, at: int, rule: Rule, conflicts: dict[tuple[int, int], int]) -> RuleUse:
        """Take in a rule about pairs; count those of earlier rules that it turns round."""
        rows = self._rows(at)
        turned, kept = self._demanded, self.forbidden
        if rule.action == "always":
            turned, kept = kept, turned
        pairs = 0
        for i, row in rows.items():
            for j in bits(turned[i] & row & self.near[i] & -(1 << i)):
                earlier = self._decider(i, j, at)
                conflicts[at, earlier] = conflicts.get((at, earlier), 0) + 1
            turned[i] &= ~row
            kept[i] |= row
            pairs += (row & self.near[i] & -(1 << i)).bit_count()
        sides = [self._mask(selector) for selector in rule.selectors]
        nodes = functools.reduce(int.__or__, sides).bit_count()
        return RuleUse(nodes, pairs, all(sides))

    def _bind(self, at: int, rule: Rule) -> RuleUse:
        nodes = bits(self._mask(rule.select))
        for name in BOUNDS:
            value = getattr(rule, name)
            if value is not None:
                self._bounds[name].update(dict.fromkeys(nodes, (value, at)))
        return RuleUse(len(nodes), 0, bool(nodes))

    def _operations(self, selector: Selector) -> tuple[frozenset[str], ...]:
        """For each node the operations that ``selector`` matches, by name."""
        known = self._matched.get(selector)
        if known is None:
            known = tuple(_matching(selector, node) for node in self.problem.nodes)
            self._matched[selector] = known
        return known

    def _mask(self, selector: Selector) -> int:
        found = self._operations(selector)
        return mask_of(i for i, names in enumerate(found) if names)

    def _rows(self, at: int) -> dict[int, int]:
        """For each node that rule ``at`` speaks of the bitset of those it pairs it with."""
        known = self._rows_of.get(at)
        if known is None:
            known = self._rows_of[at] = self._paired(self.rules.rules[at])
        return known

    def _paired(self, rule: Rule) -> dict[int, int]:
        first = self._mask(rule.select)
        if rule.action not in PAIRED:
            every = (1 << len(self.problem.nodes)) - 1
            rows = {i: every if first >> i & 1 else first for i in range(len(self.problem.nodes))}
        else:
            sides = (rule.select, rule.other or rule.select)
            masks = (first, self._mask(sides[1]))
            rows = {}
            for own, other in ((0, 1), (1, 0)):
                # The same operation in two nodes, computed twice, is no pair of operations.
                same: dict[frozenset[str], int] = {}
                for j in bits(masks[other]):
                    names = self._operations(sides[other])[j]
                    if len(names) == 1:
                        same[names] = same.get(names, 0) | 1 << j
                for i in bits(masks[own]):
                    names = self._operations(sides[own])[i]
                    rows[i] = rows.get(i, 0) | masks[other] & ~same.get(names, 0)
        return {i: row & ~(1 << i) for i, row in rows.items() if row & ~(1 << i)}

    def _decider(self, i: int, j: int, before: int | None = None) -> int:
        """The last rule, of those before ``before``, that speaks of a pair; there must be one."""
        last = len(self.rules.rules) if before is None else before
        return next(
            at
            for at in reversed(range(last))
            if self.rules.rules[at].action not in (*LOWERING, "at_most")
            and self._rows(at).get(i, 0) >> j & 1
        )

    @functools.cached_property
    def demands(self) -> tuple[Demand, ...]:
        """All demands on nodes that share data, those of the strongest rule first."""
        kinds = [node.kind for node in self.problem.nodes]
        open_to = mask_of(i for i, kind in enumerate(kinds) if kind not in _CLOSED)
        found = [
            Demand(self._decider(i, j), i, j)
            for i, row in enumerate(self._demanded)
            for j in bits(row & self.near[i] & open_to & -(1 << i))
            if open_to >> i & 1
        ]
        return tuple(sorted(found, key=lambda demand: (-demand.rule, *demand[1:])))

    @property
    def idle(self) -> bool:
        """Whether no rule says anything about any kernel of this problem."""
        return not (any(self.forbidden) or any(self._demanded) or any(self._bounds.values()))

    def permits(self, mask: int) -> bool:
        """Whether the nodes of a bitset may be one kernel, as far as rules go."""
        return self.refused(mask) is None

    def refused(self, mask: int, other: int = 0) -> Refused | None:
        """Why the nodes of two bitsets may not be one kernel; None where they may.

        A node alone may always be. With ``other`` only pairs across are looked at.
        """
        whole = mask | other
        for i in bits(mask):
            bad = self.forbidden[i] & (other or mask)
            if bad:
                rule = self._decider(i, bits(bad)[0])
                return Refused(rule, self.rules.name(rule))
        return self._beyond(whole) if whole & (whole - 1) else None

    def _beyond(self, mask: int) -> Refused | None:
        ids = bits(mask)
        for name, bound in self._bounds.items():
            limits = [bound[i] for i in ids if i in bound]
            if not limits:
                continue
            most, rule = min(limits)
            has = self._size(name, ids)
            if has > most:
                return Refused(rule, f"{self.rules.name(rule)}, and these have {has}")
        return None

    def _size(self, bound: str, ids: Sequence[int]) -> int:
        if bound == "nodes":
            return len(ids)
        nodes = [self.problem.nodes[i] for i in ids]
        inside = {node.name for node in nodes}
        written = {access.buffer: access.bytes for node in nodes for access in node.writes}
        read: dict[str, int] = {}
        for node in nodes:
            for access in node.reads:
                if access.buffer not in written:
                    read[access.buffer] = max(read.get(access.buffer, 0), access.bytes)
        if bound == "inputs":
            return len(read)
        buffers = self.problem.buffer_by_name
        return sum(read.values()) + sum(
            size
            for name, size in written.items()
            if name not in buffers
            or buffers[name].is_output
            or not inside.issuperset(buffers[name].users)
        )

    def violations(self, plan: Plan) -> Iterator[Refused]:
        """What ``plan`` does that a rule forbids."""
        for group in plan.groups:
            found = self.refused(mask_of(self.problem.index[name] for name in group))
            if found is not None:
                yield Refused(found.rule, f"{'+'.join(group)}: {found.detail}")


class RuledLegality:
    """The compiler's rules, and before them the user's."""

    def __init__(self, legality: Legality, rulings: Rulings) -> None:
        self._legality = legality
        self._rulings = rulings

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        """Whether rules and compiler allow the two to be fused."""
        refused = self._rulings.refused(first.mask, second.mask)
        if refused is not None:
            return Verdict(False, RULE, refused.detail)
        return self._legality.verdict(first, second)


def _matching(selector: Selector, node: Node) -> frozenset[str]:
    if selector.where is not None and not selector.where(node):
        return frozenset()
    # Operations without a name of their own are told apart by their place.
    return frozenset(
        operation.name or f"{node.name}.{at}"
        for at, operation in enumerate(operations(node))
        if selector.matches(operation)
    )


def _near(problem: Problem) -> list[int]:
    users: dict[str, int] = {}
    for i, node in enumerate(problem.nodes):
        for access in (*node.reads, *node.writes):
            users[access.buffer] = users.get(access.buffer, 0) | 1 << i
    near = []
    for i, node in enumerate(problem.nodes):
        found = 0
        for access in (*node.reads, *node.writes):
            found |= users[access.buffer]
        near.append(found & ~(1 << i))
    for dep in problem.dependencies:
        if not dep.weak and dep.consumer != dep.producer:
            consumer, producer = problem.index[dep.consumer], problem.index[dep.producer]
            near[consumer] |= 1 << producer
            near[producer] |= 1 << consumer
    return near
