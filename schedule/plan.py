"""The plan: a complete partition of a problem's nodes into groups, and how each is put together.

A plan is the list of groups and the log of steps that builds them. The steps matter beyond the
partition: the order in which two nodes are fused can change the algorithm that is generated, and
an ``align`` step (the compiler lines up the loops of two groups that it does not fuse in the end)
leaves a trace in the code. Every plan, the compiler's own included, is this one type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from fusewise.schedule.errors import PlanError
from fusewise.schedule.problem import Problem

StepKind = Literal["fuse", "align", "prune"]


class Step(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Something done to the groups that hold nodes ``first`` and ``second`` at that moment.

    ``fuse`` makes them one, ``align`` lines up their loops and leaves them apart, and ``prune``
    (where ``first`` is ``second``) drops order-only dependencies that earlier fusions made
    redundant.
    """

    kind: StepKind
    first: str
    second: str
    #: Whether the loops of one side may be reordered for it.
    reorder: bool = False


class Plan(msgspec.Struct, frozen=True, order=True):
    """A complete partition. Build it with :func:`build_plan`, which puts it in canonical form."""

    #: Nodes of each group in fused order; groups in the order of their earliest node.
    groups: tuple[tuple[str, ...], ...]
    steps: tuple[Step, ...]

    @property
    def id(self) -> str:
        """Stable hash of groups and steps."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def group_of(self) -> dict[str, int]:
        """Index of the group of each node."""
        return {name: i for i, group in enumerate(self.groups) for name in group}


def build_plan(names: Sequence[str], steps: Iterable[Step]) -> Plan:
    """Replay ``steps`` over the nodes ``names`` (in problem order) into a canonical plan.

    Steps of different groups commute unless an ``align`` stands between them, and so do the steps
    that build the two sides of a fusion. So between two aligns the steps stand group by group,
    each group's in post-order, and each side is named by its first node: plans that build the same
    groups the same way are equal, whoever found them.

    Raises:
        PlanError: a step names an unknown node or fuses a group with itself.
    """
    position = {name: i for i, name in enumerate(names)}
    group: dict[str, list[str]] = {name: [name] for name in names}
    ordered: list[Step | _Fusion] = []
    for step in steps:
        for name in (step.first, step.second):
            if name not in position:
                raise PlanError(
                    f"step {step.kind} {step.first} {step.second} names {name!r}, "
                    f"which is none of the graph's {len(names)} nodes",
                    subject="plan",
                    remedy="use a plan that was made for this graph",
                )
        first, second = group[step.first], group[step.second]
        named = Step(step.kind, first[0], second[0], step.reorder)
        if step.kind != "fuse":
            ordered.append(named)
            continue
        if first is second:
            raise PlanError(
                f"step fuse {step.first} {step.second} joins two nodes that are already together",
                subject="plan",
                remedy="leave the step out",
            )
        ordered.append(_Fusion(named, first[0], second[0]))
        first.extend(second)
        for name in second:
            group[name] = first
    groups = sorted(
        {id(members): members for members in group.values()}.values(),
        key=lambda members: min(position[name] for name in members),
    )
    rank = {name: (i, at) for i, members in enumerate(groups) for at, name in enumerate(members)}
    return Plan(tuple(tuple(members) for members in groups), tuple(_canonical(ordered, rank)))


class _Fusion(NamedTuple):
    """A fuse step with the first nodes of its two sides."""

    step: Step
    first: str
    second: str


def _canonical(
    steps: Iterable[Step | _Fusion], rank: Mapping[str, tuple[int, int]]
) -> Iterator[Step]:
    """Order the fusions between two aligns; ``rank`` places a node by group and place therein."""
    #: Fusions since the last align whose result no later one has taken up, by their first node,
    #: each with the fusions that build its sides.
    open_: dict[str, list[Step]] = {}

    def flush() -> Iterator[Step]:
        for first in sorted(open_, key=lambda name: rank[name]):
            yield from open_[first]
        open_.clear()

    for step in steps:
        if isinstance(step, _Fusion):
            sides = (*open_.pop(step.first, ()), *open_.pop(step.second, ()))
            open_[step.first] = [*sides, step.step]
        else:
            yield from flush()
            yield step
    yield from flush()


def unfused(names: Sequence[str]) -> Plan:
    """The plan in which every node is alone."""
    return Plan(tuple((name,) for name in names), ())


def split_steps(steps: Iterable[Step], parts: Sequence[frozenset[str]]) -> tuple[Step, ...]:
    """Steps that build the same groups, but with no group that reaches across two of ``parts``.

    ``parts`` are disjoint sets of nodes; what is in none of them is left as it was. Within a part
    the nodes are joined in the order in which the steps joined them before.
    """
    part_of = {name: i for i, part in enumerate(parts) for name in part}
    members: dict[str, list[str]] = {}

    def sides(name: str) -> list[str]:
        return members.setdefault(name, [name])

    result: list[Step] = []
    for step in steps:
        first, second = sides(step.first), sides(step.second)
        if step.kind != "fuse":
            result.append(step)
            continue
        for i in sorted({part_of.get(n, -1) for n in first} & {part_of.get(n, -1) for n in second}):
            a = next(n for n in first if part_of.get(n, -1) == i)
            b = next(n for n in second if part_of.get(n, -1) == i)
            result.append(Step("fuse", a, b, step.reorder))
        first.extend(second)
        for name in second:
            members[name] = first
    return tuple(result)


def is_acyclic(problem: Problem, groups: Iterable[Sequence[str]]) -> bool:
    """Whether the groups, each run as one unit, can be put in an order that keeps all dependencies.

    ``groups`` may leave nodes out; those stand alone.
    """
    owner = list(range(len(problem.nodes)))
    for group in groups:
        ids = [problem.index[name] for name in group]
        for i in ids:
            owner[i] = ids[0]
    needs: dict[int, set[int]] = {o: set() for o in set(owner)}
    for dep in problem.dependencies:
        c, p = owner[problem.index[dep.consumer]], owner[problem.index[dep.producer]]
        if c != p:
            needs[c].add(p)
    feeds: dict[int, list[int]] = {o: [] for o in needs}
    for c, producers in needs.items():
        for p in producers:
            feeds[p].append(c)
    waiting = {o: len(p) for o, p in needs.items()}
    ready = [o for o, n in waiting.items() if n == 0]
    done = 0
    while ready:
        done += 1
        for c in feeds[ready.pop()]:
            waiting[c] -= 1
            if waiting[c] == 0:
                ready.append(c)
    return done == len(needs)


def group_needs(problem: Problem, plan: Plan) -> list[set[int]]:
    """For each group of a plan, the other groups that have to run before it, by their index."""
    owner = plan.group_of()
    needs: list[set[int]] = [set() for _ in plan.groups]
    for dep in problem.dependencies:
        consumer, producer = owner[dep.consumer], owner[dep.producer]
        if consumer != producer:
            needs[consumer].add(producer)
    return needs


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that is no acyclic partition of all the problem's nodes.

    Raises:
        PlanError: names the node or the group that is wrong.
    """
    seen: set[str] = set()
    for group in plan.groups:
        for name in group:
            if name not in problem.index or name in seen:
                why = "stands in two groups" if name in seen else "is no node of this graph"
                raise PlanError(
                    f"node {name!r} of group {group} {why}",
                    subject="plan",
                    remedy="use a plan that was made for this graph",
                )
            seen.add(name)
    missing = [name for name in problem.index if name not in seen]
    if missing:
        raise PlanError(
            f"{len(missing)} nodes stand in no group, the first is {missing[0]!r}",
            subject="plan",
            remedy="use a plan that was made for this graph",
        )
    if build_plan([node.name for node in problem.nodes], plan.steps).groups != plan.groups:
        raise PlanError(
            "the steps do not build the groups",
            subject="plan",
            remedy="write plans with build_plan, which keeps both in step",
        )
    if not is_acyclic(problem, plan.groups):
        culprit = _cyclic_group(problem, plan)
        raise PlanError(
            f"group {culprit} would have to run both before and after another group",
            subject="plan",
            remedy="split the group",
        )


def _cyclic_group(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """A group of two or more nodes on a cycle of groups; ``plan`` must have one.

    Every cycle goes through such a group, since nodes alone close none.
    """
    needs = group_needs(problem, plan)
    # Groups that cannot be put in order: from one of them, walking to a need that cannot be put
    # in order either comes round in the end.
    stuck = _unordered(needs)
    at = min(stuck)
    walked: list[int] = []
    while at not in walked:
        walked.append(at)
        at = min(needs[at] & stuck)
    cycle = walked[walked.index(at) :]
    return plan.groups[next((i for i in cycle if len(plan.groups[i]) > 1), at)]


def _unordered(needs: Sequence[set[int]]) -> set[int]:
    """What is left when all that has no unmet need is taken away again and again."""
    left = [set(n) for n in needs]
    feeds: list[list[int]] = [[] for _ in needs]
    for consumer, producers in enumerate(needs):
        for producer in producers:
            feeds[producer].append(consumer)
    ready = [i for i, n in enumerate(left) if not n]
    stuck = set(range(len(needs)))
    while ready:
        done = ready.pop()
        stuck.discard(done)
        for consumer in feeds[done]:
            left[consumer].discard(done)
            if not left[consumer]:
                ready.append(consumer)
    return stuck
