"""The table of stages: contestants by a stage's name, means, and the page that it is written to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import torch

from fusewise.compiler.ablating.backend import stage_backend
from fusewise.schedule.errors import OptionError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as they import each other: from their own folder."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield {name: import_module(name) for name in ("ablation", "contestants", "workloads")}
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def _workload(kind: str, **speedups: float) -> dict[str, Any]:
    found = {name: {"median": median} for name, median in speedups.items()}
    return {"name": kind, "kind": kind, "status": "ok", "speedup": found}


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_means_over_eager_and_over_everything(scripts: dict[str, ModuleType], kind: str) -> None:
    results = [
        _workload(kind, eager=0.5, no_fusion=0.8, fusewise=1.25),
        _workload(kind, eager=0.125, no_fusion=0.2),
        {**_workload(kind), "status": "failed"},
    ]
    rows = {row["name"]: row for row in scripts["ablation"].means(results)}
    assert list(rows) == list(scripts["ablation"].ROWS)
    assert rows["inductor"][f"over_eager_{kind}"] == pytest.approx(4.0)
    assert rows["inductor"][f"over_everything_{kind}"] == 1.0
    assert rows["no_fusion"][f"over_eager_{kind}"] == pytest.approx(1.6)
    assert rows["no_fusion"][f"over_everything_{kind}"] == pytest.approx(0.4)
    # One that was not timed in a workload has its mean over the others.
    assert rows["fusewise"][f"over_eager_{kind}"] == pytest.approx(2.5)
    assert rows["fusewise"][f"workloads_{kind}"] == 1
    assert rows["no_inlining"][f"over_eager_{kind}"] is None
    other = "training" if kind == "inference" else "inference"
    assert rows["inductor"][f"over_eager_{other}"] is None


def test_the_table_goes_between_its_marks(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    ablation = scripts["ablation"]
    results = [_workload("training", eager=0.5, no_inlining=0.75)]
    machine = {"device": "a device", "torch": "2.13"}
    table = ablation.markdown(
        {"machine": machine, "rows": ablation.means(results), "workloads": results}
    )
    assert "| without inlining | - | 1.50× | - | 0.75× |" in table
    assert "0 inference and 1 training" in table
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs/ablation.md").read_text())
    ablation.write_into(page, table)
    once = page.read_text()
    assert table in once
    ablation.write_into(page, table)
    assert page.read_text() == once
    page.write_text("no marks")
    with pytest.raises(click.BadParameter, match=r"page\.md has no"):
        ablation.write_into(page, table)


@pytest.mark.slow
def test_a_step_without_a_stage_is_the_same_step(scripts: dict[str, ModuleType]) -> None:
    """Forward and backward, each compiled without it."""
    who = scripts["contestants"].contestant("no_inlining_no_fusion")
    assert who.backend == "stage"
    module = torch.nn.Sequential(torch.nn.LayerNorm(24), torch.nn.GELU()).train()
    x = torch.randn(8, 24)
    wanted = module(x).square().sum()
    wanted.backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    module.zero_grad()
    torch._dynamo.reset()
    compiled = scripts["contestants"].compiled(module, who, ROOT)
    loss = compiled(x).square().sum()
    loss.backward()
    torch.testing.assert_close(loss, wanted)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_no_backend_without_a_stage_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="no_sense"):
        stage_backend("no_sense")
