"""The beam: plans are complete, legal, no worse than the default and always the same."""

from __future__ import annotations

import functools
import itertools
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewise.schedule.errors import ModelError, PlanError
from fusewise.schedule.plan import Plan, Step, build_plan, check_plan, is_acyclic, unfused
from fusewise.schedule.problem import Problem
from fusewise.search.beam import Budget, beam_search
from fusewise.search.region import FIXED_KINDS
from fusewise.search.result import SearchResult
from fusewise.search.tree import Join, Leaf, Tree, subtrees, trees_of


def search(made_up, problem: Problem, default: Plan, **budget) -> SearchResult:
    return beam_search(
        problem,
        default,
        made_up.MadeUpCompiler(problem),
        made_up.MadeUpCost(problem),
        Budget(**budget),
    )


def total(made_up, problem: Problem, plan: Plan) -> float:
    idle = {n.name for n in problem.nodes if n.kind == "nop"}
    groups = [frozenset(g) for g in plan.groups if not idle.issuperset(g)]
    return math.fsum(made_up.MadeUpCost(problem).score(groups).tolist())


def is_legal(made_up, problem: Problem, plan: Plan, default: Plan) -> bool:
    """Whether each join of each group is one the made-up compiler or the default has."""
    given_ = {s for tree in trees_of(problem, default) for s in subtrees(tree)}
    compiler = made_up.MadeUpCompiler(problem)
    return all(
        sub in given_ or compiler.verdict(sub.first, sub.second).legal
        for tree in trees_of(problem, plan)
        for sub in subtrees(tree)
        if isinstance(sub, Join)
    )


SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@SETTINGS
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), part=st.sampled_from([4, 12, 32]))
def test_every_plan_is_complete_legal_and_the_default_is_among_them(
    made_up, seed: int, count: int, part: int
) -> None:
    problem = made_up.make_problem(seed, count)
    default = made_up.greedy(problem, seed, align=True)
    result = search(made_up, problem, default, part_nodes=part)
    plans = [p.plan for p in result.plans]
    assert len(set(plans)) == len(plans) <= 16
    assert default in plans
    assert result.default.plan == default
    # Whatever else is found is not taken for the compiler's own.
    assert [p.plan for p in result.plans if p.origin == "default"] == [default]
    fixed_groups = {
        g for g in default.groups if any(problem.node_by_name[n].kind in FIXED_KINDS for n in g)
    }
    for scored in result.plans:
        check_plan(problem, scored.plan)
        assert is_legal(made_up, problem, scored.plan, default)
        assert scored.predicted_us == pytest.approx(total(made_up, problem, scored.plan))
        assert fixed_groups <= set(scored.plan.groups)
    ranks = [(p.predicted_us, p.plan.id) for p in result.plans]
    assert ranks == sorted(ranks)
    assert result.best.predicted_us <= result.default.predicted_us


@SETTINGS
@given(seed=st.integers(0, 10**6))
def test_aligns_of_the_default_stay_in_what_is_one_move_from_it(made_up, seed: int) -> None:
    problem = made_up.make_problem(seed, 30)
    default = made_up.greedy(problem, seed, align=True)
    aligns = [s for s in default.steps if s.kind == "align"]
    for scored in search(made_up, problem, default).plans:
        kept = [s for s in scored.plan.steps if s.kind == "align"]
        assert len(kept) <= len(aligns)
        if scored.origin == "neighbour":
            assert [s.reorder for s in kept] == [s.reorder for s in aligns]


def best_by_enumeration(made_up, problem: Problem) -> float:
    """Least time over all legal plans, by joining every pair in every order."""
    compiler, cost = made_up.MadeUpCompiler(problem), made_up.MadeUpCost(problem)
    leaves: tuple[Tree, ...] = tuple(Leaf(n.name, i) for i, n in enumerate(problem.nodes))
    fixed = {n.name for n in problem.nodes if n.kind in FIXED_KINDS}
    us = functools.cache(lambda group: float(cost.score([group])[0]))
    idle = {n.name for n in problem.nodes if n.kind == "nop"}
    best, seen, todo = math.inf, set(), [leaves]
    while todo:
        trees = todo.pop()
        key = frozenset(t.members for t in trees)
        if key in seen or not is_acyclic(problem, [t.nodes for t in trees]):
            continue
        seen.add(key)
        best = min(best, math.fsum(us(g) for g in key if not idle.issuperset(g)))
        for a, b in itertools.permutations(trees, 2):
            if (
                a.mask < b.mask
                and not fixed & (a.members | b.members)
                and compiler.verdict(a, b).legal
            ):
                todo.append((*(t for t in trees if t not in (a, b)), Join(a, b)))
    return best


