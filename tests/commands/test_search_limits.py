"""What a search does where there is nothing to search, or nothing that could be measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from fusewise.compiler import reports
from fusewise.compiler.measuring import room
from fusewise.datasets.target import load_target
from fusewise.schedule.plan_file import read_plan_file

Invoke = Callable[..., Result]
Refused = Callable[..., None]

_TARGETS = """
import torch


def no_tensors():
    return (lambda n: n + 1), (3,)


def no_inputs():
    return (lambda: torch.arange(64.0).sin().sum()), ()


def breaking():
    def call(x):
        y = x.sin()
        if y.sum() > 0:
            return y.cos() * 2
        return y.tan() * 3

    return call, (torch.rand(64, 32),)


def branches():
    def call(x):
        y = torch.cond(x.mean() > 0, lambda a: a.cos() + 1, lambda a: a.sin(), (x,))
        return y.exp().sum(-1)

    return call, (torch.rand(64, 32),)


def collective():
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def call(x):
        return functional.all_reduce(x.sin(), "sum", dist.group.WORLD).cos() + 1

    return call, (torch.rand(64, 32),)


def temporaries():
    def call(x):
        a = torch.sin(x * 1.3)
        b = torch.cos(a) + x
        return b.sum(0), (a * b).sum(1), b.softmax(-1).amax(0)

    return call, (torch.rand(300, 200),)
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with factories of odd programs."""
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(_TARGETS)
    return path


@pytest.fixture
def searched(invoke: Invoke, odd: Path, profiled: Path, tmp_path: Path) -> Callable[..., Any]:
    """Search a program of ``odd``, and give what is told as JSON and the plan file."""
    (tmp_path / "devices").symlink_to(profiled)

    def run(name: str, *more: object) -> tuple[dict[str, Any], Any]:
        plan = tmp_path / "plan.json"
        limits = ("--trials", 1, "--budget", "6s", "--top-k", 1, "--out", plan, "--json")
        store = ("--store", tmp_path / "s.duckdb")
        result = invoke("search", f"{odd}:{name}", *store, *limits, *more)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout), read_plan_file(plan)

    return run


def test_a_program_without_tensors(searched, invoke: Invoke, odd: Path, tmp_path: Path) -> None:
    told, plan = searched("no_tensors")
    assert told["graphs"] == [] and plan.graphs == ()
    assert "nothing to search" in told["not_searched"]
    result = invoke("search", f"{odd}:no_tensors", "--store", tmp_path / "s.duckdb")
    assert result.exit_code == 0
    assert "nothing to search" in result.stdout


def test_a_plan_without_graphs_is_told(
    searched, invoke: Invoke, refused: Refused, odd: Path, tmp_path: Path
) -> None:
    searched("no_tensors")
    file, program = tmp_path / "plan.json", f"{odd}:no_tensors"
    for more in ((), ("--json",)):
        refused(invoke("plan", "show", file, *more), str(file), "no graphs", program, "--out")
    result = invoke("plan", "check", file, program, "--store", tmp_path / "s.duckdb")
    assert result.exit_code == 0, result.output
    assert result.stdout == "nothing to replay: neither the plan nor the program has graphs\n"


@pytest.mark.slow
def test_a_program_without_inputs(searched) -> None:
    told, plan = searched("no_inputs")
    (graph,) = told["graphs"]
    assert graph["not_measured"] is None and graph["default_us"] > 0
    assert len(plan.graphs) == 1


def test_a_budget_of_zero_only_predicts(searched, odd: Path, tmp_path: Path) -> None:
    told, plan = searched("temporaries", "--budget", "0")
    (graph,) = told["graphs"]
    assert graph["not_measured"] == "not measured: the budget is 0"
    assert graph["trials"] == graph["measured"] == 0
    assert graph["default_us"] is None and graph["predicted_us"] > 0
    # The same program gets the same schedule, whatever the clock says.
    again, _ = searched("temporaries", "--budget", "0s")
    assert again["graphs"][0]["schedule"] == graph["schedule"]
    sample = load_target(f"{odd}:temporaries")
    options = {"fusewise.mode": "replay", "fusewise.plan": tmp_path / "plan.json"}
    options["fusewise.store"] = tmp_path / "s.duckdb"
    reports.clear_reports()
    torch._dynamo.reset()
    with torch.no_grad():
        output = torch.compile(sample.module, backend="fusewise", options=options)(*sample.args)
    torch.testing.assert_close(output, sample.module(*sample.args))
    assert [report.source for report in reports.reports()] == ["plan file"]
    assert plan.graphs[0].schedule.id == graph["schedule"]


@pytest.mark.slow
def test_control_flow_that_depends_on_data(searched) -> None:
    told, plan = searched("breaking")
    assert len(told["graphs"]) == len(plan.graphs) == 2
    assert told["graphs"][0]["default_us"] > 0
    # What is under way when the time is up may leave none for the second part.
    reasons = {graph["not_measured"] for graph in told["graphs"]}
    assert reasons <= {None, "not measured: the time was up"}


@pytest.mark.slow
def test_branches_inside_a_graph(searched) -> None:
    told, plan = searched("branches")
    (graph,) = told["graphs"]
    assert graph["not_measured"] is None and graph["default_us"] > 0
    assert len(plan.graphs) == 1


def test_a_graph_that_talks_to_other_processes(searched) -> None:
    try:
        told, plan = searched("collective")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    (graph,) = told["graphs"]
    assert graph["not_measured"] == "not measured: the graph talks to other processes"
    assert graph["measured"] == 0 and len(plan.graphs) == 1


def test_inputs_that_there_is_no_room_for(searched, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * 300 * 200
    monkeypatch.setattr(room, "free_bytes", lambda _: 5 * size - 1)
    told, _ = searched("temporaries")
    (graph,) = told["graphs"]
    assert "5 copies" in graph["not_measured"] and "are free" in graph["not_measured"]
    assert graph["measured"] == 0
    monkeypatch.undo()
    inputs = [torch.empty(300, 200), 3, torch.empty(0)]
    assert room.lacks_room(inputs, torch.device("cpu"), 1) is None
    assert room.free_bytes(torch.device("cpu")) > 0
