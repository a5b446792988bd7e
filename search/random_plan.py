"""Random legal plans: for collecting timings of what no heuristic would choose, and for tests."""

from __future__ import annotations

import random

from fusewise.schedule.plan import Plan, build_plan, is_acyclic
from fusewise.schedule.problem import Problem
from fusewise.search.legality import Legality
from fusewise.search.tree import Join, Leaf, Tree


def random_plan(
    problem: Problem, legality: Legality, generator: random.Random, keep: float | None = None
) -> Plan:
    """A legal plan that takes the possible fusions in random order.

    Args:
        problem: the graph, with its possible fusions.
        legality: the compiler's rules.
        generator: source of chance; the same state gives the same plan.
        keep: share of the possible fusions that is tried; drawn between 0 and 1 if None, so that
            plans of many small and of few large groups both occur.
    """
    keep = generator.random() if keep is None else keep
    tree_of: dict[str, Tree] = {
        node.name: Leaf(node.name, i) for i, node in enumerate(problem.nodes)
    }
    fusions = list(problem.possible_fusions)
    generator.shuffle(fusions)
    for fusion in fusions:
        first, second = tree_of[fusion.first], tree_of[fusion.second]
        if first is second or generator.random() > keep:
            continue
        joined = _join(legality, first, second) or _join(legality, second, first)
        if joined is None:
            continue
        others = {id(t): t for t in tree_of.values() if t is not first and t is not second}
        if is_acyclic(problem, [*(t.nodes for t in others.values()), joined.nodes]):
            tree_of |= dict.fromkeys(joined.nodes, joined)
    trees = {id(tree): tree for tree in tree_of.values()}
    steps = [step for tree in trees.values() for step in tree.steps]
    return build_plan([node.name for node in problem.nodes], steps)


def _join(legality: Legality, first: Tree, second: Tree) -> Join | None:
    verdict = legality.verdict(first, second)
    return Join(first, second, reorder=verdict.reorder) if verdict.legal else None
