"""``torch.compile(backend="fusewise")`` from end to end: modes, kinds of programs, reports."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fusewise
from fusewise.compiler.reports import GraphReport
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.registry import load_model
from fusewise.datasets.rows import decode_problem
from fusewise.datasets.store import Store
from fusewise.schedule.plan import unfused
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.schedule import Schedule

pytestmark = pytest.mark.filterwarnings("error::fusewise.compiler.notices.FusewiseWarning")
Compile = Callable[..., Any]


@pytest.fixture
def compiled(store: Path) -> Compile:
    """``torch.compile`` with a store of the test's own; predicts unless told otherwise."""

    def compile_with(function: Any, mode: str = "predict", **options: Any) -> Any:
        ours = {f"fusewise.{name}": value for name, value in options.items()}
        given = {"fusewise.mode": mode, "fusewise.store": store} | ours
        return torch.compile(function, backend="fusewise", options=given)

    return compile_with


def normalised(x: Any, w: Any) -> Any:
    return torch.softmax(nn.functional.layer_norm(x, (32,)) * w, -1)


def checked(*kinds: str) -> list[GraphReport]:
    """The reports so far, which must be of these kinds and complete."""
    reports = fusewise.reports()
    assert [report.kind for report in reports] == list(kinds)
    for report in reports:
        assert report.fallback is None and report.mismatch == ()
        assert report.nodes > 0 and len(report.key) == 16 and report.store
        assert report.default is not None and report.default is report.candidates[0]
        assert report.chosen in report.candidates and report.chosen.accepted
        assert [c.accepted for c in report.candidates].count(True) >= 1
        assert len({c.schedule.id for c in report.candidates}) == len(report.candidates)
        assert report.seconds and all(value >= 0 for value in report.seconds.values())
    return reports


def test_measuring_fills_the_report_and_the_store(
    compiled: Compile, live: Any, store: Path, device: str
) -> None:
    def weighed(x: Any, w: Any) -> Any:
        # The compiled graph holds the values of such a tensor.
        return normalised(x, w) * torch.tensor([0.5, 2.0], device=x.device).repeat(16)

    make = live.Make(device, torch.float32)
    x, w = make.tensor(48, 32), make.tensor(32)
    live.difference([compiled(weighed, "measure", top_k=1, budget_s=10)(x, w)], [weighed(x, w)])
    (report,) = checked("inference")
    assert (report.mode, report.source, report.store) == ("measure", "measured", str(store))
    assert torch.device(report.device).type == device
    profile = device_profile(torch.device(report.device), store.parent)
    assert report.model == load_model(None, profile, store.parent).name
    # What is tried on the winner comes after the others.
    default, other, *late = (c for c in report.candidates if c.status == "measured")
    assert default.origin == "default" and other.origin != "default"
    assert all(candidate.origin == "finish" for candidate in late)
    for candidate in (default, other, *late):
        assert candidate.predicted_us and candidate.measured_us and candidate.rounds > 0
        assert candidate.error is not None and candidate.error < 1e-5
        assert candidate.reason and candidate.groups >= 1
    assert {"prepare", "recall", "search", "generate", "measure"} <= set(report.seconds)
    with Store.open(store) as opened:
        decision = opened.rows("decisions")[0]
        assert decision.schedule_id == report.chosen.schedule.id
        graph = opened.graph(report.key)
        assert graph is not None and len(decode_problem(graph.problem).nodes) == report.nodes
        assert len(opened.rows("measurements")) == 2 + len(late)
    # The same program again: what was measured holds, for those who only replay as well.
    for mode in ("measure", "replay"):
        torch._dynamo.reset()
        compiled(weighed, mode)(x, w)
        again = fusewise.reports()[-1]
        assert (again.source, again.mode, again.key) == ("store", mode, report.key)
        assert again.candidates == report.candidates and again.chosen == report.chosen
        assert again.nodes == report.nodes


def test_training_step_has_the_gradients_of_eager(
    compiled: Compile, live: Any, device: str
) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 9))
    model = model.to(device)
    reference = copy.deepcopy(model)
    make = live.Make(device, torch.float32)
    x, target = make.tensor(16, 24), make.integers(9, 16)

    def step(module: Any) -> torch.Tensor:
        loss: torch.Tensor = nn.functional.cross_entropy(module(x), target)
        return loss

    loss = compiled(step)(model)
    loss.backward()
    wanted = step(reference)
    wanted.backward()
    live.difference(
        [loss.detach(), *(p.grad for p in model.parameters())],
        [wanted.detach(), *(p.grad for p in reference.parameters())],
    )
    forward, backward = checked("forward", "backward")
    assert {forward.source, backward.source} == {"predicted"}


