"""Random rules on real graphs: kept by what is generated, right, and the same each time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import StopAtProgram
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.ruled import Lowered, lower_by_rules, report_rules
from fusewise.schedule import rules
from fusewise.schedule.patterns import Operation, operations
from fusewise.schedule.plan import Plan, check_plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.rules import Rule, RuleSet, rule_set, select
from fusewise.schedule.schedule import Schedule
from fusewise.search.random_plan import random_plan
from fusewise.search.repair import repaired
from fusewise.search.rules import RuledLegality, Rulings

SOME_RULES = st.lists(
    st.tuples(
        st.sampled_from(["never", "always", "alone", "nodes", "inputs", "store", "inline"]),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=4,
)


def drawn(problem: Problem, drawing: list[tuple[str, int, int]]) -> RuleSet:
    """Rules about operators and nodes that the problem has."""
    names = sorted({op for node in problem.nodes for op in node.origins if op.startswith("aten")})
    every = sorted({name for node in problem.nodes for name in node.fx_names})

    def some(at: int) -> Any:
        return names[at % len(names)] if at % 3 else select(node=every[at % len(every)])

    made: list[Rule] = []
    for kind, first, second in drawing:
        if kind in ("never", "always"):
            made.append(getattr(rules, kind)(some(first), some(second)))
        elif kind in ("nodes", "inputs"):
            made.append(rules.at_most(**{kind: 1 + first % 4}))
        else:
            made.append(getattr(rules, kind)(some(first)))
    return rule_set(made)


def keeps(problem: Problem, group: Sequence[str], given: RuleSet, unkept: Sequence[str]) -> None:
    """Fail where a kernel has what the last rule about it keeps apart; told from the rules' text.

    Between two nodes the last rule on any pair of their operations holds for all of them.
    """
    excused = {int(text.split(":")[0].removeprefix("rule ")) - 1 for text in unkept}
    found = {name: operations(problem.node_by_name[name]) for name in group}

    def last(pairs: Sequence[tuple[Operation, Operation]]) -> int | None:
        for at, rule in reversed(list(enumerate(given.rules))):
            one, two = rule.selectors[0], rule.selectors[-1]
            for a, b in pairs:
                both = (one.matches(a) and two.matches(b)) or (one.matches(b) and two.matches(a))
                if rule.action == "alone" and (one.matches(a) or one.matches(b)):
                    return at
                if rule.action in ("never", "always") and both and a.name != b.name:
                    return at
        return None

    for first, second in itertools.combinations(group, 2):
        decided = last(list(itertools.product(found[first], found[second])))
        assert decided is None or given.rules[decided].action == "always"
    for name in group:
        for pair in itertools.combinations(found[name], 2):
            decided = last([pair])
            if decided is not None and given.rules[decided].action == "never":
                assert decided in excused
    if len(group) > 1:
        bounds = [rule.nodes for rule in given.rules if rule.nodes is not None]
        assert not bounds or len(group) <= bounds[-1]


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    name=st.sampled_from(["layer_norm", "softmax", "statistics", "cross_entropy", "mutation"]),
    drawing=SOME_RULES,
    seed=st.integers(0, 99),
)
def test_random_rules_on_real_graphs(
    live: Any, name: str, drawing: list[tuple[str, int, int]], seed: int
) -> None:
    graph = live.captured(name)[-1]
    given = drawn(graph.surveyed.problem, drawing)
    with graph.context():
        lowered = lower_by_rules(graph.compile, given)
        again = lower_by_rules(graph.compile, given)
    assert lowered == again
    plan, problem = ruled_plan(graph, lowered, seed)
    check_plan(problem, plan)
    schedule = schedule_of(lowered.choices, plan)
    watcher = live.Watcher(plan)
    with graph.context():
        graph.compile.generate_through(schedule, StopAtProgram(watcher))
    assert watcher.program is not None
    rulings = Rulings(problem, given, lowered.matched)
    assert watcher.groups == {frozenset(group) for group in plan.groups}
    assert list(rulings.violations(plan)) == []
    for group in plan.groups:
        keeps(problem, group, given, lowered.unkept)
    assert graph.generate(schedule).code_hash == watcher.program.code_hash
    live.difference(graph.run(watcher.program), graph.eager())


def ruled_plan(graph: Any, lowered: Lowered, seed: int) -> tuple[Plan, Problem]:
    """What rules make of Inductor's plan, or for odd seeds of a random one."""
    found: list[tuple[Plan, Problem]] = []

    def visit(live_graph: Any) -> None:
        legality = InductorLegality(live_graph)
        problem = extract_problem(
            live_graph.scheduler,
            live_graph.nodes,
            key="",
            kind=graph.kind,
            possible_fusions=legality.possible_fusions(),
        )
        rulings = Rulings(problem, lowered.rules, lowered.matched)
        start = live_graph.default_plan
        if seed % 2:
            allowed = RuledLegality(legality, rulings)
            start = random_plan(problem, allowed, random.Random(seed))
        fixed = repaired(problem, start, legality, rulings)
        report = report_rules(lowered, rulings, fixed.unmet)
        assert len(report.rules) == len(lowered.rules.rules)
        found.append((fixed.plan, problem))

    with graph.context():
        graph.compile.survey(lowered.choices, visit)
    return found[0]


def test_a_schedule_of_rules_is_one_like_any_other(live: Any) -> None:
    (graph,) = live.captured("softmax")
    with graph.context():
        lowered = lower_by_rules(graph.compile, rule_set(rules.never("aten.exp", "aten.sum")))
    plan, _ = ruled_plan(graph, lowered, 0)
    program = graph.generate(Schedule(lowering=lowered.choices, plan=plan))
    live.difference(graph.run(program), graph.eager())
