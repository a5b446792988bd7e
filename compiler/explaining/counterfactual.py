"""One fusion and its opposite: the plan with that fusion added, or with it removed.

Asks Inductor whether the changed plan is legal, while the graph is live; builds and times nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from fusewise.compiler.explaining.report import ExplainedFusion, Side, Why
from fusewise.compiler.inductor.refusals import Refusal
from fusewise.costmodel.attribution import attribute
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, build_plan, is_acyclic, split_steps
from fusewise.schedule.problem import Access, Problem
from fusewise.search.legality import Legality, Verdict
from fusewise.search.tree import Join, Tree, subtrees, trees_of

#: Parts of a group that are each tried with either side of a fusion that is removed.
_APART = 5


@dataclass(frozen=True)
class Question:
    """Which fusion is asked about: two nodes or groups by name."""

    a: str
    b: str


@dataclass(frozen=True)
class Change:
    """A plan with one fusion added or removed."""

    #: ``added`` or ``removed``.
    kind: str
    #: None where nothing of the kind can be built.
    plan: Plan | None
    verdict: Verdict
    before: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...]


def resolve(
    question: Question, problem: Problem, fusions: Sequence[ExplainedFusion], plan: Plan
) -> tuple[tuple[str, ...], tuple[str, ...], ExplainedFusion | None]:
    """The nodes of both sides, and the possible fusion that is meant.

    A side is a node, a buffer that a node writes, or a group by Inductor's name or with ``+``.
    Where nodes are named, the last pair of groups that hold them is meant.

    Raises:
        PlanError: there is no such node or group, or no such fusion.
    """
    a = _nodes_of(question.a, problem, fusions)
    b = _nodes_of(question.b, problem, fusions)
    subject = f"fusion {question.a},{question.b}"
    if set(a) & set(b):
        raise PlanError(
            f"{', '.join(sorted(set(a) & set(b)))} would be fused with itself",
            subject=subject,
            remedy="name two different nodes or groups",
        )
    exact = [f for f in fusions if {f.a_nodes, f.b_nodes} == {a, b}]
    around = [
        f
        for f in fusions
        if (set(a) <= set(f.a_nodes) and set(b) <= set(f.b_nodes))
        or (set(a) <= set(f.b_nodes) and set(b) <= set(f.a_nodes))
    ]
    found = _telling(exact) or _telling(around)
    groups = plan.group_of()
    if found is None and len({groups[name] for name in (*a, *b)}) > 1:
        raise PlanError(
            f"Inductor never looks at this pair: {_apart(problem, a, b)}",
            subject=subject,
            remedy="`fusewise explain` lists all possible fusions",
        )
    return a, b, found


def _telling(found: Sequence[ExplainedFusion]) -> ExplainedFusion | None:
    """Of several questions about one pair the one that was taken, or could have been, or the last.

    Epilogues are asked for in both orders, and only one is legal.
    """
    for wanted in ([f for f in found if f.taken], [f for f in found if f.legal], found):
        if wanted:
            return wanted[-1]
    return None


def _nodes_of(name: str, problem: Problem, fusions: Sequence[ExplainedFusion]) -> tuple[str, ...]:
    groups = {f.a: f.a_nodes for f in fusions} | {f.b: f.b_nodes for f in fusions}
    writers = {w.buffer: node.name for node in problem.nodes for w in node.writes}
    if name in problem.node_by_name:
        return (name,)
    if name in groups:
        return groups[name]
    if name in writers:
        return (writers[name],)
    parts = name.split("+")
    if len(parts) > 1 and all(part in problem.node_by_name for part in parts):
        return tuple(parts)
    last = problem.nodes[-1].name
    raise PlanError(
        f"the {problem.kind} graph has no node or group {name!r}",
        subject=f"fusion with {name}",
        remedy=f"its nodes are {problem.nodes[0].name} to {last}",
    )


def _apart(problem: Problem, a: Sequence[str], b: Sequence[str]) -> str:
    used = [{access.buffer for n in side for access in _accesses(problem, n)} for side in (a, b)]
    common = sorted(used[0] & used[1])
    library = [n for n in (*a, *b) if not problem.node_by_name[n].fusible]
    if library:
        return f"{library[0]} is of kind {problem.node_by_name[library[0]].kind}"
    if not common:
        return "they use no buffer in common"
    return f"too many others use {', '.join(common)}"


def _accesses(problem: Problem, name: str) -> tuple[Access, ...]:
    node = problem.node_by_name[name]
    return (*node.reads, *node.writes)


def change_plan(
    problem: Problem,
    plan: Plan,
    legality: Legality,
    cost: PlanCost,
    a: Sequence[str],
    b: Sequence[str],
) -> Change:
    """The plan with the sides fused where it has them apart, and apart where it has them fused."""
    trees = trees_of(problem, plan)
    owner = plan.group_of()
    concerned = list(dict.fromkeys(owner[name] for name in (*a, *b)))
    before = tuple(plan.groups[i] for i in concerned)
    if len(concerned) > 1:
        return _added(problem, plan, legality, [trees[i] for i in concerned], before)
    return _removed(problem, plan, legality, cost, trees[concerned[0]], set(a), set(b), before)


def _added(
    problem: Problem,
    plan: Plan,
    legality: Legality,
    trees: Sequence[Tree],
    before: tuple[tuple[str, ...], ...],
) -> Change:
    whole, *others = trees
    every = tuple(name for group in before for name in group)
    steps = []
    for other in others:
        verdict = legality.verdict(whole, other)
        first, second = whole, other
        if not verdict.legal:
            turned = legality.verdict(other, whole)
            # The order in which data flows has the ground that means something.
            if turned.legal or verdict.reason == Refusal.ORDER:
                verdict, first, second = turned, other, whole
        if not verdict.legal:
            return Change("added", None, verdict, before, (every,))
        whole = Join(first, second, reorder=verdict.reorder)
        steps.append(whole.step)
    changed = build_plan([node.name for node in problem.nodes], [*plan.steps, *steps])
    if not is_acyclic(problem, changed.groups):
        why = Verdict(False, Refusal.CYCLE, "another group would have to run before and after it")
        return Change("added", None, why, before, (whole.nodes,))
    return Change("added", changed, Verdict(True), before, (whole.nodes,))


def _removed(
    problem: Problem,
    plan: Plan,
    legality: Legality,
    cost: PlanCost,
    tree: Tree,
    a: set[str],
    b: set[str],
    before: tuple[tuple[str, ...], ...],
) -> Change:
    """The sides parted where they were joined, or else somehow; the faster of legal ways."""
    names = [node.name for node in problem.nodes]
    refused: Change | None = None
    for parts in _ways(tree, a, b):
        legal: list[Change] = []
        for part in parts:
            rest = frozenset(tree.nodes) - part
            changed = build_plan(names, split_steps(plan.steps, [part, rest]))
            after = tuple(g for g in changed.groups if set(g) & set(tree.nodes))
            verdict = _judged(problem, changed, legality, set(tree.nodes))
            if verdict.legal:
                legal.append(Change("removed", changed, verdict, before, after))
            else:
                refused = refused or Change("removed", None, verdict, before, after)
        if legal:
            return min(legal, key=lambda c: cost.plan(c.plan).us if c.plan else 0.0)
    assert refused is not None, "a group of several nodes can always be parted somehow"
    return refused


def _ways(tree: Tree, a: set[str], b: set[str]) -> Iterator[list[frozenset[str]]]:
    """Parts of the group that hold one side and nothing of the other, the best ways first.

    First where the two were joined, each part that came later staying with either; then one side
    by itself.
    """
    joins = [t for t in subtrees(tree) if isinstance(t, Join) and a | b <= t.members]
    for parts in (_where_joined(joins), [frozenset(a), frozenset(b)]):
        yield [p for p in parts if (a <= p and not b & p) or (b <= p and not a & p)]


def _where_joined(joins: Sequence[Join]) -> list[frozenset[str]]:
    """Either side of the first of ``joins``, with some of what the others added one by one."""
    if not joins:
        return []
    later = [outer.members - inner.members for inner, outer in pairwise(joins)]
    # What came last of very many stays together.
    late = [*later[:_APART], *([frozenset().union(*later[_APART:])] if later[_APART:] else [])]
    return [
        joins[0].first.members.union(
            *(part for part, kept in zip(late, stays, strict=True) if kept)
        )
        for stays in product((False, True), repeat=len(late))
    ]


def _judged(problem: Problem, plan: Plan, legality: Legality, nodes: set[str]) -> Verdict:
    """Whether all groups among ``nodes`` can be put together, and the whole runs in some order."""
    for tree in trees_of(problem, plan):
        if not nodes & tree.members:
            continue
        for join in subtrees(tree):
            if isinstance(join, Join):
                verdict = legality.verdict(join.first, join.second)
                if not verdict.legal:
                    return verdict
    if not is_acyclic(problem, plan.groups):
        return Verdict(False, Refusal.CYCLE, "the rest would have to run before and after it")
    return Verdict(True)


def explain_change(
    a: tuple[str, ...],
    b: tuple[str, ...],
    question: Question,
    fusion: ExplainedFusion | None,
    change: Change,
    plan: Plan,
    origin: str,
    cost: PlanCost,
) -> Why:
    """The change with what drives the predictions before and after."""
    before, after = _sides(change.before, cost), _sides(change.after, cost)
    now = cost.plan(plan).us
    around = sum(s.around_us for s in before) - sum(s.around_us for s in after)
    gain = around + sum(s.predicted_us for s in before) - sum(s.predicted_us for s in after)
    return Why(
        a=question.a,
        b=question.b,
        a_nodes=a,
        b_nodes=b,
        change=change.kind,
        plan=origin,
        legal=change.plan is not None,
        reason=change.verdict.reason,
        detail=change.verdict.detail,
        fusion=fusion,
        before=before,
        after=after,
        predicted_us=now,
        predicted_changed_us=now - gain,
        predicted_gain_us=gain,
        predicted_gain_low_us=around
        + sum(s.predicted_low_us for s in before)
        - sum(s.predicted_high_us for s in after),
        predicted_gain_high_us=around
        + sum(s.predicted_high_us for s in before)
        - sum(s.predicted_low_us for s in after),
    )


def _sides(groups: Sequence[tuple[str, ...]], cost: PlanCost) -> tuple[Side, ...]:
    features = cost.featurizer.batch(groups)
    costs = cost.groups(groups)
    return tuple(
        Side(
            nodes=one.names,
            predicted_us=alone.us,
            predicted_low_us=alone.low_us,
            predicted_high_us=alone.high_us,
            predicted_by=one.source,
            around_us=one.around_us,
            attribution=attribute(cost.model, row[np.newaxis])[0],
        )
        for one, alone, row in zip(costs, (one.alone for one in costs), features, strict=True)
    )
