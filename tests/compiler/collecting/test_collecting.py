"""Collecting: rows of kernels whose features and launches are those of the graph they came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusewise.compiler.collecting import Collector, match
from fusewise.compiler.inductor.launches import Launch, generate_with_launches
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.costmodel.device import device_key, device_profile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.features import Featurizer
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.rows import GraphRow, KernelRow, MeasurementRow, decode_problem
from fusewise.datasets.store import Store
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import group_signature
from fusewise.schedule.schedule import Schedule

QUICK = Effort(seconds=0.001, min_samples=5, max_samples=6)


def sample(function: Callable[..., Any], *args: Any, training: bool = False) -> GraphSample:
    return GraphSample("made/1", "made", function, args, training=training, licence="MIT")


def test_launches_are_the_groups_of_the_plan(graph: Any) -> None:
    problem = graph.surveyed.problem
    for plan in (graph.surveyed.default, unfused([node.name for node in problem.nodes])):
        with graph.context():
            program, launches = generate_with_launches(graph.compile, Schedule(plan=plan))
        kernels = [launch for launch in launches if launch.kind == "kernel"]
        generated = {
            frozenset(group)
            for group in plan.groups
            if problem.node_by_name[group[0]].kind in ("pointwise", "reduction", "scan", "sort")
        }
        assert {frozenset(launch.nodes) for launch in kernels} == generated
        for launch in kernels:
            assert launch.kernel in program.source
        called = {launch.nodes[0] for launch in launches if launch.kind == "extern"}
        assert called == {node.name for node in problem.nodes if node.kind == "extern"}


@pytest.fixture(scope="module")
def collected(
    tmp_path_factory: pytest.TempPathFactory, profiled: Path
) -> tuple[Store, list[GraphRow], list[KernelRow], list[MeasurementRow]]:
    """A store into which a training step with a matrix product was collected, and its rows."""

    def step(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1).square().sum()

    home = tmp_path_factory.mktemp("collected")
    (home / "devices").symlink_to(profiled)
    store = Store.open(home / "store.duckdb")
    collector = Collector(store, plans=1, effort=QUICK)
    args = [torch.randn(40, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)]
    done = collector.collect(sample(step, *args, training=True), "corpus")
    store.ingest()
    assert done.failures == []
    assert done.graphs == 2 and done.programs >= 4
    tables: Any = [store.rows(name) for name in ("graphs", "kernels", "measurements")]
    assert done.kernels == len(tables[1])
    return (store, *tables)


def test_graphs_say_where_they_came_from(collected: Any) -> None:
    _, graphs, _, _ = collected
    assert {row.kind for row in graphs} == {"forward", "backward"}
    for row in graphs:
        assert (row.family, row.source, row.licence) == ("made", "corpus:made/1", "MIT")
        assert len(decode_problem(row.problem).nodes) == row.nodes > 0


def test_features_are_those_of_the_stored_problem(collected: Any, profiled: Path) -> None:
    store, graphs, kernels, _ = collected
    problems = {row.key: decode_problem(row.problem) for row in graphs}
    profile = device_profile(torch.device("cpu"), store.path.parent)
    assert {problems[row.graph_key].kind for row in kernels} == {"forward", "backward"}
    for row in kernels:
        problem = problems[row.graph_key]
        assert row.signature == group_signature(problem, row.nodes)
        assert row.features_version == FEATURES_VERSION
        wanted = Featurizer(problem, profile).group(row.nodes)
        assert np.array_equal(np.array(row.features), wanted)
        assert row.device_key == device_key(torch.device("cpu"))
    assert len({row.signature for row in kernels}) == len(kernels)
    # Fused and unfused ones.
    assert {len(row.nodes) > 1 for row in kernels} == {True, False}


def test_every_kernel_and_extern_call_was_timed(collected: Any) -> None:
    store, graphs, kernels, measurements = collected
    timed = {row.subject_id for row in measurements if row.subject == "kernel"}
    assert timed == {row.signature for row in kernels}
    externs = {row.subject_id for row in measurements if row.subject == "extern"}
    nodes = [node for row in graphs for node in decode_problem(row.problem).nodes]
    assert externs == {node.signature for node in nodes if node.kind == "extern"} != set()
    for row in measurements:
        assert row.status == "ok" and row.median_us > 0 and row.rounds >= QUICK.min_samples
    samples = store.kernel_samples()
    assert sorted(samples.signature) == sorted(timed)


def test_known_kernels_are_not_timed_again(collected: Any) -> None:
    store, _, kernels, _ = collected

    def step(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1).square().sum()

    args = [torch.randn(40, 16, requires_grad=True), torch.randn(16, 24, requires_grad=True)]
    again = Collector(store, plans=0, effort=QUICK).collect(
        sample(step, *args, training=True), "corpus"
    )
    assert (again.kernels, again.failures) == (0, []) and again.repeats > 0
    store.ingest()
    assert len(store.rows("kernels")) == len(kernels)


def test_sample_that_raises_costs_only_itself(store: Path) -> None:
    def broken(x: Any) -> Any:
        raise LookupError("no such weights")

    def untrainable(x: Any) -> Any:
        return (x > 0).sum()

    with Store.open(store) as opened:
        collector = Collector(opened, plans=0, effort=QUICK)
        failed = collector.collect(sample(broken, torch.randn(4)), "corpus")
        assert failed.failures == ["made/1: LookupError: no such weights"]
        assert (failed.graphs, failed.kernels) == (0, 0)
        (failure,) = collector.collect(
            sample(untrainable, torch.randn(4), training=True), "corpus"
        ).failures
        assert "made/1: CorpusError" in failure
        good = collector.collect(sample(lambda x: x.sin(), torch.randn(40)), "corpus")
        assert (good.failures, good.graphs, good.kernels) == ([], 1, 1)


def test_what_cannot_be_told_apart_is_left_out() -> None:
    def launch(kernel: str, *nodes: str) -> Launch:
        return Launch("kernel" if kernel else "extern", kernel, nodes)

    def call(kernel: str, us: float = 1.0) -> CallTimes:
        return CallTimes(kernel, [us])

    launches = [launch("k0", "a"), launch("", "mm"), launch("k1", "b"), launch("k2", "b")]
    calls = [call("k0"), call(""), call("k1"), call("k2")]
    # A group of two launches is no one kernel's time.
    assert [pair[0].nodes for pair in match(launches, calls)] == [("a",), ("mm",)]
    assert [pair[0].nodes for pair in match(launches, calls[:3])] == [("mm",)]
    assert list(match(launches, [*calls[1:], call("")])) == []
