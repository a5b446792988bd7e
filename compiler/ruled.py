"""A user's rules on one graph: what they want of its lowering, and what is told of them.

Rules about kernels are kept by the search (:mod:`fusewise.search.rules`). What a rule stores or
inlines is decided here, before there is anything to search, and so is what has to be stored because
the lowering would put operations into one node that a rule keeps apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusewise.compiler.inductor.choices import schedule_of
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import Applier, LiveGraph
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.origins import (
    idle_operations,
    lowered_operations,
    operations_within,
)
from fusewise.compiler.reports import RuleReport, RulesReport
from fusewise.schedule.errors import PlanError
from fusewise.schedule.inlining import RULES as GROUNDS
from fusewise.schedule.inlining import InliningDecision, Verdict, node_choices
from fusewise.schedule.patterns import Operation, operations
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Node, Problem
from fusewise.schedule.rules import LOWERING, PAIRED, RuleSet, Selector
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.repair import Unmet, repaired
from fusewise.search.rules import Rulings

#: Lowerings after which what is still in one node stays there. Each stores more.
_ROUNDS = 6


@dataclass(frozen=True)
class Lowered:
    """What rules want of the lowering of one graph."""

    rules: RuleSet
    #: Values that are stored or inlined on account of them, under all other choices alike.
    choices: tuple[Choice, ...] = ()
    #: Operations that rules about the lowering match, by the place of the rule.
    matched: Mapping[int, int] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    #: What cannot be, in words, each beginning with the rule.
    unkept: tuple[str, ...] = ()
    #: Pairs of operations that a rule, by its place, keeps apart in vain: one node computes both.
    stuck: frozenset[tuple[int, str, str]] = frozenset()

    @property
    def touched(self) -> bool:
        """Whether the lowering is another one than without rules."""
        return bool(self.choices)


@dataclass(frozen=True)
class _Look:
    """One lowering as rules look at it."""

    problem: Problem
    operations: Mapping[str, Operation]
    decisions: Mapping[str, InliningDecision]
    #: Operations that compute nothing.
    idle: frozenset[str]


def lower_by_rules(graph: GraphCompile, rules: RuleSet) -> Lowered:
    """Find out what ``rules`` want of the lowering of ``graph``.

    Lowers it once and for each round in which something more has to be stored; not at all where
    rules want nothing of the lowering.
    """
    within = tuple(
        f"{rules.name(at)}: the graph {name} within the graph keeps Inductor's own fusion"
        for name, inner in operations_within(graph.gm)
        for at, rule in enumerate(rules.rules)
        if any(selector.matches(op) for op in inner for selector in rule.selectors)
    )
    if all(rule.action in ("always", "at_most") for rule in rules.rules):
        return Lowered(rules, unkept=within)
    looks = _Looks(graph)
    look = looks({})
    wanted, matched, conflicts, unkept = _asked(rules, look)
    wanted, refused = _possible(looks, {}, wanted)
    unkept += [f"{rules.name(at)}: {why}" for at, why in _rules_of(rules, look, refused)]
    stuck: dict[tuple[int, str, str], str] = {}
    for _ in range(_ROUNDS):
        look = looks(wanted)
        more: dict[str, Verdict] = {}
        stuck = {}
        for at, node, first, second in _together(rules, look.problem, look.idle):
            told = f"{rules.name(at)}: {node.name} computes both {first} and {second}"
            stored = next((n for n in (first, second) if _storable(look, wanted, n)), None)
            if stored is None or stored in refused:
                asked = {n: v for n, v in wanted.items() if n in (first, second) and v == "inline"}
                by = [rules.name(other) for other, _ in _rules_of(rules, look, asked)]
                stuck[at, first, second] = f"{told}, by {by[-1]}" if by else told
            else:
                more[stored] = "store"
        possible, failed = _possible(looks, wanted, more)
        refused |= failed
        if not more:
            break
        wanted |= possible
    choices = node_choices(wanted)
    # What another rule wants inlined is no matter of what can be.
    conflicts += [text for text in stuck.values() if ", by rule " in text]
    unkept += [text for text in stuck.values() if text not in conflicts]
    told_once = tuple(dict.fromkeys((*unkept, *within)))
    return Lowered(rules, choices, matched, tuple(conflicts), told_once, frozenset(stuck))


def check_apart(lowered: Lowered, problem: Problem) -> None:
    """See that a lowering under further choices puts nothing together that rules keep apart.

    Call it where the graph is being lowered.

    Raises:
        PlanError: it does; names the rule and the operations.
    """
    for at, node, first, second in _together(lowered.rules, problem, idle_operations()):
        if (at, first, second) not in lowered.stuck:
            raise PlanError(
                f"{lowered.rules.name(at)}: {node.name} computes both {first} and {second}",
                subject="lowering",
                remedy="other choices are tried",
            )


class _Looks:
    """Lowerings of one graph, each made once."""

    def __init__(self, graph: GraphCompile) -> None:
        self._graph = graph
        self._known: dict[tuple[Choice, ...], _Look] = {}

    def __call__(self, wanted: Mapping[str, Verdict]) -> _Look:
        """The graph with some values stored or inlined.

        Raises:
            PlanError: one of them cannot be.
        """
        choices = node_choices(wanted)
        if choices not in self._known:
            self._graph.survey(choices, lambda live: self._take(choices, live))
        return self._known[choices]

    def _take(self, choices: tuple[Choice, ...], live: LiveGraph) -> None:
        problem = extract_problem(live.scheduler, live.nodes, key="", kind=self._graph.kind)
        decisions = {decision.node: decision for decision in live.decisions}
        look = _Look(problem, lowered_operations(), decisions, idle_operations())
        self._known[choices] = look


def _asked(
    rules: RuleSet, look: _Look
) -> tuple[dict[str, Verdict], dict[int, int], list[str], list[str]]:
    """What rules say outright: verdicts by node, matches and conflicts, and what cannot be."""
    wanted: dict[str, Verdict] = {}
    matched: dict[int, int] = {}
    turned: dict[tuple[int, int], int] = {}
    unkept: list[str] = []
    for name, operation in look.operations.items():
        holders = () if name not in look.decisions else (look.decisions[name].buffer,)
        named = operation._replace(holders=tuple(filter(None, holders)))
        saying = [
            at
            for at, rule in enumerate(rules.rules)
            if rule.action in LOWERING and rule.select.matches(named)
        ]
        for at in saying:
            matched[at] = matched.get(at, 0) + 1
        if not saying:
            continue
        last = saying[-1]
        action = rules.rules[last].action
        for at in saying[:-1]:
            if rules.rules[at].action != action:
                turned[last, at] = turned.get((last, at), 0) + 1
        decision = look.decisions.get(name)
        verdict: Verdict = "store" if action == "store" else "inline"
        if decision is None:
            continue
        if decision.alternative == verdict or (decision.outcome == verdict and decision.optional):
            wanted[name] = verdict
        elif decision.outcome != verdict:
            unkept.append(f"{rules.name(last)}: {name}: {GROUNDS[decision.rule]}")
    conflicts = [
        f"{rules.name(winner)} goes before {rules.name(loser)} on {count} operations"
        for (winner, loser), count in turned.items()
    ]
    return wanted, matched, conflicts, unkept


def _possible(
    looks: _Looks, before: Mapping[str, Verdict], wanted: Mapping[str, Verdict]
) -> tuple[dict[str, Verdict], dict[str, str]]:
    """Those of ``wanted`` that can be, beside what was wanted before; and why the others cannot."""
    if not wanted:
        return {}, {}
    try:
        looks({**before, **wanted})
    except PlanError:
        pass
    else:
        return dict(wanted), {}
    taken: dict[str, Verdict] = {}
    refused: dict[str, str] = {}
    for name, verdict in wanted.items():
        try:
            looks({**before, **taken, name: verdict})
        except PlanError as error:
            refused[name] = error.cause
        else:
            taken[name] = verdict
    return taken, refused


def _rules_of(rules: RuleSet, look: _Look, refused: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for name, why in refused.items():
        for at, rule in enumerate(rules.rules):
            if rule.action in LOWERING and rule.select.matches(look.operations[name]):
                yield at, why


def _storable(look: _Look, wanted: Mapping[str, Verdict], name: str) -> bool:
    decision = look.decisions.get(name)
    # What a rule wants inlined stays so, as does what was stored already and is here all the same.
    return decision is not None and decision.alternative == "store" and name not in wanted


def _together(
    rules: RuleSet, problem: Problem, idle: frozenset[str]
) -> Iterator[tuple[int, Node, str, str]]:
    """Operations that one node computes and a rule keeps apart, the earlier one first."""
    saying = [at for at, rule in enumerate(rules.rules) if rule.action in (*PAIRED, "alone")]
    if not any(rules.rules[at].action != "always" for at in saying):
        return
    for node in problem.nodes:
        found = [operation for operation in operations(node) if operation.name not in idle]
        if len(found) < 2 or node.kind in ("extern", "nop"):  # noqa: PLR2004
            continue
        sides = {
            at: [_side(selector, found) for selector in rules.rules[at].selectors] for at in saying
        }
        if not any(all(sides[at]) for at in saying if rules.rules[at].action != "always"):
            continue
        told: set[int] = set()
        for i, j in itertools.combinations(range(len(found)), 2):
            about = (at for at in reversed(saying) if _speaks(rules, at, sides[at], i, j))
            at = next(about, None)
            if at is None or rules.rules[at].action == "always" or at in told:
                continue
            yield at, node, found[i].name, found[j].name
            if node.kind == "foreach":
                # Nothing of it can be taken out, however many operations it has.
                told.add(at)


def _side(selector: Selector, found: Sequence[Operation]) -> frozenset[int]:
    if selector.where is not None:
        # A predicate speaks of nodes, so it tells no operation of one from another.
        return frozenset()
    return frozenset(i for i, operation in enumerate(found) if selector.matches(operation))


def _speaks(rules: RuleSet, at: int, sides: Sequence[frozenset[int]], i: int, j: int) -> bool:
    first, second = sides[0], sides[-1]
    if rules.rules[at].action == "alone":
        return i in first or j in first
    return (i in first and j in second) or (j in first and i in second)


def report_rules(lowered: Lowered, rulings: Rulings, unmet: Sequence[Unmet]) -> RulesReport:
    """What is told of rules on one graph."""
    rules = lowered.rules
    names = [node.name for node in rulings.problem.nodes]
    conflicts = [
        f"{rules.name(c.winner)} goes before {rules.name(c.loser)} on {c.pairs} "
        f"{'pair' if c.pairs == 1 else 'pairs'} of nodes"
        for c in rulings.conflicts
    ]
    refused = [
        f"{rules.name(u.demand.rule)}: {names[u.demand.first]} with {names[u.demand.second]}: "
        f"{u.verdict.detail or u.verdict.reason}"
        for u in unmet
    ]
    # A demand that another rule stands in the way of is a conflict, not a matter of what is legal.
    by_rule = [text for text, u in zip(refused, unmet, strict=True) if u.verdict.reason == "rule"]
    return RulesReport(
        rules=tuple(
            RuleReport(rules.name(at), use.nodes, use.pairs, use.matched)
            for at, use in enumerate(rulings.uses)
        ),
        conflicts=(*lowered.conflicts, *conflicts, *by_rule),
        unkept=(*lowered.unkept, *(text for text in refused if text not in by_rule)),
    )


def check_known(graph: GraphCompile, rules: RuleSet, schedule: Schedule) -> RulesReport:
    """See that a schedule that was found before keeps the rules, and tell of them.

    Lowers the graph once.

    Raises:
        PlanError: it does not keep them: a predicate looks at something that has changed.
    """
    found: list[tuple[Problem, dict[str, Operation], Plan]] = []

    def visit(live: LiveGraph) -> None:
        problem = extract_problem(live.scheduler, live.nodes, key="", kind=graph.kind)
        found.append((problem, lowered_operations(), schedule.plan or live.default_plan))

    graph.survey((*schedule.lowering, *schedule.codegen), visit)
    problem, lowering, plan = found[0]
    matched = {
        at: sum(rule.select.matches(operation) for operation in lowering.values())
        for at, rule in enumerate(rules.rules)
        if rule.action in LOWERING
    }
    rulings = Rulings(problem, rules, matched)
    for broken in rulings.violations(plan):
        raise PlanError(broken.detail, subject="schedule", remedy="search again under these rules")
    return report_rules(Lowered(rules, matched=matched), rulings, ())


def compile_by_rules(graph: GraphCompile, rules: RuleSet) -> tuple[Any, Candidate, RulesReport]:
    """Compile Inductor's own plan as rules want it, nothing searched, stored or measured.

    What is done where fusewise steps back: the rules hold all the same. Raises whatever goes wrong.
    """
    lowered = lower_by_rules(graph, rules)
    found: list[tuple[Plan, RulesReport, bool]] = []

    def visit(live: LiveGraph) -> None:
        legality = InductorLegality(live)
        problem = extract_problem(live.scheduler, live.nodes, key="", kind=graph.kind)
        rulings = Rulings(problem, rules, lowered.matched)
        fixed = repaired(problem, live.default_plan, legality, rulings)
        found.append((fixed.plan, report_rules(lowered, rulings, fixed.unmet), rulings.idle))

    graph.survey(lowered.choices, visit)
    plan, report, idle = found[0]
    ruled = bool(lowered.choices) or not idle
    schedule = schedule_of(lowered.choices, plan)
    candidate = Candidate(
        schedule=schedule,
        origin="rules" if ruled else "default",
        groups=len(plan.groups),
        accepted=True,
        reason="Inductor's own schedule as rules want it",
    )
    if not ruled:
        return graph.compile(None, None), candidate, report
    return graph.compile(schedule, Applier(plan)), candidate, report