def test_small_problems_against_all_legal_plans(made_up) -> None:
    optimal = 0
    for seed in range(60):
        problem = made_up.make_problem(seed, 7, fixed=0.05)
        least = best_by_enumeration(made_up, problem)
        names = [n.name for n in problem.nodes]
        found = search(made_up, problem, unfused(names)).best.predicted_us
        assert found >= least - 1e-9
        assert found <= least * 1.02
        optimal += found <= least + 1e-9
    assert optimal >= 57


def test_same_result_whatever_the_hash_seed() -> None:
    code = (
        "import importlib.util as u, sys\n"
        "spec = u.spec_from_file_location('made_up', sys.argv[1])\n"
        "m = u.module_from_spec(spec); spec.loader.exec_module(m)\n"
        "from fusewise.search.beam import beam_search\n"
        "p = m.make_problem(5, 150)\n"
        "r = beam_search(p, m.greedy(p, align=True), m.MadeUpCompiler(p), m.MadeUpCost(p))\n"
        "print([(q.plan.id, q.predicted_us, q.origin) for q in r.plans])\n"
        "print(r.states, r.groups_scored, r.verdicts, r.refused)\n"
        "print([(c.first, c.second, c.saved_us) for c in r.considered])\n"
    )
    made_up = str(Path(__file__).with_name("conftest.py"))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, made_up],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


def test_limits_hold_and_leave_complete_plans(made_up) -> None:
    problem = made_up.make_problem(1, 300)
    default = made_up.greedy(problem)
    few = search(made_up, problem, default, states=60)
    assert few.exhausted
    assert few.states < 300
    none = search(made_up, problem, default, seconds=0.0)
    assert none.exhausted
    assert none.default.plan in [p.plan for p in none.plans]
    for scored in (*few.plans, *none.plans):
        check_plan(problem, scored.plan)
    assert len(search(made_up, problem, default, keep=1, states=60).plans) <= 4


def test_nothing_is_asked_twice_and_all_of_a_step_is_scored_at_once(made_up) -> None:
    problem = made_up.make_problem(2, 120)
    compiler, cost = made_up.MadeUpCompiler(problem), made_up.MadeUpCost(problem)
    result = beam_search(problem, made_up.greedy(problem), compiler, cost)
    assert (
        result.verdicts
        == len(compiler.asked)
        == len([c for c in result.considered if c.verdict.reason != "cycle"])
    )
    assert result.groups_scored == sum(cost.calls)
    assert len(cost.calls) < 200
    assert dict(result.refused).keys() <= {"cycle", "numel", "size", "nothing shared"}


def test_bad_costs_and_plans_are_refused(made_up, small: Problem) -> None:
    class NoNumber(made_up.MadeUpCost):
        def score(self, groups):
            return np.full(len(groups), np.nan)

    names = [n.name for n in small.nodes]
    compiler = made_up.MadeUpCompiler(small)
    with pytest.raises(ModelError, match="nan"):
        beam_search(small, unfused(names), compiler, NoNumber(small))
    with pytest.raises(PlanError):
        beam_search(small, unfused(names[1:]), compiler, made_up.MadeUpCost(small))


def test_regions_that_close_a_cycle_together_are_not_both_taken(made_up) -> None:
    # a -> x -> b and d -> y -> c: fusing a with c and b with d is fine apart, not together.
    problem = made_up.crossed()
    names = [n.name for n in problem.nodes]
    assert is_acyclic(problem, [("a", "c")])
    assert is_acyclic(problem, [("b", "d")])
    assert not is_acyclic(problem, [("a", "c"), ("b", "d")])
    result = search(made_up, problem, unfused(names))
    for scored in result.plans:
        check_plan(problem, scored.plan)
    assert any(len(g) == 2 for g in result.best.plan.groups)


def test_orders_of_reductions_are_offered(made_up) -> None:
    problem = made_up.siblings()
    names = [n.name for n in problem.nodes]
    result = search(made_up, problem, unfused(names))
    orders = [p for p in result.plans if p.origin == "order"]
    assert orders
    groups = {frozenset(g) for g in result.best.plan.groups}
    assert any({frozenset(g) for g in p.plan.groups} == groups for p in orders)
    assert len({p.plan.steps for p in orders}) == len(orders)


def test_default_is_built_as_the_compiler_built_it(made_up) -> None:
    problem = made_up.siblings()
    names = [n.name for n in problem.nodes]
    steps = [Step("align", names[0], names[1], True), Step("fuse", names[0], names[1], True)]
    default = build_plan(names, steps)
    assert search(made_up, problem, default).default.plan is default


def test_time_grows_with_the_number_of_nodes(made_up) -> None:
    taken = {}
    for count in (250, 1000):
        problem = made_up.make_problem(1, count)
        default = made_up.greedy(problem)
        began = time.process_time()
        search(made_up, problem, default)
        taken[count] = time.process_time() - began
    # Four times the nodes: sixteen times the time would be quadratic.
    assert taken[1000] < 9 * taken[250]
