"""Explanations of graphs with more in them than kernels, or less: calls, sizes, graphs, nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fusewise.compiler.explaining.counterfactual import Question
from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.explaining.report import ExplainedGraph
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import CorpusError, PlanError


def _sample(module: Callable[..., Any], *args: Any, training: bool = False) -> GraphSample:
    return GraphSample(
        name="call", family="call", module=module, args=args, kwargs={}, training=training
    )


def _explained(
    store: Path, module: Callable[..., Any], *args: Any, training: bool = False
) -> ExplainedGraph:
    sample = _sample(module, *args, training=training)
    return explain_program(sample, Wish(store=store)).graphs[0]


def test_what_a_call_gives_several_of_is_no_call(store: Path) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = x.topk(3)
        return values.exp().sum(1), indices + 1

    sample = _sample(call, torch.randn(64, 50))
    (graph,) = explain_program(sample, Wish(store=store, measure=True)).graphs
    assert [group.bound_by for group in graph.groups].count("library") == 1
    assert all(group.measured_us is not None for group in graph.groups)
    assert [group.measured_us for group in graph.groups if group.bound_by == "nothing"] == [0, 0]


def test_what_lowering_adds_has_the_lines_of_what_reads_it(store: Path) -> None:
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.convolution(x).relu()

    torch.manual_seed(0)
    graph = _explained(store, Convolved().train(), torch.randn(1, 3, 8, 8), training=True)
    copies = [node for node in graph.nodes if not node.operators]
    assert copies and all(node.kind == "pointwise" for node in copies)
    (convolution,) = [n for n in graph.nodes if "aten.convolution.default" in n.operators]
    assert {node.sources for node in copies} == {convolution.sources}
    assert all(group.source for group in graph.groups)


def test_sizes_that_are_read_from_a_tensor_are_no_kernels(store: Path) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero().sum(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        graph = _explained(store, call, torch.eye(4))
    kinds = [node.kind for node in graph.nodes]
    assert "nop" in kinds and "extern" in kinds and "reduction" in kinds
    for group in graph.groups:
        (node,) = (n for n in graph.nodes if (n.name,) == group.nodes)
        assert (group.bound_by == "nothing") == (node.kind == "nop")
        assert (group.predicted_us == 0) == (node.kind == "nop")


def _branching(x: torch.Tensor) -> torch.Tensor:
    def first(y: torch.Tensor) -> torch.Tensor:
        return (y.sin() + 1).sum(0) + y.cos().sum(0)

    def second(y: torch.Tensor) -> torch.Tensor:
        return y.amax(0)

    chosen: torch.Tensor = torch.cond(x.sum() > 0, first, second, (x,))
    return chosen * 2


def test_graphs_within_a_graph_are_told_as_graphs(store: Path) -> None:
    sample = _sample(_branching, torch.ones(8, 4))
    whole, *within = explain_program(sample, Wish(store=store, measure=True)).graphs
    assert list(whole.within.values()) == [6, 1] and not whole.name
    assert [graph.name for graph in within] == list(whole.within)
    first, second = within
    for graph in within:
        assert graph.kind == "inference" and graph.key == whole.key
        for node in graph.nodes:
            assert node.name.startswith(graph.name)
            assert Path(__file__).name in node.source and node.operators
        assert {n for g in graph.groups for n in g.nodes} == {n.name for n in graph.nodes}
        assert all(group.kernel and group.predicted_us > 0 for group in graph.groups)
    assert any(fusion.taken for fusion in first.possible_fusions)
    assert not second.possible_fusions
    # Only the branch that is taken runs.
    assert not whole.not_measured
    assert [g.measured_us is not None for g in first.groups] == [True] * len(first.groups)
    assert [g.not_measured for g in second.groups] == ["it was not run"] * len(second.groups)
    runs = [group for group in whole.groups if group.not_measured]
    assert [group.not_measured for group in runs] == ["it runs graphs of its own"]
    assert all(group.measured_us is not None for group in whole.groups if group not in runs)


def test_a_fusion_within_a_graph_within_can_be_asked_about(store: Path) -> None:
    sample = _sample(_branching, torch.ones(8, 4))
    graphs = explain_program(sample, Wish(store=store)).graphs
    taken = next(f for f in graphs[1].possible_fusions if f.taken)
    question = Question(taken.a, taken.b)
    found = explain_program(sample, Wish(store=store, why=question, measure=True)).graphs
    (why,) = (graph.why for graph in found if graph.why is not None)
    assert (why.change, why.legal, why.measured_us) == ("removed", True, None)
    assert "takes no plan" in why.not_measured and len(why.after) == 2
    with pytest.raises(PlanError, match="no node or group 'op99'"):
        explain_program(sample, Wish(store=store, why=Question("op99", taken.b)))


def test_a_graph_that_computes_nothing_was_not_measured(store: Path) -> None:
    graph = _explained(store, lambda x: x.reshape(4, 6).t(), torch.randn(6, 4))
    assert graph.nodes == () and graph.plan.measured_us is None


def test_what_a_program_raises_is_told_as_it_was_raised(store: Path) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(3, 3)

    with pytest.raises(CorpusError, match=r"must have same reduction dim, but got \[4, 4\]"):
        _explained(store, call, torch.randn(4, 4))
