"""Searching offline on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from fusewise.compiler import reports
from fusewise.datasets.corpora import on_device
from fusewise.datasets.target import load_target
from fusewise.schedule.plan_file import read_plan_file

Invoke = Callable[..., Result]

pytestmark = pytest.mark.gpu

_TARGET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(1024)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, y, labels):
        h = self.drop(self.norm(x + y).tanh() * y)
        loss = nn.functional.cross_entropy(h, labels)
        return loss + h.softmax(-1).square().mean() + x.sin().mean()


def inputs():
    torch.manual_seed(0)
    return torch.randn(512, 1024), torch.randn(512, 1024), torch.randint(0, 1024, (512,))


def training():
    return Block().train(), inputs()


def inference():
    return Block().eval(), inputs()
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "target.py"
    path.write_text(_TARGET)
    return path


def test_a_training_step_is_searched_and_replayed(
    invoke: Invoke, target: Path, tmp_path: Path
) -> None:
    store, plan = tmp_path / "s.duckdb", tmp_path / "plan.json"
    result = invoke(
        "search", f"{target}:training", "--device", "cuda", "--store", store, "--out", plan,
        "--trials", 4, "--budget", "60s", "--top-k", 2, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    graphs = json.loads(result.stdout)["graphs"]
    assert [graph["kind"] for graph in graphs] == ["forward", "backward"]
    assert graphs[0]["not_measured"] is None and graphs[0]["default_us"] > 0
    assert sum(graph["measured"] for graph in graphs) > 0
    sample = on_device(load_target(f"{target}:training"), torch.device("cuda"))
    options = {"fusewise.mode": "replay", "fusewise.plan": plan, "fusewise.store": store}
    reports.clear_reports()
    torch._dynamo.reset()
    torch.compile(sample.module, backend="fusewise", options=options)(*sample.args).backward()
    assert [report.source for report in reports.reports()] == ["plan file", "plan file"]


def test_peak_memory_on_the_device(invoke: Invoke, target: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    result = invoke(
        "search", f"{target}:inference", "--device", "cuda", "--store", tmp_path / "s.duckdb",
        "--trials", 3, "--budget", "40s", "--top-k", 2, "--objective", "pareto", "--out", plan,
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    (graph,) = told["graphs"]
    # Two inputs of two megabytes each, and what is made of them.
    assert 2 * 2**21 < graph["default_bytes"] < 2**30
    assert graph["front"] and len(told["front_plans"]) == len(graph["front"])
    assert read_plan_file(plan).graphs[0].schedule.id == graph["schedule"]
