"""Which of Inductor's block sizes a kernel takes: those that are best when warm, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import fusewise
from fusewise.compiler.inductor import configurations
from fusewise.compiler.inductor.program import load_module
from fusewise.compiler.measuring import cuda_timing

pytestmark = pytest.mark.gpu


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that tunes as Inductor does, and does so again after the test."""
    monkeypatch.setattr(configurations, "_clock", None)


def rows(x: Any) -> Any:
    """Rows so short that Inductor does not know how many of them a block had best have."""
    return (x - x.amax(-1, keepdim=True)).exp().sum(-1)


def kernels(module: Any) -> list[Any]:
    return [value for name, value in vars(module).items() if name.startswith("triton_")]


def test_what_is_fastest_by_the_given_clock_is_taken(live: Any, untuned: None) -> None:
    x = torch.randn(2048, 64, device="cuda")
    (graph,) = live.capture(live.UserProgram(rows, (x,)))
    timed: list[Callable[[], Any]] = []

    def later_is_faster(call: Callable[[], Any]) -> Callable[[], float]:
        assert cuda_timing.samples(call)() > 0
        timed.append(call)
        seconds = 1.0 / len(timed)
        return lambda: seconds

    configurations.tune_warm(later_is_faster)
    program = graph.stock
    module = load_module(program.source, program.constants, program.settings, in_process=True)
    (kernel,) = kernels(module)
    kernel.precompile()
    offered = [launcher.config for launcher in kernel.launchers]
    live.difference(graph._called(lambda inputs: module.call(list(inputs))), graph.eager())
    assert len(timed) == len(offered) > 1
    (left,) = kernel.launchers
    assert left.config is offered[-1]


def test_what_was_measured_is_taken_without_timing_it_again(live: Any, store: Path) -> None:
    x = torch.randn(4096, 96, device="cuda")
    options = {"fusewise.store": store, "fusewise.budget_s": 30}
    compiled = torch.compile(rows, backend="fusewise", options=options)
    counters.clear()
    live.difference([compiled(x)], [rows(x)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert any(c.status == "measured" for c in report.candidates)
    timed = {k: n for k, n in counters["inductor"].items() if k.endswith("benchmark_gpu")}
    assert timed == {}