def test_parameters_are_updated_in_place(compiled: Compile, live: Any, device: str) -> None:
    program, reference = (
        live.BY_NAME["adam_step"](live.Make(device, torch.float32)) for _ in range(2)
    )
    step = compiled(program.function)
    for _ in range(2):
        step(*program.args)
        reference.function(*reference.args)
    for got, wanted in zip(program.args, reference.args, strict=True):
        live.difference(got, wanted)
    checked("inference")


def test_buffers_of_a_module_are_updated(compiled: Compile, live: Any, device: str) -> None:
    module = nn.Sequential(nn.BatchNorm1d(12), nn.ReLU()).to(device)
    reference = copy.deepcopy(module)
    x = live.Make(device, torch.float32).tensor(20, 12)
    step = compiled(module)
    for _ in range(2):
        got, wanted = step(x), reference(x)
        live.difference([got.detach()], [wanted.detach()])
    live.difference(list(module.buffers()), list(reference.buffers()))
    got.sum().backward()
    checked("forward", "backward")


def test_random_numbers_are_those_of_inductor(compiled: Compile, device: str) -> None:
    def f(x: Any) -> Any:
        return nn.functional.dropout(x, 0.4).cos() + torch.rand_like(x)

    x = torch.ones(30, 30, device=device)
    torch.manual_seed(11)
    got = compiled(f)(x)
    torch._dynamo.reset()
    torch.manual_seed(11)
    torch.testing.assert_close(got, torch.compile(f, backend="inductor")(x))
    checked("inference")


def test_each_graph_of_a_broken_program_is_reported(
    compiled: Compile, live: Any, device: str
) -> None:
    def f(x: Any) -> Any:
        y = x.sin().sum(1)
        torch._dynamo.graph_break()
        return y.cos() * 2

    x = live.Make(device, torch.float32).tensor(8, 16)
    live.difference([compiled(f)(x)], [f(x)])
    first, second = checked("inference", "inference")
    assert first.key != second.key


def test_gradients_that_nobody_wants_make_an_inference_graph(
    compiled: Compile, live: Any, device: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to(device)
    x = live.Make(device, torch.float32).tensor(4, 8)
    for switch in (torch.no_grad, torch.inference_mode):
        torch._dynamo.reset()
        with switch():
            live.difference([compiled(model)(x)], [model(x)])
    checked("inference", "inference")


def test_one_graph_serves_all_sizes(compiled: Compile, live: Any, device: str) -> None:
    make = live.Make(device, torch.float32)
    f = compiled(normalised)
    w = make.tensor(32)
    for rows in (24, 50):
        x = make.tensor(rows, 32)
        torch._dynamo.mark_dynamic(x, 0)
        live.difference([f(x, w)], [normalised(x, w)])
    checked("inference")


def test_dynamic_sizes_are_measured_on_their_hints(compiled: Compile, live: Any) -> None:
    x, w = torch.randn(24, 32), torch.randn(32)
    torch._dynamo.mark_dynamic(x, 0)
    f = compiled(normalised, "measure", top_k=1, budget_s=1)
    live.difference([f(x, w)], [normalised(x, w)])
    live.difference([f(x[:7], w)], [normalised(x[:7], w)])
    (report,) = checked("inference")
    assert report.source == "measured"


@pytest.mark.parametrize(("name", "value"), [("top_k", 0), ("budget_s", 0)])
def test_nothing_to_measure_is_no_reason_to_warn(
    compiled: Compile, live: Any, name: str, value: int
) -> None:
    x, w = torch.randn(48, 32), torch.randn(32)
    live.difference([compiled(normalised, "measure", **{name: value})(x, w)], [normalised(x, w)])
    (report,) = fusewise.reports()
    assert (report.source, report.mode) == ("predicted", "measure")
    assert report.fallback == f"not measured: fusewise.{name} is 0"
    assert report.default is not None and report.chosen in report.candidates
    assert all(candidate.measured_us is None for candidate in report.candidates)


@pytest.mark.parametrize("budget_s", [pytest.param(math.inf, marks=pytest.mark.slow), 1e12])
def test_budget_without_an_end_is_a_budget(compiled: Compile, live: Any, budget_s: float) -> None:
    make = live.Make("cpu", torch.float32)
    x, w = make.tensor(48, 32), make.tensor(32)
    f = compiled(normalised, "measure", top_k=1, budget_s=budget_s)
    live.difference([f(x, w)], [normalised(x, w)])
    (report,) = checked("inference")
    assert report.source == "measured"


def test_options_of_inductor_reach_it(compiled: Compile, store: Path) -> None:
    x, w = torch.randn(8, 32), torch.randn(32)
    compiled(normalised)(x, w)
    torch._dynamo.reset()
    ours = {"fusewise.mode": "predict", "fusewise.store": store}
    single = {"max_fusion_size": 1}
    torch.compile(normalised, backend="fusewise", options=ours | single)(x, w)
    usual, alone = checked("inference", "inference")
    assert usual.default.groups < alone.default.groups == alone.nodes
    with Store.open(store) as opened:
        parts = [opened.graph(report.key).parts for report in (usual, alone)]
    assert {name for name in parts[0] if parts[0][name] != parts[1][name]} == {"settings"}


@pytest.mark.parametrize("mode", ["predict", "max-autotune-no-cudagraphs"])
def test_mode_of_torch_compile_is_ours_or_inductors(
    monkeypatch: pytest.MonkeyPatch, home: Path, live: Any, mode: str
) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(home))

    def f(x: Any) -> Any:
        return (x * 3).tanh()

    x = torch.randn(5, 7)
    live.difference([torch.compile(f, backend="fusewise", mode=mode)(x)], [f(x)])
    (report,) = checked("inference")
    assert report.mode == ("predict" if mode == "predict" else "measure")
    assert report.store == str(home / "store.duckdb")
    assert (home / "store.duckdb").exists()


