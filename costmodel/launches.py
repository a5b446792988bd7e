"""Which kernels do well in one launch with others, and where in the graph each lies.

The compiler writes kernels of one launch with one set of block sizes and in one direction: a kernel
that goes along memory in two directions, quick where it is tiled by itself, becomes many times
slower there. On an H200, 128 graphs of small kernels took between 0.7 and 9 times as long with
common launches; of the 55 among them without such kernels, one took longer by more than one percent
(2.7). Nothing here chooses or measures.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter
from typing import Final

from fusewise.schedule.plan import Plan, group_needs
from fusewise.schedule.problem import Access, Node, Problem

#: Kinds of nodes whose kernels can share a launch.
LOOPS: Final = frozenset({"pointwise", "reduction"})
#: A kernel is small if it takes no more than so many launches' time: then the launch is a part of
#: it that counts, and it hardly fills the device.
SMALL: Final = 6.0
#: Kernels of one launch. Beyond it the compiler's own sets do not go either.
MOST_IN_LAUNCH: Final = 8
#: Elements between neighbours from which on reads are those of another direction.
_FAR: Final = 16
#: What the compiler calls reductions whose neighbouring sums lie next to each other in memory.
_COLUMNS: Final = frozenset({"outer", "outer_tiny"})


def is_loop(problem: Problem, names: Collection[str]) -> bool:
    """Whether a group becomes a kernel that is generated, and could share its launch."""
    kinds = {problem.node_by_name[name].kind for name in names} - {"nop"}
    return bool(kinds) and kinds <= LOOPS


def way(problem: Problem, names: Collection[str]) -> str | None:
    """In which way a group goes along memory; None where that is in two.

    "" where all that it reads and writes lies along its loops, or is looked up; for sums of columns
    the compiler's hint for them, since they are cut into blocks of another shape.
    """
    hints = {n.hint for n in map(problem.node_by_name.__getitem__, names) if _turned(n)}
    if not hints:
        return ""
    return hints.pop() if len(hints) == 1 and hints <= _COLUMNS else None


def _turned(node: Node) -> bool:
    if sum(size != 1 for part in node.ranges for size in part) < 2:  # noqa: PLR2004 - directions
        return False
    # A scalar, which has no neighbours, has a stride of zero.
    return any(_strided(access) and access.stride != 0 for access in node.writes) or any(
        _strided(access) and not 0 <= access.stride <= _FAR for access in node.reads
    )


def _strided(access: Access) -> bool:
    return access.kind == "strided"


def unmixed(problem: Problem, plan: Plan) -> list[bool]:
    """For each group, whether it is none of a reduction along both directions, and reads none.

    Those the compiler writes as a kernel of their own kind, and keeps it and its readers apart.
    """
    mixed = [_mixes(problem, names) for names in plan.groups]
    at = plan.group_of()
    free = [not one for one in mixed]
    for dep in problem.dependencies:
        if mixed[at[dep.producer]]:
            free[at[dep.consumer]] = False
    return free


def _mixes(problem: Problem, names: Collection[str]) -> bool:
    nodes = map(problem.node_by_name.__getitem__, names)
    return len({(n.numel, n.rnumel) for n in nodes if n.kind == "reduction"}) > 1


def depths(problem: Problem, plan: Plan) -> list[int]:
    """For each group of a plan, the longest way to it from where nothing is needed.

    Groups of one depth need nothing of each other. The plan has to be one that can be run.
    """
    return _longest(group_needs(problem, plan))


def heights(problem: Problem, plan: Plan) -> list[int]:
    """For each group of a plan, the longest way from it to where nothing is computed of it.

    Groups of one height need nothing of each other, either: gradients of parameters are computed at
    all depths of a backward graph, and mostly at heights of one or two.
    """
    needs = group_needs(problem, plan)
    users: list[set[int]] = [set() for _ in needs]
    for at, needed in enumerate(needs):
        for other in needed:
            users[other].add(at)
    return _longest(users)


def _longest(ways: Sequence[Collection[int]]) -> list[int]:
    """For each place, the steps of the longest way along ``ways``, which lead to no place again."""
    steps = [0] * len(ways)
    for at in TopologicalSorter(dict(enumerate(ways))).static_order():
        steps[at] = max((steps[other] + 1 for other in ways[at]), default=0)
    return steps


def launches_saved(
    problem: Problem, plan: Plan, us: Sequence[float], launch_us: float
) -> int | None:
    """Launches fewer where the compiler puts all together that it can, groups taking ``us`` each.

    None where that puts in what had better be left out, so that it tells nothing of better sets.
    """
    free = unmixed(problem, plan)
    sets: dict[int, int] = {}
    fits: dict[int, bool] = {}
    for at, (names, depth) in enumerate(zip(plan.groups, depths(problem, plan), strict=True)):
        if is_loop(problem, names):
            one_way = free[at] and way(problem, names) == ""
            sets[depth] = sets.get(depth, 0) + 1
            fits[depth] = fits.get(depth, True) and one_way and us[at] <= SMALL * launch_us
    shared = {depth: n for depth, n in sets.items() if n > 1}
    if not all(fits[depth] for depth in shared):
        return None
    return sum(n - -(-n // MOST_IN_LAUNCH) for n in shared.values())
