"""Explanations hold against Inductor's own log, and add up."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch._logging
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.explaining.report import ExplainedGraph
from fusewise.compiler.inductor.refusals import Refusal
from fusewise.datasets.corpora import on_device
from fusewise.datasets.corpus import GraphSample, scalar_loss
from fusewise.datasets.target import trains
from fusewise.schedule.errors import PlanError
from fusewise.schedule.rules import at_most, rule_set

_CANNOT = re.compile(r"cannot fuse (\S+) with (\S+): (.*)")
_FUSING = re.compile(r"^fusing (\S+) with (\S+)$")
_FOUND = re.compile(r"found (\d+) possible fusions")
_FIRST = "attempting fusion (1/10)"
#: Grounds that Inductor has no words for.
_WORDLESS = {
    Refusal.CODE_GENERATOR,
    Refusal.LOOP_SIZES,
    Refusal.TOO_MANY_NODES,
    Refusal.EXTERN,
    Refusal.TEMPLATE,
    Refusal.STREAM,
    Refusal.MIXED_REDUCTIONS,
}


class _Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.norm(x + y).softmax(-1)
        z = self.linear(h).relu()
        return (z * h).sum(0) + y.mean(0), z.exp().t().contiguous()


def _norms(*, training: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return _Norms().train(training), (torch.randn(32, 64), torch.randn(32, 64))


def _diamond() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Several ways to fuse, some of which close a cycle through a library call."""

    def call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.sin()
        b = a @ w
        c = a + b.cos()
        return c, a.sum(1), (x * 2).sum(1), c.amax(0)

    return call, (torch.randn(48, 48), torch.randn(48, 48))


def _indexed() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def call(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gathered = x[i] * 2
        summed = torch.zeros_like(x).index_add_(0, i, gathered)
        joined = torch.cat([summed, x.flip(0)])
        return joined.exp(), (joined[1:] - joined[:-1]).abs().mean(), x.cumsum(0)

    return call, (torch.randn(40, 16), torch.randint(0, 40, (25,)))


def _foreach() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def call(parameters: list[torch.Tensor], steps: list[torch.Tensor]) -> list[torch.Tensor]:
        scaled = torch._foreach_mul(steps, 0.1)
        return torch._foreach_add(torch._foreach_mul(parameters, 0.9), scaled)

    sizes = [(16, 16), (64,), (8, 24)]
    return call, ([torch.randn(s) for s in sizes], [torch.randn(s) for s in sizes])


_PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "norms": lambda: _norms(training=False),
    "norms-training": lambda: _norms(training=True),
    "diamond": _diamond,
    "indexed": _indexed,
    "foreach": _foreach,
}


def _sample(name: str) -> GraphSample:
    torch.manual_seed(0)
    module, args = _PROGRAMS[name]()
    return GraphSample(
        name=name, family=name, module=module, args=args, kwargs={}, training=trains(module)
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store beside which the profile of the device is made once."""
    return tmp_path_factory.mktemp("home") / "store.duckdb"


# Against the log.


@dataclass
class _Log:
    """What Inductor's log says of one graph."""

    refused: set[tuple[str, str, str]] = field(default_factory=set)
    fused: list[tuple[str, str]] = field(default_factory=list)
    found: list[int] = field(default_factory=list)


@contextmanager
def _fusion_log() -> Iterator[list[str]]:
    """The messages of ``TORCH_LOGS=fusion``."""
    messages: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collect = Collect()
    torch._logging.set_logs(fusion=True)
    log = logging.getLogger("torch._inductor.scheduler.__fusion")
    log.addHandler(collect)
    try:
        yield messages
    finally:
        log.removeHandler(collect)
        torch._logging.set_logs()


def _logged(sample: GraphSample) -> list[_Log]:
    """The log of Inductor by itself, graph by graph."""
    torch._dynamo.reset()
    with (
        _fusion_log() as messages,
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
        torch.set_grad_enabled(sample.training),
    ):
        outputs = torch.compile(sample.module)(*sample.args, **sample.kwargs)
        if sample.training:
            scalar_loss(outputs).backward()
    torch._dynamo.reset()
    graphs: list[_Log] = []
    for message in messages:
        if _FIRST in message:
            graphs.append(_Log())
        if match := _CANNOT.search(message):
            graphs[-1].refused.add((match[1], match[2], match[3]))
        if match := _FUSING.search(message):
            graphs[-1].fused.append((match[1], match[2]))
        if match := _FOUND.search(message):
            graphs[-1].found.append(int(match[1]))
    return graphs


def _holds(sample: GraphSample, store: Path) -> None:
    """Nothing that is in the log is missing, and nothing is there that is not in it."""
    logs = _logged(sample)
    explained = explain_program(sample, Wish(store=store)).graphs
    assert len(explained) == len(logs) > 0
    for graph, log in zip(explained, logs, strict=True):
        fusions = graph.possible_fusions
        assert {entry for f in fusions for entry in f.logged} == log.refused
        assert sorted((f.a, f.b) for f in fusions if f.taken) == sorted(log.fused)
        assert list(graph.rounds) == log.found
        in_log = {(a, b) for a, b, _ in log.refused} | set(log.fused)
        for fusion in fusions:
            if (fusion.a, fusion.b) not in in_log and (fusion.b, fusion.a) not in in_log:
                # The log names neither what was possible and left out, nor what code generators
                # refuse.
                assert fusion.legal or Refusal(fusion.reason) in _WORDLESS, fusion
        most = sum(log.found)
        assert sum(f.legal and not f.part for f in fusions) <= most + len(log.fused)
        for refused in (f for f in fusions if not f.legal and f.logged):
            assert refused.detail in {text for _, _, text in refused.logged}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_every_pair_is_in_the_log_of_inductor(name: str, store: Path) -> None:
    _holds(_sample(name), store)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _PROGRAMS)
def test_every_pair_is_in_the_log_on_a_gpu(name: str, store: Path) -> None:
    _holds(on_device(_sample(name), torch.device("cuda")), store)


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
    assert total == pytest.approx(norms.plan.predicted_us)
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


def test_rewrites_are_told_by_stage(store: Path) -> None:
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
    (graph,) = explain_program(sample, Wish(store=store)).graphs
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
    assert small and all(f.reason != "rule" for f in small)


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
    kept = sum(side.predicted_us for side in why.after)
    assert why.predicted_gain_us == pytest.approx(why.before[0].predicted_us - kept)
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
    explained = explain_program(_sample("norms-training"), Wish(store=store, kinds=("backward",)))
    assert [graph.kind for graph in explained.graphs] == ["backward"]
    with pytest.raises(PlanError, match="no inference graph"):
        explain_program(_sample("norms-training"), Wish(store=store, kinds=("inference",)))
