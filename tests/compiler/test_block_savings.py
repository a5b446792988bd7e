"""What other block sizes are expected to save of a graph's kernels, and that it is acted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.utils import fresh_cache

import fusewise
from fusewise.compiler.inductor import blocks_ahead
from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.reports import GraphReport
from fusewise.costmodel.model_file import SavedModel, read_model, write_model
from fusewise.costmodel.registry import find_model
from fusewise.schedule.kernel_choices import blocks_choice, tunings
from fusewise.schedule.schedule import Choice, Schedule
from tests.compiler.triton_kernels import by_warps

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests beside this one take the cores that compile."""
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)


@pytest.fixture
def model(home: Path) -> str:
    """A model for this kind of device that expects much of more warps."""
    saved = read_model(find_model("h200", home))
    path = home / "warps.fusewise.json"
    write_model(SavedModel(saved.model.with_blocks(by_warps(-0.2)), saved.manifest), path)
    return str(path)


def rows(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2.0, -1) + x.sin()


def predicted(
    store: Path, model: str, live: Any, steps: int = 2, columns: int = 1000
) -> GraphReport:
    x = torch.randn(8192, columns, device="cuda")
    options = {"fusewise.mode": "predict", "fusewise.store": store, "fusewise.model": model}
    known = len(fusewise.reports())
    compiled = torch.compile(rows, backend="fusewise", options=options)
    # The second run tunes, and those after it.
    for _ in range(steps):
        live.difference([compiled(x)], [rows(x)])
    (report,) = fusewise.reports()[known:]
    assert report.fallback is None and report.chosen is not None
    return report


def test_kernels_that_are_expected_to_gain_are_tuned(store: Path, model: str, live: Any) -> None:
    report = predicted(store, model, live)
    assert report.chosen is not None and report.chosen.origin == "blocks"
    assert report.source == "predicted" and "by prediction" in report.chosen.reason
    assert set(tunings(report.chosen.schedule.codegen).values()) == {"descent"}
    assert report.candidates[0].baseline and not report.candidates[0].accepted
    # Another process of the same store takes it over.
    torch._dynamo.reset()
    again = predicted(store, model, live)
    assert again.source == "store" and again.chosen == report.chosen


def test_what_tuning_came_to_is_kept_with_the_decision(store: Path, model: str, live: Any) -> None:
    # Of a size of its own: Inductor's cache would have what another test's kernel came to.
    report = predicted(store, model, live, steps=8, columns=1016)
    assert report.chosen is not None and report.chosen.blocks == ()
    torch._dynamo.reset()
    again = predicted(store, model, live, columns=1016)
    assert again.source == "store" and again.chosen is not None
    assert {c.name for c in again.chosen.blocks} <= {c.name for c in again.chosen.schedule.codegen}
    assert again.chosen.blocks


def test_without_a_model_of_block_sizes_none_are_tuned(store: Path, live: Any, home: Path) -> None:
    saved = read_model(find_model("h200", home))
    path = home / "plain.fusewise.json"
    write_model(SavedModel(saved.model.with_blocks(None), saved.manifest), path)
    report = predicted(store, str(path), live)
    assert report.chosen is not None and not tunings(report.chosen.schedule.codegen)


def test_a_contest_tries_what_is_expected_to_gain(store: Path, model: str, live: Any) -> None:
    x = torch.randn(8192, 1000, device="cuda")
    options = {"fusewise.store": store, "fusewise.model": model, "fusewise.budget_s": 60}
    got = torch.compile(rows, backend="fusewise", options=options)(x)
    live.difference([got], [rows(x)])
    report = fusewise.reports()[-1]
    assert report.source == "measured"
    assert any(tunings(c.schedule.codegen) and c.measured_us for c in report.candidates)


def test_block_sizes_that_were_found_before_are_those_that_run(live: Any) -> None:
    """Where nothing is in Inductor's caches."""
    (graph,) = live.capture(
        live.UserProgram(lambda x: x.sin() * 2, (torch.randn(1 << 20, device="cuda"),))
    )
    (name,) = (node.name for node in graph.surveyed.problem.nodes)
    schedule = Schedule(plan=graph.surveyed.default, codegen=(blocks_choice(name, "descent"),))
    told = (Choice(f"blocks:{name}", "XBLOCK=512 warps=2 stages=1"),)
    with fresh_cache(), graph.context():
        output = graph.compile.compile(schedule, Applier(schedule.plan), told)
        assert graph.compile.found_blocks(schedule, output) == told
