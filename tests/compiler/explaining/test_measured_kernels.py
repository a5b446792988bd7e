"""Times that cannot be told apart are not told: a time under the wrong name is worse than none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fusewise.compiler.explaining.graph import Wish
from fusewise.compiler.explaining.kernels import Kernels
from fusewise.compiler.explaining.program import explain_program
from fusewise.compiler.explaining.report import ExplainedGraph
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.measuring.kernels import CallTimes
from fusewise.datasets.corpus import GraphSample
from fusewise.schedule.errors import MeasureError


def _call(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x.sin() @ w).sum(0), x.exp().sum(-1)


def _measured(store: Path) -> ExplainedGraph:
    torch.manual_seed(0)
    args = torch.randn(16, 32), torch.randn(32, 8)
    sample = GraphSample(
        name="call", family="call", module=_call, args=args, kwargs={}, training=False
    )
    (graph,) = explain_program(sample, Wish(store=store, measure=True)).graphs
    return graph


def _launched(kernels: Kernels) -> list[CallTimes]:
    """What a run of the program calls, each 2 µs."""
    return [CallTimes(launch.kernel, (2.0, 2.0, 2.0)) for launch in kernels.launches]


def test_times_go_to_the_groups_that_are_launched(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kernels, "_calls", lambda kernels, _: _launched(kernels))
    graph = _measured(store)
    assert graph.not_measured == ""
    assert [group.measured_us for group in graph.groups] == [2.0] * len(graph.groups)
    assert graph.plan.measured_us == pytest.approx(2.0 * len(graph.groups))


def test_kernels_in_another_order_have_no_times(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def turned(kernels: Kernels, job: GraphJob) -> Sequence[CallTimes]:
        return _launched(kernels)[::-1]

    monkeypatch.setattr(Kernels, "_calls", turned)
    graph = _measured(store)
    by_kind = {group.bound_by == "library": group for group in graph.groups}
    # One library call cannot be taken for another, so its time stands.
    assert by_kind[True].measured_us == 2.0
    generated = [group for group in graph.groups if group.bound_by != "library"]
    assert len(generated) > 1
    for group in generated:
        assert group.measured_us is None and "not what was generated" in group.not_measured
    assert graph.plan.measured_us is None


def test_a_kernel_that_failed_says_why(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(kernels: Kernels, job: GraphJob) -> Sequence[CallTimes]:
        first, *others = _launched(kernels)
        return [CallTimes(first.kernel, (), failure="it crashed"), *others]

    monkeypatch.setattr(Kernels, "_calls", failing)
    graph = _measured(store)
    assert [group.not_measured for group in graph.groups if group.measured_us is None] == [
        "it crashed"
    ]


def test_why_nothing_was_timed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(kernels: Kernels, job: GraphJob) -> Sequence[CallTimes]:
        raise MeasureError("it is gone", subject="measuring process", remedy="try again")

    monkeypatch.setattr(Kernels, "_calls", gone)
    graph = _measured(store)
    assert "it is gone" in graph.not_measured
    assert {group.measured_us for group in graph.groups} == {None}
