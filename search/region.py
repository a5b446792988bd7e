"""Regions: which nodes a search may move, which of them touch, and how to cut them into parts.

Reads the problem and the compiler's own plan; never asks for legality or cost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fusewise.schedule.problem import Problem, bits
from fusewise.search.tree import Tree

#: Node kinds whose groups stay as the compiler's own plan has them.
FIXED_KINDS: Final = frozenset({"extern", "nop", "foreach", "template"})
#: A buffer with up to this many users links all of them to each other; one with more links only
#: those next to each other, since the pairs grow with the square.
_ALL_PAIRS = 6


def is_fixed(problem: Problem, tree: Tree) -> bool:
    """Whether a group of the compiler's own plan has to stay as it is."""
    return any(problem.node_by_name[name].kind in FIXED_KINDS for name in tree.nodes)


def runs(problem: Problem, tree: Tree) -> bool:
    """Whether a group runs anything at all."""
    return any(problem.node_by_name[name].kind != "nop" for name in tree.nodes)


@dataclass(frozen=True, slots=True)
class Terrain:
    """What parts need to know of the whole graph, each a bitset for each node."""

    problem: Problem
    #: See :func:`neighbours`.
    near: Sequence[int]
    #: See :func:`descendants`.
    below: Sequence[int]
    #: Groups that nothing may split.
    bound: Sequence[Tree] = ()
    #: Whether the nodes of a bitset may be one group, whatever the compiler says of it.
    permits: Callable[[int], bool] = lambda _: True


def neighbours(problem: Problem, movable: int) -> list[int]:
    """For each node the bitset of the nodes it may be worth fusing with.

    Those are the pairs that the compiler names, those that depend on each other through a buffer,
    and those that read or write the same buffer. ``movable`` is the bitset of nodes to look at.
    """
    near = [0] * len(problem.nodes)

    def link(i: int, j: int) -> None:
        if i != j and movable >> i & 1 and movable >> j & 1:
            if problem.nodes[i].device != problem.nodes[j].device:
                return
            near[i] |= 1 << j
            near[j] |= 1 << i

    index = problem.index
    for pair in problem.possible_fusions:
        link(index[pair.first], index[pair.second])
    for dep in problem.dependencies:
        if not dep.weak:
            link(index[dep.consumer], index[dep.producer])
    users: dict[str, list[int]] = {}
    for i, node in enumerate(problem.nodes):
        if movable >> i & 1:
            for name in dict.fromkeys(a.buffer for a in (*node.reads, *node.writes)):
                users.setdefault(name, []).append(i)
    for ids in users.values():
        reach = len(ids) if len(ids) <= _ALL_PAIRS else 2
        for at, i in enumerate(ids):
            for j in ids[at + 1 : at + reach]:
                link(i, j)
    return near


def descendants(problem: Problem) -> list[int]:
    """For each node the bitset of the nodes that must run after it, however far."""
    direct = [0] * len(problem.nodes)
    for dep in problem.dependencies:
        direct[problem.index[dep.producer]] |= 1 << problem.index[dep.consumer]
    found = list(direct)
    # A node has more ancestors than any of its ancestors has, so this goes from the last back.
    ancestors = problem.ancestors
    order = sorted(range(len(found)), key=lambda i: ancestors[i].bit_count(), reverse=True)
    for i in order:
        for j in bits(direct[i]):
            found[i] |= found[j]
    return found


def arrange(problem: Problem, trees: Sequence[Tree]) -> list[Tree] | None:
    """The groups in an order that keeps all dependencies, or None where there is none.

    Of the groups that are ready the one with the earliest node comes first, so that what the
    compiler had close together stays close. ``trees`` have to cover all nodes.
    """
    feeds, waiting = _order_graph(problem, trees)
    rank = [tree.mask & -tree.mask for tree in trees]
    ready = [(rank[at], at) for at, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[Tree] = []
    while ready:
        _, at = heapq.heappop(ready)
        order.append(trees[at])
        for user in feeds[at]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (rank[user], user))
    return order if len(order) == len(trees) else None


def cycles(problem: Problem, trees: Sequence[Tree]) -> list[list[Tree]]:
    """Disjoint cycles of groups, one at least wherever :func:`arrange` finds no order."""
    feeds, waiting = _order_graph(problem, trees)
    needs: list[list[int]] = [[] for _ in trees]
    for producer, users in enumerate(feeds):
        for user in sorted(users):
            needs[user].append(producer)
    ready = [at for at, count in enumerate(waiting) if count == 0]
    while ready:
        for user in feeds[ready.pop()]:
            waiting[user] -= 1
            if waiting[user] == 0:
                ready.append(user)
    # What still waits needs something else that still waits, so each walk comes round: to a place
    # of its own, which closes a cycle, or to one of an earlier walk.
    found: list[list[Tree]] = []
    walk_of: dict[int, tuple[int, int]] = {}
    for start, count in enumerate(waiting):
        walked: list[int] = []
        at = start
        while count and at not in walk_of:
            walk_of[at] = (start, len(walked))
            walked.append(at)
            at = next(i for i in needs[at] if waiting[i])
        if walked and walk_of[at][0] == start:
            found.append([trees[i] for i in walked[walk_of[at][1] :]])
    return found


def _order_graph(problem: Problem, trees: Sequence[Tree]) -> tuple[list[set[int]], list[int]]:
    """For each group those that need it, and how many it needs."""
    owner = [0] * len(problem.nodes)
    for at, tree in enumerate(trees):
        for name in tree.nodes:
            owner[problem.index[name]] = at
    feeds: list[set[int]] = [set() for _ in trees]
    waiting = [0] * len(trees)
    for dep in problem.dependencies:
        consumer = owner[problem.index[dep.consumer]]
        producer = owner[problem.index[dep.producer]]
        if consumer != producer and consumer not in feeds[producer]:
            feeds[producer].add(consumer)
            waiting[consumer] += 1
    return feeds, waiting


def regions(
    trees: Sequence[Tree], near: Sequence[int], tied: Iterable[tuple[int, int]]
) -> list[list[Tree]]:
    """The groups ``trees``, apart where no node of one touches a node of another.

    Order is kept within and between regions. ``tied`` are further pairs of nodes, as bitsets of
    one bit each, that have to stay in one region.
    """
    home = {bit: at for at, tree in enumerate(trees) for bit in _single_bits(tree.mask)}
    parent = list(range(len(trees)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    def unite(a: int, b: int) -> None:
        a, b = root(a), root(b)
        parent[max(a, b)] = min(a, b)

    for bit, at in home.items():
        for other in _single_bits(near[bit.bit_length() - 1]):
            unite(at, home[other])
    for a, b in tied:
        if a in home and b in home:
            unite(home[a], home[b])
    found: dict[int, list[Tree]] = {}
    for at, tree in enumerate(trees):
        found.setdefault(root(at), []).append(tree)
    return list(found.values())


def cut(trees: Sequence[Tree], size: int, *, shifted: bool = False) -> list[list[Tree]]:
    """``trees``, in the order given, cut into runs of about ``size`` nodes.

    No group is cut. ``shifted`` moves the cuts by half a run, so that what one round of search
    could not join across a cut, a second round can.
    """
    total = sum(len(tree) for tree in trees)
    count = max(1, round(total / size))
    if count == 1:
        return [list(trees)]
    step = total / count
    bound = step / 2 if shifted else step
    runs: list[list[Tree]] = [[]]
    done = 0
    for tree in trees:
        if runs[-1] and done >= bound:
            runs.append([])
            bound += step
        runs[-1].append(tree)
        done += len(tree)
    return runs


def _single_bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found
