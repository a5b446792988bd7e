"""Plans that keep a user's rules: taking apart what is forbidden, joining what is demanded.

The plan that a search starts from is the compiler's own, changed in as few places as the rules
need. What is demanded is joined first, so that no other fusion can stand in its way; the groups
that come of it are never split by the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusewise.schedule.plan import Plan, is_acyclic
from fusewise.schedule.problem import Problem, bits
from fusewise.search.assembly import Stepwise
from fusewise.search.ledger import CYCLE
from fusewise.search.legality import Legality, Verdict
from fusewise.search.region import arrange, cycles, is_fixed
from fusewise.search.rules import Demand, RuledLegality, Rulings
from fusewise.search.tree import Join, Leaf, Tree, subtrees, trees_of


@dataclass(frozen=True, slots=True)
class Unmet:
    """A demand that cannot be met, with the ground."""

    demand: Demand
    verdict: Verdict


@dataclass(frozen=True)
class Repaired:
    """A plan that keeps the rules."""

    #: The compiler's own where that keeps them already.
    plan: Plan
    #: Groups of two nodes or more that have to stay together.
    bound: tuple[Tree, ...]
    unmet: tuple[Unmet, ...]


def repaired(problem: Problem, default: Plan, legality: Legality, rulings: Rulings) -> Repaired:
    """``default`` as the rules want it.

    Args:
        problem: the graph.
        default: the compiler's own plan.
        legality: the compiler's verdicts; the rules are asked before them.
        rulings: the rules on the graph.
    """
    return _Repair(problem, default, RuledLegality(legality, rulings), rulings).run()


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a search has to keep."""

    rulings: Rulings
    #: Groups that it may not split.
    bound: tuple[Tree, ...]


class _Repair:
    def __init__(
        self, problem: Problem, default: Plan, legality: RuledLegality, rulings: Rulings
    ) -> None:
        self._problem = problem
        self._default = default
        self._legality = legality
        self._rulings = rulings
        #: Nodes whose groups do not descend from the default.
        self._foreign: set[str] = set()

    def run(self) -> Repaired:
        problem = self._problem
        before = trees_of(problem, self._default)
        trees = self._without_forbidden(before)
        cores, unmet = self._cores(trees)
        for core in cores:
            trees = self._together(trees, core)
        trees = self._untangled(trees, cores)
        closed = Closing(problem, self._legality, self._rulings).closed(trees)
        bound = tuple(core for core in cores if any(core.mask & ~tree.mask == 0 for tree in closed))
        if set(closed) == set(before):
            return Repaired(self._default, bound, unmet)
        plan = Stepwise(problem, self._default).plan(closed, frozenset(self._foreign))
        return Repaired(plan, bound, unmet)

    def _without_forbidden(self, trees: Sequence[Tree]) -> list[Tree]:
        kept = [tree for tree in trees if self._rulings.permits(tree.mask)]
        for tree in trees:
            if not self._rulings.permits(tree.mask):
                pieces = self._pieces(tree, 0)
                kept += self._fitting(pieces, kept)
        return self._untangled(kept, [])

    def _pieces(self, tree: Tree, without: int) -> list[Tree]:
        """What is left of ``tree`` without some nodes, in as few groups as may be."""
        left: dict[Tree, list[Tree]] = {}
        for sub in subtrees(tree):
            if not sub.mask & without and self._rulings.permits(sub.mask):
                left[sub] = [sub]
            elif isinstance(sub, Join):
                left[sub] = self._joined(left[sub.first], left[sub.second])
            else:
                left[sub] = []
        return left[tree]

    def _joined(self, firsts: Sequence[Tree], seconds: Sequence[Tree]) -> list[Tree]:
        """The groups of both sides, each of the second taken into the first that has it."""
        groups = list(firsts)
        for second in seconds:
            for at, first in enumerate(groups):
                verdict = self._legality.verdict(first, second)
                if verdict.legal:
                    groups[at] = Join(first, second, reorder=verdict.reorder)
                    break
            else:
                groups.append(second)
        return groups

    def _fitting(self, pieces: Sequence[Tree], others: Sequence[Tree]) -> list[Tree]:
        """``pieces``, those split further that close a cycle with each other."""
        groups = [tree.nodes for tree in others]
        if is_acyclic(self._problem, [*groups, *(piece.nodes for piece in pieces)]):
            return list(pieces)
        fitting: list[Tree] = []
        for piece in pieces:
            if is_acyclic(self._problem, [*groups, piece.nodes]):
                fitting.append(piece)
                groups.append(piece.nodes)
            else:
                fitting += _leaves(piece)
        return fitting

    def _cores(self, trees: Sequence[Tree]) -> tuple[list[Tree], tuple[Unmet, ...]]:
        """Groups of what is demanded, joined before all else, and the demands that are not met."""
        problem = self._problem
        fixed = [tree.nodes for tree in trees if is_fixed(problem, tree)]
        core: dict[int, Tree] = {}
        grounds: dict[Demand, Verdict] = {}

        def of(at: int) -> Tree:
            return core.get(at) or Leaf(problem.nodes[at].name, at)

        waiting = list(self._rulings.demands)
        # What is refused now may be legal once something else is joined.
        progress = True
        while waiting and progress:
            progress = False
            for demand in list(waiting):
                first, second = of(demand.first), of(demand.second)
                if first is not second and not first.mask & second.mask:
                    others = {id(t): t for t in core.values() if t is not first and t is not second}
                    groups = [*fixed, *(tree.nodes for tree in others.values())]
                    made = _join(problem, self._legality, first, second, groups)
                    if isinstance(made, Verdict):
                        grounds[demand] = made
                        continue
                    core |= dict.fromkeys(bits(made.mask), made)
                waiting.remove(demand)
                progress = True
        found = list({id(tree): tree for tree in core.values()}.values())
        return found, tuple(Unmet(demand, grounds[demand]) for demand in waiting)

    def _together(self, trees: Sequence[Tree], core: Tree) -> list[Tree]:
        """``trees`` with the nodes of ``core`` in one group, and what they were fused with."""
        touched = [tree for tree in trees if tree.mask & core.mask]
        kept = [tree for tree in trees if not tree.mask & core.mask]
        if len(touched) == 1:
            return list(trees)
        groups = [tree.nodes for tree in kept]
        whole: Tree | Verdict = touched[0]
        for tree in touched[1:]:
            if isinstance(whole, Tree):
                whole = _join(self._problem, self._legality, whole, tree, groups)
        if isinstance(whole, Tree):
            return [*kept, whole]
        for tree in touched:
            if not tree.mask & ~core.mask:
                continue
            for piece in self._fitting(self._pieces(tree, core.mask), kept):
                groups = [other.nodes for other in kept]
                grown = _join(self._problem, self._legality, core, piece, groups)
                if isinstance(grown, Tree):
                    core = grown
                else:
                    kept.append(piece)
        self._foreign.update(core.nodes)
        return [*kept, core]

    def _untangled(self, trees: Sequence[Tree], bound: Sequence[Tree]) -> list[Tree]:
        """``trees`` without cycles: what closes one and is neither bound nor fixed is taken apart.

        Of what is bound no more than its own nodes are kept together.
        """
        found = list(trees)
        masks = {core.mask for core in bound}
        while arrange(self._problem, found) is None:
            for cycle in cycles(self._problem, found):
                loose = [
                    tree
                    for tree in cycle
                    if len(tree) > 1
                    and not is_fixed(self._problem, tree)
                    and tree.mask not in masks
                ] or [tree for tree in cycle if len(tree) > 1]
                for tree in loose:
                    found.remove(tree)
                    inside = [core for core in bound if core.mask & tree.mask and tree not in bound]
                    found += inside
                    taken = sum(core.mask for core in inside)
                    found += [leaf for leaf in _leaves(tree) if not leaf.mask & taken]
                    self._foreign.update(tree.nodes)
        return found


