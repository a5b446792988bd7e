"""A search for less memory, or for the best trades of time against memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fusewise.schedule.plan_file import read_plan_file

Invoke = Callable[..., Result]

_TARGET = """
import torch


def temporaries():
    def call(x):
        a = torch.sin(x * 1.3)
        b = torch.cos(a) + x
        return b.sum(0), (a * b).sum(1), b.softmax(-1).amax(0)

    return call, (torch.rand(300, 200),)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that stores some values on the way."""
    path = tmp_path_factory.mktemp("objectives") / "target.py"
    path.write_text(_TARGET)
    return f"{path}:temporaries"


@pytest.fixture
def searched(invoke: Invoke, target: str, profiled: Path, tmp_path: Path) -> Callable[..., Any]:
    """Search it, and give what is told as JSON and the plan file."""
    (tmp_path / "devices").symlink_to(profiled)

    def run(*more: object) -> tuple[dict[str, Any], Any]:
        plan = tmp_path / "plan.json"
        limits = ("--trials", 1, "--budget", "6s", "--top-k", 2, "--out", plan, "--json")
        result = invoke("search", target, "--store", tmp_path / "s.duckdb", *limits, *more)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout), read_plan_file(plan)

    return run


@pytest.mark.slow
def test_less_memory(searched) -> None:
    told, plan = searched("--objective", "memory")
    (graph,) = told["graphs"]
    assert graph["default_bytes"] > 4 * 300 * 200
    assert graph["best_bytes"] <= graph["default_bytes"]
    assert (graph["origin"] == "default") == (graph["best_bytes"] == graph["default_bytes"])
    assert told["front_plans"] == [] and graph["front"] == []
    assert plan.graphs[0].schedule.id == graph["schedule"]


@pytest.mark.slow
def test_trades_of_time_against_memory(
    searched, invoke: Invoke, target: str, tmp_path: Path
) -> None:
    named = ("--name", "both")
    told, plan = searched("--objective", "pareto", *named)
    (graph,) = told["graphs"]
    front = graph["front"]
    assert 1 <= len(front) <= 3
    assert [t["us"] for t in front] == sorted(t["us"] for t in front)
    assert [t["peak_bytes"] for t in front] == sorted(
        (t["peak_bytes"] for t in front), reverse=True
    )
    assert len(told["front_plans"]) == len(front)
    for path, trade in zip(told["front_plans"], front, strict=True):
        assert read_plan_file(path).graphs[0].schedule.id == trade["schedule"]
    assert plan.graphs[0].schedule.id == graph["schedule"]
    # What was begun for both does not go on for one.
    result = invoke("search", target, "--store", tmp_path / "s.duckdb", *named)
    assert result.exit_code == 2
    assert "another objective" in result.stderr
