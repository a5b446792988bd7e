"""Rules on real graphs: in every mode, at lowering, where fusewise steps back; told and kept."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusewise
from fusewise.compiler import graph_way, pipeline, ruled
from fusewise.compiler.inductor.combos import parted
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.notices import FusewiseWarning
from fusewise.compiler.reports import GraphReport
from fusewise.datasets.rows import decode_problem
from fusewise.datasets.store import Store
from fusewise.schedule import rules
from fusewise.schedule.plan import Plan
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.problem import Problem
from fusewise.schedule.rules import RuleSet, rule_set, select
from fusewise.schedule.schedule import Choice, Schedule
from fusewise.search.rules import Rulings

Compiled = Callable[..., tuple[list[GraphReport], list[str]]]


def softmax_and_tanh(x: Any, y: Any) -> Any:
    return torch.softmax(x * 2 + y, -1), (x - y).tanh().sum(0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block()])

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def compiled(store: Path, live: Any) -> Compiled:
    """Compile and run a program under rules; results are those of eager. Reports and warnings."""

    def compile_with(
        given: Any, function: Any = softmax_and_tanh, args: Any = None, **options: Any
    ) -> tuple[list[GraphReport], list[str]]:
        torch._dynamo.reset()
        known = len(fusewise.reports())
        ours = {"mode": "predict", "store": store, "rules": given} | options
        args = args or (torch.randn(24, 30), torch.randn(24, 30))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = torch.compile(
                function, backend="fusewise", options={f"fusewise.{k}": v for k, v in ours.items()}
            )(*args)
            if isinstance(got, torch.Tensor) and got.requires_grad:
                got.sum().backward()
        wanted = function(*args)
        live.difference(*([v] if isinstance(v, torch.Tensor) else list(v) for v in (got, wanted)))
        warned = [str(w.message) for w in told if issubclass(w.category, FusewiseWarning)]
        return fusewise.reports()[known:], warned

    return compile_with


def stored_problem(store: Path, report: GraphReport) -> Problem:
    with Store.open(store) as opened:
        graph = opened.graph(report.key)
    assert graph is not None and graph.problem is not None
    return decode_problem(graph.problem)


def operators(problem: Problem, group: Sequence[str]) -> set[str]:
    """Operators that a group computes, without their overloads."""
    nodes = [problem.node_by_name[name] for name in group]
    return {origin.rpartition(".")[0] for node in nodes for origin in node.origins}


def groups_of(store: Path, report: GraphReport) -> list[set[str]]:
    assert report.chosen is not None and report.chosen.schedule.plan is not None
    problem = stored_problem(store, report)
    return [operators(problem, group) for group in report.chosen.schedule.plan.groups]


NEVER = rules.never("aten.exp", "aten.sum")


def chosen_groups(live: Any, report: GraphReport, args: Any) -> tuple[Problem, list[set[str]]]:
    """The nodes that the chosen schedule is of, and the operators of each of its groups."""
    assert report.chosen is not None and report.chosen.schedule.plan is not None
    schedule = report.chosen.schedule
    (graph,) = live.capture(live.UserProgram(softmax_and_tanh, args))
    found: list[Problem] = []

    def look(seen: LiveGraph) -> None:
        found.append(extract_problem(seen.scheduler, seen.nodes, key="", kind="inference"))

    with graph.context():
        graph.compile.survey((*schedule.lowering, *schedule.codegen), look)
    (problem,) = found
    assert schedule.plan is not None
    return problem, [operators(problem, group) for group in schedule.plan.groups]


def test_never_holds_in_every_mode(compiled: Compiled, store: Path, live: Any) -> None:
    keys = set()
    args = (torch.randn(24, 30), torch.randn(24, 30))
    for mode in ("predict", "measure"):
        (report,), warned = compiled(NEVER, mode=mode, top_k=1, budget_s=3)
        assert warned == [] and report.fallback is None
        assert report.default is not None and report.default.origin == "rules"
        for candidate in report.candidates:
            assert candidate.schedule.plan is not None
        keys.add(report.key)
        assert report.chosen is not None
        problem, found = chosen_groups(live, report, args)
        assert any("aten.exp" in group for group in found)
        assert not any({"aten.exp", "aten.sum"} <= group for group in found)
    assert len(keys) == 1
    (again,), warned = compiled(NEVER, mode="replay")
    assert warned == [] and (again.source, again.chosen) == ("store", report.chosen)
    # What is told of the rules is told of the nodes of the schedule that is replayed.
    assert again.rules is not None and report.rules is not None
    computing = [operators(problem, [node.name]) for node in problem.nodes]
    concerned = sum(bool({"aten.exp", "aten.sum"} & found) for found in computing)
    (told,), (before,) = again.rules.rules, report.rules.rules
    assert (told.rule, told.nodes, told.matched) == (before.rule, concerned, True)
    assert (again.rules.conflicts, again.rules.unkept) == ((), ())
    # Without the rule, or under another, it is another graph.
    (free,), _ = compiled(None)
    assert free.key != report.key and free.source == "predicted" and free.rules is None
    assert any({"aten.exp", "aten.sum"} <= group for group in groups_of(store, free))
    (other,), _ = compiled([NEVER, rules.alone("aten.tanh")])
    assert other.key not in keys | {free.key}


def test_every_candidate_keeps_the_rules(compiled: Compiled, store: Path) -> None:
    given = rule_set([NEVER, rules.at_most(nodes=3), rules.always("aten.amax", "aten.exp")])
    (report,), _ = compiled(given)
    problem = stored_problem(store, report)
    rulings = Rulings(problem, given)
    assert report.rules is not None and report.rules.unmatched == ()
    own = [c for c in report.candidates if not any(x.of_part is False for x in c.schedule.lowering)]
    assert own
    for candidate in own:
        assert candidate.schedule.plan is not None
        assert list(rulings.violations(candidate.schedule.plan)) == []


def test_rules_that_change_nothing_leave_the_default(compiled: Compiled) -> None:
    (report,), warned = compiled([rules.alone("aten.sinh"), rules.store(select(module="layers.7"))])
    assert report.default is not None and report.default.origin == "default"
    assert report.rules is not None
    told = ("rule 1: keep aten.sinh alone", "rule 2: store in layers.7")
    assert report.rules.unmatched == told
    assert len(warned) == 2
    assert warned[0].startswith(f"fusewise: {told[0]} matched nothing; the nearest op is 'aten.")
    assert warned[1] == f"fusewise: {told[1]} matched nothing"
    _, warned = compiled([rules.alone("aten.sinh"), rules.store(select(module="layers.7"))])
    assert warned == []


def test_what_the_lowering_would_put_together_is_kept_apart(
    compiled: Compiled, store: Path
) -> None:
    """Inductor inlines the tanh into the sum, so no partition of nodes could part them."""
    (free,), _ = compiled(None)
    assert any(
        {"aten.tanh", "aten.sum"} <= operators(problem, [node.name])
        for problem in (stored_problem(store, free),)
        for node in problem.nodes
    )
    (report,), _ = compiled(rules.never("aten.tanh", "aten.sum"))
    assert Choice("node:tanh", "store") in report.chosen.schedule.lowering  # type: ignore[union-attr]
    assert report.rules is not None and report.rules.unkept == ()
    assert not any({"aten.tanh", "aten.sum"} <= group for group in groups_of(store, report))


def test_alone_is_a_kernel_that_computes_nothing_else(compiled: Compiled, store: Path) -> None:
    (report,), _ = compiled(rules.alone("aten.tanh"))
    assert {"aten.tanh"} in groups_of(store, report)
    assert report.rules is not None and report.rules.unkept == ()


def test_store_and_inline(compiled: Compiled, store: Path) -> None:
    (stored,), _ = compiled(rules.store("aten.tanh"))
    assert stored.chosen is not None
    assert stored.chosen.schedule.lowering == (Choice("node:tanh", "store"),)
    (inlined,), _ = compiled(rules.inline("aten.exp"))
    assert inlined.rules is not None and inlined.chosen is not None
    assert inlined.rules.rules[0].nodes == 1 and inlined.rules.unkept == ()
    holding = [n for n in stored_problem(store, inlined).nodes if "exp" in n.fx_names]
    assert len(holding) == 2
    # The later of two rules on one operation decides, and what cannot be is told.
    (both,), _ = compiled([rules.inline("aten.*"), rules.store("aten.exp")])
    assert both.rules is not None and both.chosen is not None
    assert Choice("node:exp", "store") in both.chosen.schedule.lowering
    assert both.rules.conflicts == (
        "rule 2: store aten.exp goes before rule 1: inline aten.* on 1 operations",
    )
    assert any(
        text.startswith("rule 1: inline aten.*: ") and "output" in text
        for text in both.rules.unkept
    )


def test_a_rule_that_inlines_stands_in_the_way(compiled: Compiled) -> None:
    (report,), _ = compiled([rules.inline("aten.exp"), NEVER])
    assert report.rules is not None and report.rules.unkept == ()
    (conflict,) = report.rules.conflicts
    assert conflict.startswith("rule 2: never fuse aten.exp with aten.sum: op")
    assert conflict.endswith(" computes both exp and sum_1, by rule 1: inline aten.exp")


def test_modules_and_lines_forward_and_backward(compiled: Compiled, store: Path) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(16, 24)
    given = [rules.never(select(module="layers.*.norm"), select(module="layers.*.mlp"))]
    reports, warned = compiled(given, model, (x,))
    assert [report.kind for report in reports] == ["forward", "backward"] and warned == []
    for report in reports:
        problem = stored_problem(store, report)
        assert report.rules is not None and report.rules.rules[0].matched
        assert report.chosen is not None and report.chosen.schedule.plan is not None
        for group in report.chosen.schedule.plan.groups:
            inside = {
                path
                for name in group
                for path in problem.node_by_name[name].modules
                if path.startswith("layers.")
            }
            kinds = {path.split(".")[2] for path in inside if path.count(".") > 1}
            assert len(kinds) <= 1
    file = Path(__file__).name
    line = softmax_and_tanh.__code__.co_firstlineno + 1
    (report,), warned = compiled(rules.alone(select(source=f"{file}:{line}", op="aten.tanh")))
    assert warned == [] and {"aten.tanh"} in groups_of(store, report)
    _, warned = compiled(rules.alone(select(source=f"{file}:{line + 500}")))
    assert len(warned) == 1


def test_a_predicate_and_a_demand(compiled: Compiled, store: Path) -> None:
    (report,), _ = compiled(rules.alone(select(where=lambda node: node.kind == "reduction")))
    problem = stored_problem(store, report)
    assert report.chosen is not None and report.chosen.schedule.plan is not None
    for group in report.chosen.schedule.plan.groups:
        if any(problem.node_by_name[name].kind == "reduction" for name in group):
            assert len(group) == 1
    (apart,), _ = compiled(
        [rules.alone(select(where=lambda _: True)), rules.always("aten.amax", "aten.exp")]
    )
    assert apart.rules is not None and apart.rules.conflicts
    assert (
        "rule 2: always fuse aten.amax with aten.exp goes before rule 1"
        in (apart.rules.conflicts[0])
    )
    found = groups_of(store, apart)
    assert any({"aten.amax", "aten.exp"} <= group for group in found)


def test_a_plan_file_of_other_rules_is_refused_and_the_rules_hold(
    compiled: Compiled, store: Path, tmp_path: Path
) -> None:
    (found,), _ = compiled(NEVER)
    assert found.chosen is not None
    with Store.open(store) as opened:
        graph = opened.graph(found.key)
    assert graph is not None
    path = tmp_path / "plan.json"
    planned = PlannedGraph(
        kind="inference", key_parts=graph.parts, device="cpu", schedule=found.chosen.schedule
    )
    write_plan_file(path, PlanFile(fusewise="", torch="", graphs=(planned,)))
    (same,), warned = compiled(NEVER, mode="replay", plan=path)
    assert (same.source, warned) == ("plan file", [])
    assert same.chosen is not None and same.chosen.schedule == found.chosen.schedule
    (without,), warned = compiled(None, mode="replay", plan=path)
    assert without.mismatch == ("rules",)
    assert len(warned) == 1 and "differs in rules" in warned[0]
    other = rules.never("aten.tanh", "aten.sub")
    (under,), warned = compiled(other, mode="replay", plan=path)
    # The same was told just now.
    assert under.mismatch == ("rules",) and warned == []
    assert under.chosen is not None and under.chosen.origin == "rules"
    assert under.rules is not None and under.rules.rules[0].matched


def test_a_predicate_that_changed_its_mind_is_found_out(compiled: Compiled, store: Path) -> None:
    """What it looks at beside its own code is in no key, so a stored plan is checked."""
    limits = {"kind": "scan"}

    def apart(node: Any) -> bool:
        return bool(node.kind == limits["kind"])

    # A dictionary that is closed over is in the key, so it is put where the key does not reach.
    apart.__globals__["_limits"] = limits
    source = "lambda node: node.kind == _limits['kind']"
    given = rules.alone(select(where=eval(source, apart.__globals__)))
    (first,), _ = compiled(given)
    limits["kind"] = "reduction"
    (second,), _ = compiled(given)
    assert second.key == first.key and second.source == "predicted"
    (third,), _ = compiled(given)
    assert third.source == "store" and third.chosen == second.chosen


@pytest.mark.parametrize(
    "broken",
    [
        {"fusewise.store": "/proc/none/store.duckdb"},
        {"fusewise.top_k": "many"},
        {"fusewise.mode": "replay"},
    ],
    ids=["no store", "bad option", "nothing to replay"],
)
def test_rules_hold_where_fusewise_steps_back(
    compiled: Compiled, broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[Plan | None] = []
    original = ruled.Applier

    class Watching(original):  # type: ignore[misc, valid-type]
        def __init__(self, plan: Plan | None) -> None:
            applied.append(plan)
            super().__init__(plan)

    monkeypatch.setattr(ruled, "Applier", Watching)
    options = {name.removeprefix("fusewise."): value for name, value in broken.items()}
    reports, warned = compiled(rules.alone("aten.tanh"), **options)
    report = reports[-1]
    assert len(warned) == 1
    assert report.chosen is not None and report.chosen.origin == "rules"
    assert applied == [report.chosen.schedule.plan]
    assert report.rules is not None and report.rules.rules[0].matched
    assert Choice("node:tanh", "store") in report.chosen.schedule.lowering


def test_rules_that_cannot_be_kept_at_all_are_named(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(graph_way, "lower_by_rules", failing)
    monkeypatch.setattr(pipeline, "compile_by_rules", failing)
    (report,), warned = compiled(NEVER)
    assert report.fallback == "out of luck"
    assert warned == [
        "fusewise leaves this to Inductor: out of luck",
        f"fusewise: not kept in the inference graph: rule 1: {NEVER.describe()}: out of luck",
    ]


def test_a_rule_file_as_an_option(compiled: Compiled, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\naction = "alone"\nop = "aten.tanh"\n')
    (from_file,), warned = compiled(path)
    assert warned == []
    (in_python,), _ = compiled([rules.alone("aten.tanh")])
    assert from_file.key == in_python.key and in_python.source == "store"
    path.write_text('[[rules]]\naction = "alone"\nops = "aten.tanh"\n')
    _, warned = compiled(path)
    assert len(warned) == 1
    assert (
        f"rule file {path}: rules[0].ops: there is no such field; the nearest is 'op'"
        in (warned[0])
    )
    for wrong in ("never", 3, [3]):
        _, warned = compiled(wrong)
        assert len(warned) == 1


def test_nodes_for_one_launch_are_parted_by_rules() -> None:
    def permits(mask: int) -> bool:
        return mask & 0b101 != 0b101 and mask.bit_count() <= 3

    assert parted([0, 1, 2, 3, 4], lambda node: 1 << node, permits) == [[0, 1, 3], [2, 4]]
    assert parted([], lambda node: 1 << node, permits) == []


@pytest.mark.gpu
def test_combo_kernels_keep_rules(live: Any) -> None:
    def four(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a.sin(), b.cos(), c.tanh(), d.exp()

    args = tuple(torch.randn(1000, device="cuda") for _ in range(4))
    (graph,) = live.capture(live.UserProgram(four, args))
    combining = {"combo_kernels": True, "benchmark_combo_kernel": False}

    def kernels(given: RuleSet | None) -> list[set[str]]:
        compile = dataclasses.replace(graph.compile, inductor_options=combining, rules=given)
        with graph.context():
            source = compile.generate(Schedule()).source
        found = [set(re.findall(r"\b(sin|cos|tanh|exp)\(", k)) for k in source.split("@triton.jit")]
        return found[1:]

    assert any({"sin", "cos"} <= kernel for kernel in kernels(None))
    ruled = kernels(rule_set(rules.never("aten.sin", "aten.cos")))
    assert not any({"sin", "cos"} <= kernel for kernel in ruled)
    assert any(len(kernel) > 1 for kernel in ruled)