class Closing:
    """Meets the demands that are left in a plan: joins groups that are apart and need not be."""

    def __init__(self, problem: Problem, legality: Legality, rulings: Rulings) -> None:
        self._problem = problem
        self._legality = legality
        self._demands = rulings.demands

    def closed(self, trees: Sequence[Tree]) -> list[Tree]:
        """``trees`` with all joined that is demanded and legal in this plan."""
        found = list(trees)
        progress = bool(self._demands)
        while progress:
            progress = False
            for demand in self._demands:
                first = next(t for t in found if t.mask >> demand.first & 1)
                second = next(t for t in found if t.mask >> demand.second & 1)
                if first is second:
                    continue
                others = [t for t in found if t is not first and t is not second]
                groups = [tree.nodes for tree in others]
                made = _join(self._problem, self._legality, first, second, groups)
                if isinstance(made, Tree):
                    found = [*others, made]
                    progress = True
        return found


def _join(
    problem: Problem,
    legality: Legality,
    first: Tree,
    second: Tree,
    others: Sequence[Sequence[str]],
) -> Join | Verdict:
    """The two in one group, what is depended on first; or why not."""
    ancestors = problem.ancestors
    if any(ancestors[i] & second.mask for i in bits(first.mask)):
        first, second = second, first
    verdict = legality.verdict(first, second)
    if not verdict.legal:
        # Where neither needs the other, either may come first.
        turned = legality.verdict(second, first)
        if not turned.legal:
            return verdict
        first, second, verdict = second, first, turned
    if not is_acyclic(problem, [*others, (*first.nodes, *second.nodes)]):
        return Verdict(False, CYCLE, "would have to run before and after another group")
    return Join(first, second, reorder=verdict.reorder)


def _leaves(tree: Tree) -> list[Tree]:
    return [sub for sub in subtrees(tree) if isinstance(sub, Leaf)]