def write_unfused(store: Path, path: Path) -> set[str]:
    """Write a plan file that fuses nothing for all graphs of a store; ids of its schedules."""
    with Store.open(store) as opened:
        graphs = opened.rows("graphs")
    planned = tuple(
        PlannedGraph(
            kind=row.kind,
            key_parts=row.parts,
            device="cpu",
            schedule=Schedule(plan=unfused([n.name for n in decode_problem(row.problem).nodes])),
        )
        for row in graphs
    )
    write_plan_file(path, PlanFile(fusewise="1", torch="2", graphs=planned))
    return {graph.schedule.id for graph in planned}


@pytest.mark.parametrize("mode", ["replay", "predict", "measure"])
def test_plan_file_is_followed_in_every_mode(
    compiled: Compile, live: Any, store: Path, tmp_path: Path, mode: str
) -> None:
    x = torch.randn(8, 24, requires_grad=True)
    w = torch.randn(24)

    def run(f: Any) -> list[torch.Tensor]:
        x.grad = None
        out = f(x, w)
        out.sum().backward()
        return [out.detach(), x.grad]

    def f(x: Any, w: Any) -> Any:
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w).exp()

    run(compiled(f))
    planned = write_unfused(store, tmp_path / "plan.json")
    torch._dynamo.reset()
    live.difference(run(compiled(f, mode, plan=tmp_path / "plan.json")), run(f))
    reports = fusewise.reports()[2:]
    assert [report.kind for report in reports] == ["forward", "backward"]
    assert {report.chosen.schedule.id for report in reports} == planned
    for report in reports:
        assert (report.source, report.fallback) == ("plan file", None)
        assert report.chosen.groups == len(report.chosen.schedule.plan.groups)


def test_profile_taken_while_compiling_is_of_the_device(tmp_path: Path, profiled: Path) -> None:
    def f(x: Any) -> Any:
        return x.sin() + 1

    options = {"fusewise.mode": "predict", "fusewise.store": tmp_path / "store.duckdb"}
    torch.compile(f, backend="fusewise", options=options)(torch.randn(4))
    from fusewise.costmodel.device import device_profile

    inside, outside = (
        device_profile(torch.device("cpu"), home) for home in (tmp_path, profiled.parent)
    )
    # Tensors without data, which a compile works with, would be copied a hundred times as fast
    # and launched a hundred times as slowly.
    assert inside.launch_us < 20 * outside.launch_us
    assert inside.copy_gbs < 20 * outside.copy_gbs
