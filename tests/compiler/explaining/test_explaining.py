"""Explanations add up, say why, and find what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch._logging
from torch import nn

import fusewise
from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.explaining.report import ExplainedGraph
from fusewise.compiler.inductor.refusals import Refusal
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.target import trains
from fusewise.schedule.errors import PlanError
from fusewise.schedule.rules import at_most, never, rule_set
from fusewise.schedule.rules import store as stored

#: A function or module, and what it is called with.
Program = tuple[Callable[..., Any], tuple[Any, ...]]


class _Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.norm(x + y).softmax(-1)
        z = self.linear(h).relu()
        return (z * h).sum(0) + y.mean(0), z.exp().t().contiguous()


def _norms(*, training: bool) -> Program:
    return _Norms().train(training), (torch.randn(32, 64), torch.randn(32, 64))


#: The program that most explanations here are of, by itself and trained.
NORMS: dict[str, Callable[[], Program]] = {
    "norms": lambda: _norms(training=False),
    "norms-training": lambda: _norms(training=True),
}


def sample_of(name: str, make: Callable[[], Program]) -> GraphSample:
    """What ``make`` makes, with the same numbers each time."""
    torch.manual_seed(0)
    module, args = make()
    return GraphSample(
        name=name, family=name, module=module, args=args, kwargs={}, training=trains(module)
    )


def _sample(name: str) -> GraphSample:
    return sample_of(name, NORMS[name])


# What is said of each.


@pytest.fixture(scope="module")
def norms(store: Path) -> ExplainedGraph:
    """The explanation of a small inference graph."""
    (graph,) = explain_program(_sample("norms"), Wish(store=store)).graphs
    return graph


def test_every_pair_has_a_reason_or_was_taken(norms: ExplainedGraph) -> None:
    groups = [set(group.nodes) for group in norms.default_groups]
    for fusion in norms.possible_fusions:
        assert bool(fusion.reason) != fusion.taken, fusion
        assert not fusion.reason or Refusal(fusion.reason) is not Refusal.OTHER
        nodes = {*fusion.a_nodes, *fusion.b_nodes}
        assert fusion.together == any(nodes <= group for group in groups)
        assert fusion.legal or not fusion.taken
        assert fusion.predicted_gain_low_us <= fusion.predicted_gain_us
        assert fusion.predicted_gain_us <= fusion.predicted_gain_high_us
        assert fusion.inductor_score is not None
        assert len(fusion.inductor_score) == len(norms.score_parts)
    blocked = [f for f in norms.possible_fusions if f.reason == Refusal.ALREADY_TOGETHER]
    assert blocked and all(f.blocked_by and f.together for f in blocked)


def test_groups_add_up_and_have_kernels(norms: ExplainedGraph) -> None:
    total = sum(group.predicted_us for group in norms.groups)
    assert total + norms.plan.around_us == pytest.approx(norms.plan.predicted_us)
    around = sum(group.around_us for group in norms.groups)
    # The graph adds its own to that of its groups.
    assert norms.plan.around_us > 0.999 * around > 0.0
    assert {n for g in norms.groups for n in g.nodes} == {n.name for n in norms.nodes}
    generated = [group for group in norms.groups if group.bound_by != "library"]
    assert all(group.kernel for group in generated)
    assert len({group.kernel for group in generated}) == len(generated)
    assert [g.kernel for g in norms.groups if g.bound_by == "library"] == [""]
    for group in norms.groups:
        assert group.measured_us is None
        assert Path(__file__).name in group.source
        assert group.bytes_read > 0 and group.bytes_written > 0
        assert group.predicted_low_us <= group.predicted_us <= group.predicted_high_us


def test_inlining_is_told(norms: ExplainedGraph) -> None:
    several = [d for d in norms.inlining if d.outcome == "inline" and len(d.inlined_into) > 1]
    assert [d.operator for d in several if "relu" in d.operator] == ["aten.relu.default"]


def test_json_has_the_keys_that_are_promised(norms: ExplainedGraph) -> None:
    told = msgspec.json.decode(msgspec.json.encode(norms))
    assert {"nodes", "possible_fusions", "groups"} <= set(told)
    wanted = {"a", "b", "inductor_score", "predicted_gain_us", "legal", "reason", "taken"}
    assert all(wanted <= set(fusion) for fusion in told["possible_fusions"])
    wanted = {"nodes", "predicted_us", "measured_us", "kernel", "source"}
    assert all(wanted <= set(group) for group in told["groups"])


@pytest.mark.parametrize("predicted", [False, True])
def test_rewrites_are_told_by_stage(store: Path, predicted: bool) -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.double().float().relu() @ w + torch.full((9,), 2.0)

    sample = GraphSample(
        name="rewritten",
        family="rewritten",
        module=call,
        args=(torch.randn(9, 9), torch.randn(9, 9)),
        kwargs={},
        training=False,
    )
    (graph,) = explain_program(sample, Wish(store=store, predicted=predicted)).graphs
    stages = [rewrite.stage for rewrite in graph.rewrites if not rewrite.name]
    assert stages == ["pre-grad", "joint", "post-grad"]
    (joined,) = [r for r in graph.rewrites if r.name and "addmm.default" in r.added]
    assert joined.stage == "post-grad"
    assert joined.removed == {"add.Tensor": 1, "mm.default": 1}
    for rewrite in graph.rewrites:
        change = sum(rewrite.added.values()) - sum(rewrite.removed.values())
        assert rewrite.nodes_after - rewrite.nodes_before == change


def test_a_rule_is_the_reason(norms: ExplainedGraph, store: Path) -> None:
    wish = Wish(store=store, rules=rule_set(at_most(nodes=2)))
    (graph,) = explain_program(_sample("norms"), wish).graphs
    assert graph.plan.origin == "rules" and graph.rules is not None
    assert max(len(group.nodes) for group in graph.groups) == 2
    assert graph.default_groups == norms.default_groups
    large = [f for f in graph.possible_fusions if len(f.a_nodes) + len(f.b_nodes) > 2]
    assert large and {(f.reason, f.taken) for f in large} == {("rule", False)}
    small = [f for f in graph.possible_fusions if len(f.a_nodes) + len(f.b_nodes) == 2]
    assert any(f.together_chosen for f in small)
    for fusion in small:
        # Allowed by itself: the rule keeps it apart where the sides are in kernels with others.
        assert (fusion.reason == "rule") <= (not fusion.together_chosen), fusion
        assert (fusion.reason != "rule") or fusion.blocked_by, fusion
    later = [f for f in graph.possible_fusions if f.reason == Refusal.ALREADY_TOGETHER]
    assert all(f.together_chosen for f in later)
    before = {(f.a, f.b) for f in norms.possible_fusions if f.reason == Refusal.ALREADY_TOGETHER}
    assert before & {(f.a, f.b) for f in small if f.reason == "rule"}


def test_a_group_that_a_rule_forbids_is_not_fused_with_a_third(store: Path) -> None:
    sample = GraphSample(
        name="softmax",
        family="softmax",
        module=lambda x: x.softmax(-1),
        args=(torch.randn(32, 64),),
        kwargs={},
        training=False,
    )
    wish = Wish(store=store, rules=rule_set(never("aten.exp", "aten.sum")))
    (graph,) = explain_program(sample, wish).graphs
    by_name = {node.name: {op.split(".")[1] for op in node.operators} for node in graph.nodes}
    wide = [f for f in graph.possible_fusions if len(f.a_nodes) + len(f.b_nodes) > 2]
    parted = [
        f
        for f in wide
        if {"exp", "sum"} <= set().union(*(by_name[n] for n in (*f.a_nodes, *f.b_nodes)))
    ]
    assert parted and {(f.reason, f.taken) for f in parted} == {("rule", False)}
    assert all("never fuse aten.exp with aten.sum" in f.detail for f in parted)


# One fusion.


def _why(store: Path, a: str, b: str, name: str = "norms") -> ExplainedGraph:
    (graph,) = explain_program(_sample(name), Wish(store=store, why=Question(a, b))).graphs
    return graph


def test_a_fusion_removed(norms: ExplainedGraph, store: Path) -> None:
    group = max(norms.groups, key=lambda g: len(g.nodes)).nodes
    graph = _why(store, group[0], group[-1])
    why = graph.why
    assert why is not None and why.change == "removed" and why.legal
    assert [side.nodes for side in why.before] == [group]
    assert sorted(n for side in why.after for n in side.nodes) == sorted(group)
    assert len(why.after) > 1
    before, after = (
        sum(side.predicted_us + side.around_us for side in sides)
        for sides in (why.before, why.after)
    )
    assert why.predicted_gain_us == pytest.approx(before - after)
    now, then = why.predicted_us, why.predicted_changed_us
    assert now - then == pytest.approx(why.predicted_gain_us)


def test_a_fusion_that_is_refused(norms: ExplainedGraph, store: Path) -> None:
    refused = next(f for f in norms.possible_fusions if not f.legal and not f.together)
    why = _why(store, refused.a, refused.b).why
    assert why is not None and why.change == "added" and not why.legal
    assert why.reason and why.fusion is not None and why.fusion.reason == refused.reason


@pytest.mark.parametrize(
    ("a", "b", "telling"),
    [
        ("op0", "op999", "op999"),
        ("op0", "op0", "with itself"),
        ("op0", "op8", "never looks at"),
    ],
)
def test_a_fusion_that_does_not_exist(store: Path, a: str, b: str, telling: str) -> None:
    with pytest.raises(PlanError, match=telling):
        _why(store, a, b)


def test_a_group_is_named_in_several_ways(norms: ExplainedGraph, store: Path) -> None:
    pair = next(f for f in norms.possible_fusions if f.taken and len(f.b_nodes) > 1)
    plus = _why(store, "+".join(pair.a_nodes), "+".join(pair.b_nodes)).why
    assert plus is not None and plus.fusion is not None
    assert (plus.fusion.a, plus.fusion.b) == (pair.a, pair.b)


@pytest.mark.slow
def test_measured_kernels_and_counterfactual(norms: ExplainedGraph, store: Path) -> None:
    group = max(norms.groups, key=lambda g: len(g.nodes)).nodes
    wish = Wish(store=store, measure=True, why=Question(group[0], group[-1]))
    (graph,) = explain_program(_sample("norms"), wish).graphs
    assert graph.not_measured == ""
    assert all(g.measured_us is not None and g.measured_us > 0 for g in graph.groups)
    assert graph.plan.measured_us == pytest.approx(sum(g.measured_us or 0 for g in graph.groups))
    why = graph.why
    assert why is not None and why.measured_us and why.measured_changed_us, why
    assert why.measured_interval is not None
    assert why.measured_interval[0] <= why.measured_us <= why.measured_interval[1]


def test_only_one_kind_of_graph(store: Path) -> None:
    def sample() -> GraphSample:
        return sample_of("trained", lambda: (nn.LayerNorm(9).train(), (torch.randn(4, 9),)))

    explained = explain_program(sample(), Wish(store=store, kinds=("backward",)))
    assert [graph.kind for graph in explained.graphs] == ["backward"]
    with pytest.raises(PlanError, match="no inference graph"):
        explain_program(sample(), Wish(store=store, kinds=("inference",)))


# The chosen schedule, and what it was chosen among.


def test_without_a_choice_there_is_inductors_own(norms: ExplainedGraph) -> None:
    (candidate,) = norms.candidates
    assert candidate.default and candidate.chosen and not candidate.own_groups
    assert candidate.predicted_us == pytest.approx(norms.default_plan.predicted_us)
    assert norms.plan == norms.default_plan


def test_the_plan_that_is_predicted_to_be_best(norms: ExplainedGraph, store: Path) -> None:
    (graph,) = explain_program(_sample("norms"), Wish(store=store, predicted=True)).graphs
    own = {group.nodes for group in norms.groups}
    assert graph.default_groups == norms.default_groups
    assert len(graph.candidates) > 2
    first = graph.candidates[0]
    assert first.default and first.predicted_us == pytest.approx(norms.plan.predicted_us)
    (chosen,) = [c for c in graph.candidates if c.chosen]
    times = [c.predicted_us for c in graph.candidates if c.predicted_us is not None]
    assert graph.plan.predicted_us == pytest.approx(min(times)) == chosen.predicted_us
    for candidate in graph.candidates:
        assert not {frozenset(g) for g in candidate.own_groups} & {frozenset(g) for g in own}


def test_a_stored_decision_brings_its_candidates(
    tmp_path: Path, profiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path))
    (tmp_path / "devices").symlink_to(profiled)
    sample = _sample("norms")
    torch._dynamo.reset()
    options = {"fusewise.mode": "predict"}
    with torch.no_grad():
        torch.compile(sample.module, backend="fusewise", options=options)(*sample.args)
    report = fusewise.reports()[-1]
    assert report.fallback is None
    wish = Wish(store=tmp_path / "store.duckdb")
    (graph,) = explain_program(_sample("norms"), wish).graphs
    assert {c.schedule for c in graph.candidates} == {c.schedule.id for c in report.candidates}
    (chosen,) = [c for c in graph.candidates if c.chosen]
    assert report.chosen is not None and chosen.schedule == report.chosen.schedule.id


def test_under_rules_both_plans_are_candidates(store: Path) -> None:
    wish = Wish(store=store, rules=rule_set(at_most(nodes=2)))
    (graph,) = explain_program(_sample("norms"), wish).graphs
    own, ruled = graph.candidates
    assert (own.default, own.chosen, ruled.default, ruled.chosen) == (True, False, False, True)
    assert ruled.predicted_us == pytest.approx(graph.plan.predicted_us)
    assert {g.nodes for g in graph.groups} >= set(ruled.own_groups)
    assert ruled.own_groups


@pytest.mark.slow
def test_candidates_are_timed(store: Path) -> None:
    wish = Wish(store=store, rules=rule_set(at_most(nodes=1)), measure=True)
    (graph,) = explain_program(_sample("norms"), wish).graphs
    assert graph.not_measured == ""
    assert len(graph.candidates) == 2
    for candidate in graph.candidates:
        assert candidate.status == "measured" and candidate.measured_us and candidate.rounds


def test_nodes_of_another_lowering_come_with_their_edges(store: Path) -> None:
    wish = Wish(store=store, rules=rule_set(stored("aten.add")))
    (graph,) = explain_program(_sample("norms"), wish).graphs
    assert graph.plan.origin == "rules" and len(graph.chosen_nodes) > len(graph.nodes)
    names = {node.name for node in graph.chosen_nodes}
    assert graph.chosen_edges
    assert all({edge.producer, edge.consumer} <= names for edge in graph.chosen_edges)
    assert all(not candidate.own_groups for candidate in graph.candidates)
