"""Elementary functions written into C++ kernels: exact over all of fp32, only where asked for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler.inductor.choices import MATH
from fusewise.schedule.schedule import Choice, Schedule

WRITTEN = Schedule(codegen=(Choice(MATH, True),))
#: Spacing of fp32, relative.
EPS = 2.0**-23
FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "expm1": torch.expm1,
    "sigmoid": torch.sigmoid,
}


def everywhere() -> torch.Tensor:
    """Values of all magnitudes and signs, small steps where much happens, and what is no number."""
    sizes = torch.logspace(-44, 38, 4000, dtype=torch.float64).float()
    steps = torch.linspace(-120, 120, 60_001)
    near = torch.linspace(-2, 2, 20_001)
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 88.72, -103.9])
    return torch.cat([sizes, -sizes, steps, near, special, torch.ones(5)])


@pytest.fixture(scope="module", params=["as wide as can be", 256])
def results(
    live: Any, request: pytest.FixtureRequest
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Of each function everywhere, written out and as Inductor has it; one program for all."""

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) * 1.0 for function in FUNCTIONS.values()]

    (graph,) = live.capture(live.UserProgram(every, (everywhere(),)))
    narrow = () if isinstance(request.param, str) else (Choice("vector_bits", request.param),)
    program = graph.generate(Schedule(codegen=(*narrow, *WRITTEN.codegen)))
    called = Counter(re.findall(r"vector_math::(\w+)\(", program.source))
    once = called["tanh"]
    # The last two of all are written with exp.
    assert once and called == {"exp": 3 * once} | dict.fromkeys(
        ("log", "log1p", "tanh", "erf"), once
    )
    assert "vector_math" not in graph.stock.source
    both = zip(*graph.run_each(program, graph.stock), strict=True)
    return dict(zip(FUNCTIONS, both, strict=False))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_the_library(results: Any, name: str) -> None:
    found, stock = results[name]
    exact = FUNCTIONS[name](everywhere().double()) * 1.0
    assert torch.equal(found.isnan(), stock.isnan())
    assert torch.equal(found.isinf(), stock.isinf())
    assert torch.equal(found.signbit()[~found.isnan()], stock.signbit()[~stock.isnan()])
    finite = found.isfinite()
    off = (found.double() - exact).abs()[finite]
    allowed = (stock.double() - exact).abs()[finite]
    # Numbers too small for a full mantissa are as far apart as the smallest; Inductor's own formula
    # of erf, and its exp(x) - 1, are as exact as a number near one can be.
    least = 1.0 if name in {"erf", "expm1"} else 2.0**-126
    unit = EPS * exact[finite].abs().clamp_min(least)
    assert bool((off <= 2 * allowed + 2 * unit).all()), float(((off - 2 * allowed) / unit).max())


@pytest.mark.parametrize("mode", ["predict", "measure"])
@pytest.mark.parametrize("written", [True, False], ids=["tanh", "relu"])
def test_a_prediction_is_enough(live: Any, store: Path, mode: str, *, written: bool) -> None:
    """No contest is held for it alone, either."""
    function = torch.tanh if written else torch.relu

    def f(x: Any, y: Any) -> Any:
        return function(x) * 2 + y

    args = (torch.randn(512, 300), torch.randn(300))
    options = {"fusewise.store": str(store), "fusewise.mode": mode}
    live.difference([torch.compile(f, backend="fusewise", options=options)(*args)], [f(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert all(candidate.measured_us is None for candidate in report.candidates)
    assert (Choice(MATH, True) in report.chosen.schedule.codegen) is written
