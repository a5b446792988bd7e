"""Rules on made-up problems: what they mean, the repaired plan, and a search that keeps them."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.schedule import rules
from fusewise.schedule.plan import Plan, check_plan, is_acyclic, unfused
from fusewise.schedule.problem import Problem
from fusewise.schedule.rules import Rule, RuleSet, rule_set, select
from fusewise.search.beam import Budget, beam_search
from fusewise.search.repair import Keeping, Repaired, repaired
from fusewise.search.rules import RuledLegality, Rulings
from fusewise.search.tree import Tree, trees_of


def repair(made_up: ModuleType, problem: Problem, default: Plan, *given: Rule) -> Repaired:
    rulings = Rulings(problem, rule_set(given))
    return repaired(problem, default, made_up.MadeUpCompiler(problem), rulings)


def groups(plan: Plan) -> set[frozenset[str]]:
    return {frozenset(group) for group in plan.groups}


def nodes(*names: str) -> Any:
    return select(node=names)


def test_the_last_rule_that_speaks_of_a_pair_decides(made_up: ModuleType) -> None:
    problem = made_up.siblings()
    given = rule_set(
        [
            rules.alone(nodes("sum")),
            rules.always(nodes("sum"), nodes("max")),
            rules.never(nodes("max"), nodes("out")),
        ]
    )
    rulings = Rulings(problem, given)
    at = problem.index
    together = 1 << at["sum"] | 1 << at["max"]
    assert rulings.permits(together)
    assert [(d.rule, d.first, d.second) for d in rulings.demands] == [(1, at["max"], at["sum"])]
    refused = rulings.refused(1 << at["sum"] | 1 << at["scale"])
    assert refused is not None
    assert (refused.rule, refused.detail) == (0, "rule 1: keep node sum alone")
    refused = rulings.refused(1 << at["max"], 1 << at["out"])
    assert refused is not None
    assert refused.detail == "rule 3: never fuse node max with node out"
    assert [tuple(c) for c in rulings.conflicts] == [(1, 0, 1)]
    assert [(use.nodes, use.pairs, use.matched) for use in rulings.uses] == [
        (1, 3, True),
        (2, 1, True),
        (2, 1, True),
    ]


def test_rules_that_match_nothing_say_so(made_up: ModuleType) -> None:
    problem = made_up.siblings()
    given = [
        rules.never(nodes("max"), nodes("none")),
        rules.alone("aten.exp"),
        rules.at_most(select(module="layers.*"), nodes=1),
        rules.always(select(where=lambda node: node.numel < 0)),
    ]
    rulings = Rulings(problem, rule_set(given))
    assert [use.matched for use in rulings.uses] == [False] * 4
    assert rulings.idle
    default = made_up.greedy(problem)
    assert repair(made_up, problem, default, *given).plan == default


def test_one_operation_in_two_nodes_is_no_pair(made_up: ModuleType) -> None:
    problem = made_up.siblings()

    def named(node: Any, *names: str) -> Any:
        return msgspec.structs.replace(node, origins=("aten.exp.default",) * 2, fx_names=names)

    twice, once, other, last = problem.nodes
    changed = msgspec.structs.replace(
        problem,
        nodes=(named(twice, "exp", "x"), named(once, "exp", "y"), named(other, "z", "u"), last),
    )
    rulings = Rulings(changed, rule_set(rules.never(select(node="exp"))))
    assert rulings.idle
    pairs = Rulings(changed, rule_set(rules.never(select(node="exp"), select(node=["x", "u"]))))
    assert not pairs.permits(0b11)
    assert not pairs.permits(0b110)
    assert pairs.permits(0b1001)


@pytest.mark.parametrize(
    ("bound", "sizes"),
    [({"nodes": 2}, {2, 1}), ({"inputs": 1}, {4}), ({"bytes": 1}, {1})],
)
def test_bounds(made_up: ModuleType, bound: dict[str, int], sizes: set[int]) -> None:
    problem = made_up.siblings()
    whole = rules.always(select(node="*"))
    joined = repair(made_up, problem, unfused([n.name for n in problem.nodes]), whole)
    assert {len(group) for group in joined.plan.groups} == {4}
    cut = repair(made_up, problem, joined.plan, rules.at_most(**bound))
    assert {len(group) for group in cut.plan.groups} <= sizes
    rulings = Rulings(problem, rule_set(rules.at_most(**bound)))
    assert list(rulings.violations(cut.plan)) == []
    assert bool(list(rulings.violations(joined.plan))) == (joined.plan != cut.plan)


def test_a_bound_goes_before_a_demand_and_the_demand_says_why(made_up: ModuleType) -> None:
    problem = made_up.siblings()
    given = [rules.at_most(nodes=2), rules.always(select(node="*"))]
    found = repair(made_up, problem, unfused([n.name for n in problem.nodes]), *given)
    assert max(len(group) for group in found.plan.groups) == 2
    assert found.unmet
    assert all(unmet.verdict.reason in {"rule", "cycle"} for unmet in found.unmet)
    assert any("rule 1: at most 2 nodes" in unmet.verdict.detail for unmet in found.unmet)


def test_what_is_demanded_goes_before_what_the_compiler_fused(made_up: ModuleType) -> None:
    """The two pairs close a cycle only together: the demanded one stays, the other gives way."""
    problem = made_up.crossed()
    first = repair(
        made_up,
        problem,
        unfused([n.name for n in problem.nodes]),
        rules.always(nodes("b"), nodes("d")),
    )
    assert frozenset("bd") in groups(first.plan)
    both = [rules.always(nodes("a"), nodes("c")), rules.always(nodes("b"), nodes("d"))]
    found = repair(made_up, problem, first.plan, *both[:1])
    assert frozenset("ac") in groups(found.plan)
    assert frozenset("bd") not in groups(found.plan)
    # Of two demands that exclude each other the later rule's is met.
    last = repair(made_up, problem, first.plan, *both)
    assert frozenset("bd") in groups(last.plan)
    assert [(unmet.demand.rule, unmet.verdict.reason) for unmet in last.unmet] == [(0, "cycle")]


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, RuleSet]:
    """A random graph with its compiler's plan, and rules on its nodes."""
    count = draw(st.integers(4, 40))

    def some() -> Any:
        chosen = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
        return select(node=[f"op{i}" for i in chosen])

    rule = st.sampled_from(["never", "apart", "always", "pair", "alone", "at_most", "inputs"])
    made = []
    for kind in draw(st.lists(rule, min_size=1, max_size=5)):
        if kind == "never":
            made.append(rules.never(some(), some()))
        elif kind == "apart":
            made.append(rules.never(some()))
        elif kind == "always":
            made.append(rules.always(some()))
        elif kind == "pair":
            made.append(rules.always(some(), some()))
        elif kind == "alone":
            made.append(rules.alone(some()))
        elif kind == "at_most":
            made.append(rules.at_most(nodes=draw(st.integers(1, 5))))
        else:
            made.append(rules.at_most(some(), inputs=draw(st.integers(1, 4))))
    return draw(st.integers(0, 10**6)), count, draw(st.integers(0, 99)), rule_set(made)


