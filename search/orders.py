"""Other orders of the joins within groups.

The groups of a plan stay; only how each is put together changes, since that can change the
algorithm that is generated (a reduction that takes over its sibling's running maximum, say).
Costs know only the nodes of a group, so these plans cost the same by prediction: measuring has to
tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fusewise.schedule.problem import Problem, bits
from fusewise.search.ledger import Ledger
from fusewise.search.region import is_fixed
from fusewise.search.tree import Join, Leaf, Tree

_REDUCING: Final = frozenset({"reduction", "scan", "sort"})
#: Groups of more nodes are left alone: each new order asks a verdict for each of its joins.
_MAX_NODES: Final = 24

#: Of two trees side by side, what is joined first: the least of this.
Preference = Callable[[Problem, Tree, Tree], tuple[int, ...]]


def reordered(
    problem: Problem, ledger: Ledger, trees: Sequence[Tree], keep: int
) -> Iterator[list[Tree]]:
    """Up to ``keep`` variants of ``trees``, each with one way of ordering in all groups.

    Only groups with two or more reductions are put together anew: in others the order leaves no
    trace in the algorithm.
    """
    eligible = [
        at
        for at, tree in enumerate(trees)
        if len(tree) <= _MAX_NODES
        and not is_fixed(problem, tree)
        and _reductions(problem, tree) > 1
    ]
    seen = {tuple(trees)}
    given = 0
    for prefer in _PREFERENCES:
        if given >= keep:
            return
        variant = list(trees)
        for at in eligible:
            variant[at] = _together(problem, ledger, trees[at], prefer) or trees[at]
        if tuple(variant) not in seen:
            seen.add(tuple(variant))
            given += 1
            yield variant


def _together(problem: Problem, ledger: Ledger, group: Tree, prefer: Preference) -> Tree | None:
    """Join the nodes of ``group`` pair by pair as ``prefer`` says; None where that is refused."""
    ancestors = problem.ancestors
    ids = sorted(bits(group.mask), key=lambda i: (ancestors[i].bit_count(), i))
    above = {i: ancestors[i] & group.mask for i in ids}
    sides: list[Tree] = [Leaf(problem.nodes[i].name, i) for i in ids]

    def over(mask: int) -> int:
        found = 0
        for i in bits(mask):
            found |= above[i]
        return found

    def closed(mask: int) -> bool:
        """Whether no node of the group lies on a way from the mask back to it."""
        between = over(mask) & ~mask
        return not over(between) & mask

    while len(sides) > 1:
        pairs = sorted(
            (prefer(problem, a, b), i, i + 1 + j)
            for i, a in enumerate(sides)
            for j, b in enumerate(sides[i + 1 :])
        )
        for _, i, j in pairs:
            first, second = sides[i], sides[j]
            if over(first.mask) & second.mask:
                first, second = second, first
            if not closed(first.mask | second.mask) or not _touch(problem, first, second):
                continue
            verdict = ledger.verdict(first, second)
            if verdict.legal:
                sides[i] = Join(first, second, reorder=verdict.reorder)
                del sides[j]
                break
        else:
            return None
    return sides[0]


def _touch(problem: Problem, first: Tree, second: Tree) -> bool:
    """Whether the two use a common buffer."""
    return bool(_buffers(problem, first) & _buffers(problem, second))


def _buffers(problem: Problem, tree: Tree) -> set[str]:
    return {
        access.buffer
        for name in tree.nodes
        for node in (problem.node_by_name[name],)
        for access in (*node.reads, *node.writes)
    }


def _reductions(problem: Problem, tree: Tree) -> int:
    return sum(problem.node_by_name[name].kind in _REDUCING for name in tree.nodes)


def _siblings_first(problem: Problem, a: Tree, b: Tree) -> tuple[int, ...]:
    """Reductions with each other before anything else, then in dependency order."""
    both = bool(_reductions(problem, a)) and bool(_reductions(problem, b))
    return (not both, _first(b), _first(a))


def _producers_first(_: Problem, a: Tree, b: Tree) -> tuple[int, ...]:
    """Grow one group from the earliest node on."""
    return (min(_first(a), _first(b)), max(_first(a), _first(b)))


def _consumers_first(_: Problem, a: Tree, b: Tree) -> tuple[int, ...]:
    """Grow one group from the last node back."""
    return (-max(_last(a), _last(b)), -min(_last(a), _last(b)))


def _siblings_last(problem: Problem, a: Tree, b: Tree) -> tuple[int, ...]:
    """Each reduction with its own pointwise work first, reductions with each other last."""
    both = bool(_reductions(problem, a)) and bool(_reductions(problem, b))
    return (both, len(a) + len(b), _first(a), _first(b))


def _first(tree: Tree) -> int:
    return (tree.mask & -tree.mask).bit_length()


def _last(tree: Tree) -> int:
    return tree.mask.bit_length()


_PREFERENCES: Final[tuple[Preference, ...]] = (
    _siblings_first,
    _siblings_last,
    _producers_first,
    _consumers_first,
)
