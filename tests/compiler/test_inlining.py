"""Inline or store for each node: every rule is met, verdicts hold or are refused with a reason."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn import functional

from fusewise.compiler.inductor import inlining
from fusewise.schedule.errors import PlanError
from fusewise.schedule.inlining import (
    OPTIONAL,
    RULES,
    InliningDecision,
    Verdict,
    node_choice,
    node_choices,
    verdicts,
)
from fusewise.schedule.schedule import Choice, Schedule, problem_key


def cheap(x: Any) -> Any:
    doubled = x * 2
    return doubled.sum(0), (doubled + 1).sum(1)


def heavy(x: Any) -> Any:
    powers = x.exp()
    return powers.sum(0), powers.sum(1)


def operations(x: Any) -> Any:
    for i in range(30):
        x = x * 1.5 + i
    return x.sum(0), x.sum(1)


def reads(x: Any, *more: Any) -> Any:
    for other in more[:5]:
        x = x + other
    return x.sum(0), x.sum(1)


def accumulated(x: Any, *more: Any) -> Any:
    for other in more:
        x = x + other
    return x.relu()


def pooled(x: Any) -> Any:
    return functional.max_pool2d((x * 2 + x.t())[None, None], 3, 1)


def counted(x: Any) -> Any:
    index = torch.arange(24, device=x.device) * 2
    return x + index, x * index


def overwritten(x: Any) -> Any:
    doubled = x * 2
    x.add_(1)
    return doubled.sum(0), doubled.sum(1)


def strided(x: Any) -> Any:
    return (x * 2).as_strided((24, 24), (1, 24)) + 1


def multiplied(x: Any) -> Any:
    return (x * 2).relu() @ x


def large(x: Any) -> Any:
    for i in range(60):
        x = x * 1.5 + i
    return x.sum(0)


def viewed(x: Any) -> Any:
    turned = (x.relu() * 2).t()
    return turned.sum(0), turned.amax(1)


#: Programs with one value that a rule decides on, by that rule.
BY_RULE = {
    "cheap": (cheap, 1, "mul"),
    "heavy_operation": (heavy, 1, "exp"),
    "many_operations": (operations, 1, "add_29"),
    "many_reads": (reads, 6, "add_4"),
    "accumulated_reads": (accumulated, 16, "add_11"),
    "read_often": (pooled, 1, "add"),
    "reads_nothing": (counted, 1, "iota"),
    "output": (accumulated, 2, "relu"),
    "own": (cheap, 1, "sum_1"),
    "operand": (multiplied, 1, "relu"),
    "overwritten": (overwritten, 1, "mul"),
    "layout": (strided, 1, "mul"),
    "too_large": (large, 1, "add_32"),
}


@pytest.fixture
def captured(live: Any) -> Any:
    """Captures a program of square matrices."""

    def capture(function: Any, count: int = 1, device: str = "cpu") -> Any:
        generator = torch.Generator().manual_seed(count)
        values = [torch.randn(24, 24, generator=generator).to(device) for _ in range(count)]
        (graph,) = live.capture(live.UserProgram(function, tuple(values)))
        return graph

    return capture


def decided(graph: Any, wanted: Mapping[str, Verdict] | None = None) -> dict[str, InliningDecision]:
    """What became of each value, by node, under the given verdicts."""
    found: list[InliningDecision] = []
    with graph.context():
        graph.compile.survey(node_choices(wanted or {}), lambda live: found.extend(live.decisions))
    return {decision.node: decision for decision in found}


def test_rules_are_all_met() -> None:
    assert {*BY_RULE, "schedule"} == set(RULES)
    assert set(RULES) > OPTIONAL


@pytest.mark.parametrize("rule", BY_RULE)
def test_each_rule_is_recorded_and_can_be_overruled_or_not(captured: Any, rule: str) -> None:
    function, count, node = BY_RULE[rule]
    graph = captured(function, count)
    decision = decided(graph)[node]
    assert decision.rule == rule
    stored = rule not in ("cheap", "reads_nothing", "overwritten")
    assert decision.outcome == ("store" if stored else "inline")
    assert bool(decision.buffer) == stored
    other: Verdict = "inline" if decision.outcome == "store" else "store"
    if decision.alternative is None:
        with pytest.raises(PlanError, match=f"node '{node}' cannot be {other[:5]}") as refused:
            decided(graph, {node: other})
        assert RULES[decision.rule] in str(refused.value)
        return
    assert decision.alternative == other
    changed = decided(graph, {node: other})[node]
    assert (changed.outcome, changed.rule, changed.alternative) == (other, "schedule", None)


def test_decisions_say_what_is_computed_again(captured: Any) -> None:
    found = decided(captured(cheap))
    assert list(found) == ["mul", "sum_1", "add", "sum_2"]
    doubled = found["mul"]
    assert doubled.inlined_into == ("sum_1", "sum_2") and doubled.computed == 2
    assert (doubled.operator, doubled.kind) == ("aten.mul.Tensor", "pointwise")
    assert (doubled.bytes, doubled.read_bytes, doubled.reads) == (24 * 24 * 4, 24 * 24 * 4, 1)
    assert "mul" in doubled.operations and doubled.ops >= 2
    total = found["sum_2"]
    assert (total.kind, total.iterations, total.bytes) == ("reduction", 24 * 24, 24 * 4)
    assert total.ops > doubled.ops


def test_stored_values_are_nodes_and_inlined_ones_are_none(captured: Any) -> None:
    graph = captured(cheap)
    assert len(graph.survey().problem.nodes) == 2
    found: list[int] = []
    sets: list[dict[str, Verdict]] = [{}, {"mul": "store"}, {"mul": "store", "add": "store"}]
    for wanted in sets:
        with graph.context():
            graph.compile.survey(node_choices(wanted), lambda live: found.append(len(live.nodes)))
    assert found == [2, 3, 4]
    heavily = captured(heavy)
    assert decided(heavily)["exp"].outcome == "store"
    assert decided(heavily, {"exp": "inline"})["exp"].inlined_into == ("sum_1", "sum_2")


@pytest.mark.parametrize(
    ("function", "node", "verdict", "why"),
    [
        (cheap, "mull", "store", "the graph has no such node, nearest is 'mul'"),
        (cheap, "arg0_1", "store", "it is an input"),
        (viewed, "permute", "store", "it is a view of 'mul'"),
        (cheap, "sum_1", "store", "its operator always stores what it computes"),
        (cheap, "sum_1", "inline", "its operator always stores what it computes"),
        (multiplied, "mm", "store", "a library's"),
        (multiplied, "relu", "store", "a user needs it in memory, so it is stored anyway"),
        (accumulated, "relu", "inline", "it is an output of the graph, so it is stored"),
        (counted, "iota", "store", "it reads nothing"),
    ],
)
def test_what_cannot_be_is_refused(
    captured: Any, function: Any, node: str, verdict: Verdict, why: str
) -> None:
    graph = captured(function, 2 if function is accumulated else 1)
    for apply in (decided, lambda g, w: g.generate(Schedule(lowering=node_choices(w)))):
        with pytest.raises(PlanError) as refused:
            apply(graph, {node: verdict})
        assert f"node '{node}' cannot be" in str(refused.value) and why in str(refused.value)
    # Nothing is left behind that would decide on the next graph.
    assert inlining._active.get() is None and inlining._lowering.get() is None
    assert graph.generate(Schedule()).source == graph.stock.source


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ([Choice("node:mul", "keep")], "is no choice: 'keep'"),
        ([Choice("node:", "store")], "is no choice"),
        ([node_choice("mul", "store"), node_choice("mul", "inline")], "is decided twice"),
    ],
)
def test_choices_that_say_nothing_are_refused(captured: Any, choices: Any, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        captured(cheap).generate(Schedule(lowering=tuple(choices)))


def test_choices_about_nodes_are_data() -> None:
    choices = node_choices({"mul": "store", "add": "inline"})
    assert [choice.name for choice in choices] == ["node:add", "node:mul"]
    assert verdicts((Choice("inline_reads", 2), *choices)) == {"add": "inline", "mul": "store"}
    schedule = Schedule(lowering=choices)
    assert schedule.describe() == "node:add=inline, node:mul=store"
    ids = {Schedule(lowering=node_choices({"mul": v})).id for v in ("store", "inline")}
    assert len(ids | {schedule.id, Schedule().id}) == 4
    keys = {problem_key("g", Schedule(lowering=c).lowering) for c in ((), choices, choices[:1])}
    assert len(keys) == 3
    assert problem_key("g", choices) == problem_key("g", tuple(reversed(choices)))


def joined(x: Any, y: Any) -> Any:
    return torch.cat([x.relu()[:, :10], y[:, 2:].exp()], 1).flip(1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_part_of_a_concatenation_can_be_stored(captured: Any, device: str) -> None:
    """By itself or with the others: Inductor would compute both parts where they are joined, and on
    a CPU wants all of them in memory once one of them is."""
    graph = captured(joined, 2, device)
    first = decided(graph)
    if device == "cuda":
        assert first["relu"].alternative == first["exp"].alternative == "store"
    wanted: list[dict[str, Verdict]] = [{"relu": "store"}, {"relu": "store", "exp": "store"}]
    for asked in wanted:
        found = decided(graph, asked)
        for node in asked:
            assert (found[node].rule, found[node].outcome) == ("schedule", "store")
        alone = "inline" if device == "cuda" else "store"
        assert found["exp"].outcome == ("store" if "exp" in asked else alone)
        program = graph.generate(Schedule(lowering=node_choices(asked)))
        torch.testing.assert_close(graph.run(program)[0], graph.eager()[0])


def test_every_alternative_of_every_graph_holds(graph: Any) -> None:
    first = decided(graph)
    every = {d.node: d.alternative for d in first.values() if d.alternative is not None}
    wanted = _jointly(graph, every)
    changed = decided(graph, wanted)
    assert list(changed) == [node for node in first if node in wanted or node in changed]
    assert {node: changed[node].outcome for node in wanted} == wanted
    # What cannot be beside the rest can be by itself, and nothing of it was left out for nothing.
    for node in every.keys() - wanted.keys():
        assert decided(graph, {node: every[node]})[node].outcome == every[node]
        with pytest.raises(PlanError, match=f"node '{node}' cannot be"):
            decided(graph, {**wanted, node: every[node]})
        if node not in changed:
            # A concatenation whose parts are stored is no value to decide on any more.
            assert node.startswith("cat")
            continue
        assert changed[node].outcome == "store" and changed[node].rule not in OPTIONAL


def _jointly(graph: Any, wanted: dict[str, Verdict]) -> dict[str, Verdict]:
    """``wanted`` less what cannot be beside the rest: parts of a concatenation, for example."""
    left = dict(wanted)
    while True:
        try:
            decided(graph, left)
        except PlanError as error:
            (name,) = re.findall(r"node '(\w+)' cannot be", str(error))
            del left[name]
        else:
            assert left or not wanted
            return left


@pytest.mark.parametrize(
    "name",
    [
        "cross_entropy",
        "mutation",
        "dynamic",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("softmax", "adam_step", "layouts")
        ),
    ],
)
def test_results_are_those_of_eager_whatever_is_decided(live: Any, device: str, name: str) -> None:
    generator = random.Random(name)
    for graph in live.captured(name, device):
        first = decided(graph)
        wanted = {
            d.node: d.alternative
            for d in first.values()
            if d.alternative is not None and generator.random() < 0.6
        }
        wanted = _jointly(graph, wanted)
        program = graph.generate(Schedule(lowering=node_choices(wanted)))
        # The memory of what a forward graph has saved is used again by the backward one.
        count = len(graph.eager()) - (len(graph.inputs) if graph.kind == "backward" else 0)
        live.difference(graph.run(program)[:count], graph.eager()[:count])
        assert not wanted or program.code_hash != graph.stock.code_hash


def test_recording_changes_no_code(captured: Any) -> None:
    graph = captured(reads, 6)
    before = graph.generate(Schedule()).source
    decided(graph)
    assert graph.generate(Schedule()).source == before
    # Saying what Inductor decides anyway gives its code.
    said = {
        d.node: d.outcome
        for d in decided(graph).values()
        if d.optional and d.rule != "reads_nothing"
    }
    assert said["add_4"] == "store" and "inline" in said.values()
    again = graph.generate(Schedule(lowering=node_choices(said)))
    assert again.code_hash == graph.stock.code_hash