def assert_kept(made_up: ModuleType, problem: Problem, plan: Plan, given: RuleSet) -> None:
    """Fail where a plan breaks a rule; told from the rules' text, by pairs of nodes."""
    group_of = plan.group_of()
    named = [(rule, [s.node for s in rule.selectors]) for rule in given.rules]
    for a, b in itertools.combinations([n.name for n in problem.nodes], 2):
        verdict = None
        for rule, sides in named:
            one, two = sides[0], sides[-1]
            if rule.action == "alone" and (a in one or b in one):
                verdict = "never"
            elif rule.action in {"never", "always"} and (
                (a in one and b in two) or (b in one and a in two)
            ):
                verdict = rule.action
        assert verdict != "never" or group_of[a] != group_of[b]
    for rule, sides in named:
        if rule.action != "at_most":
            continue
        for group in plan.groups:
            chosen = [problem.node_by_name[name] for name in group]
            if len(group) == 1 or not (rule.select.everything or set(sides[0]) & set(group)):
                continue
            if rule.nodes is not None and rule is _only(given, "nodes", group):
                assert len(group) <= rule.nodes
            if rule.inputs is not None and rule is _only(given, "inputs", group):
                written = {w.buffer for node in chosen for w in node.writes}
                read = {r.buffer for node in chosen for r in node.reads}
                assert len(read - written) <= rule.inputs


