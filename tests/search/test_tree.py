"""Trees and how they are written as plans."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewise.schedule.plan import build_plan, split_steps
from fusewise.schedule.problem import Problem
from fusewise.search.assembly import Stepwise
from fusewise.search.region import arrange, cut, cycles, descendants
from fusewise.search.tree import Join, Leaf, Tree, subtrees, trees_of

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def test_trees_are_values() -> None:
    a, b, c = (Leaf(name, i) for i, name in enumerate("abc"))
    one, same = Join(Join(a, b), c), Join(Join(Leaf("a", 0), b), c)
    assert one == same and hash(one) == hash(same)
    assert one != Join(a, Join(b, c)) and one.members == Join(a, Join(b, c)).members
    assert one != Join(Join(a, b, reorder=True), c)
    assert one.mask == 0b111 and one.nodes == ("a", "b", "c")
    assert [t.nodes for t in subtrees(one)] == [("a",), ("b",), ("a", "b"), ("c",), one.nodes]


def test_deep_trees_need_no_recursion() -> None:
    tree: Tree = Leaf("n0", 0)
    for i in range(1, 1500):
        tree = Join(tree, Leaf(f"n{i}", i))
    assert sum(1 for _ in subtrees(tree)) == 2999


@SETTINGS
@given(seed=st.integers(0, 10**6), count=st.integers(1, 40))
def test_a_plan_and_its_trees_say_the_same(made_up, seed: int, count: int) -> None:
    problem = made_up.make_problem(seed, count)
    default = made_up.greedy(problem, seed, align=True)
    trees = trees_of(problem, default)
    assert tuple(t.nodes for t in trees) == default.groups
    assert Stepwise(problem, default).plan(trees, frozenset()) == default


@SETTINGS
@given(seed=st.integers(0, 10**6))
def test_parted_groups_keep_the_aligns_where_they_stood(made_up, seed: int) -> None:
    problem = made_up.make_problem(seed, 24)
    default = made_up.greedy(problem, seed, align=True)
    names = [n.name for n in problem.nodes]
    parts = [frozenset(names[::2]), frozenset(names[1::2])]
    wanted = build_plan(names, split_steps(default.steps, parts))
    trees: list[Tree] = []
    for tree in trees_of(problem, default):
        trees += [t for part in parts for t in (_restricted(tree, part),) if t is not None]
    assert Stepwise(problem, default).plan(trees, frozenset()) == wanted


def _restricted(tree: Tree, part: frozenset[str]) -> Tree | None:
    if not isinstance(tree, Join):
        return tree if tree.nodes[0] in part else None
    first, second = _restricted(tree.first, part), _restricted(tree.second, part)
    if first is None or second is None:
        return first or second
    return Join(first, second, reorder=tree.reorder)


def test_cycles_are_found_and_orders_kept(made_up) -> None:
    problem = made_up.crossed()
    leaf = {n.name: Leaf(n.name, i) for i, n in enumerate(problem.nodes)}
    ac, bd = Join(leaf["a"], leaf["c"]), Join(leaf["b"], leaf["d"])
    assert arrange(problem, [ac, bd, leaf["x"], leaf["y"]]) is None
    (cycle,) = cycles(problem, [ac, bd, leaf["x"], leaf["y"]])
    assert {ac, bd} <= set(cycle)
    order = arrange(problem, [ac, *(leaf[n] for n in "bdxy")])
    assert order is not None
    assert [t.nodes[0] for t in order].index("y") < order.index(ac) < order.index(leaf["b"])


def test_descendants_mirror_ancestors(small: Problem) -> None:
    below = descendants(small)
    for i, above in enumerate(small.ancestors):
        for j in range(len(small.nodes)):
            assert bool(above >> j & 1) == bool(below[j] >> i & 1)


def test_cuts_keep_groups_whole_and_order(made_up) -> None:
    problem = made_up.make_problem(4, 100)
    trees = trees_of(problem, made_up.greedy(problem))
    for shifted in (False, True):
        runs = cut(trees, 16, shifted=shifted)
        assert [t for run in runs for t in run] == list(trees)
        assert all(sum(map(len, run)) < 32 for run in runs)
    assert cut(trees, 16) != cut(trees, 16, shifted=True)