def _only(given: RuleSet, bound: str, group: tuple[str, ...]) -> Rule | None:
    """The one rule that bounds a group; None where several speak of it."""
    about = [
        rule
        for rule in given.rules
        if getattr(rule, bound) is not None
        and (rule.select.everything or set(rule.select.node) & set(group))
    ]
    return about[0] if len(about) == 1 else None


def assert_closed(made_up: ModuleType, problem: Problem, plan: Plan, rulings: Rulings) -> None:
    """Fail where something demanded is apart in ``plan`` and could be joined."""
    legality = RuledLegality(made_up.MadeUpCompiler(problem), rulings)
    trees = trees_of(problem, plan)
    home: dict[int, Tree] = {problem.index[n]: tree for tree in trees for n in tree.nodes}
    for demand in rulings.demands:
        first, second = home[demand.first], home[demand.second]
        if first is second:
            continue
        rest = [tree.nodes for tree in trees if tree is not first and tree is not second]
        joined = is_acyclic(problem, [*rest, (*first.nodes, *second.nodes)])
        legal = [legality.verdict(*pair).legal for pair in ((first, second), (second, first))]
        assert not (joined and all(legal))


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_every_plan_of_a_search_keeps_the_rules(
    made_up: ModuleType, case: tuple[int, int, int, RuleSet]
) -> None:
    seed, count, order, given = case
    problem = made_up.make_problem(seed, count)
    default = made_up.greedy(problem, order)
    compiler = made_up.MadeUpCompiler(problem)
    rulings = Rulings(problem, given)
    start = repaired(problem, default, compiler, rulings)
    result = beam_search(
        problem,
        start.plan,
        compiler,
        made_up.MadeUpCost(problem),
        Budget(part_nodes=16),
        Keeping(rulings, start.bound),
    )
    assert result.default.plan == start.plan
    for scored in result.plans:
        check_plan(problem, scored.plan)
        assert_kept(made_up, problem, scored.plan, given)
        assert list(rulings.violations(scored.plan)) == []
        assert_closed(made_up, problem, scored.plan, rulings)
        whole = groups(scored.plan)
        assert all(any(core.members <= group for group in whole) for core in start.bound)


@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_a_plan_that_keeps_the_rules_is_left_as_it_is(
    made_up: ModuleType, case: tuple[int, int, int, RuleSet]
) -> None:
    seed, count, order, given = case
    problem = made_up.make_problem(seed, count)
    compiler = made_up.MadeUpCompiler(problem)
    rulings = Rulings(problem, given)
    once = repaired(problem, made_up.greedy(problem, order), compiler, rulings)
    again = repaired(problem, once.plan, compiler, rulings)
    assert groups(again.plan) == groups(once.plan)


def test_a_refusal_by_a_rule_is_told_by_the_search(made_up: ModuleType, small: Problem) -> None:
    given = rule_set(rules.alone(select(where=lambda node: node.kind == "reduction")))
    rulings = Rulings(small, given)
    compiler = made_up.MadeUpCompiler(small)
    start = repaired(small, made_up.greedy(small), compiler, rulings)
    keeping = Keeping(rulings, start.bound)
    result = beam_search(small, start.plan, compiler, made_up.MadeUpCost(small), None, keeping)
    by_rule = [c for c in result.considered if c.verdict.reason == "rule"]
    assert by_rule
    assert all(c.verdict.detail.startswith("rule 1: keep where ") for c in by_rule)
    asked = {frozenset((*first, *second)) for first, second in compiler.asked}
    reductions = {node.name for node in small.nodes if node.kind == "reduction"}
    assert not any(group & reductions for group in asked)
