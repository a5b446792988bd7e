"""Threads that share the rows of reductions of few columns: only there, and where asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler.inductor.choices import OUTER
from fusewise.schedule.schedule import Choice, Schedule

SHARED = Schedule(codegen=(Choice(OUTER, True),))

#: Columns of more than a quarter of a vector, which they do not fill.
FEW = 9 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 5


def sent_off_within_loops(source: str) -> bool:
    """Whether a kernel of the program opens a parallel region in a loop."""
    loop = re.compile(r"^ *for\(int64_t x\d", re.MULTILINE)
    return any(
        loop.search(kernel[: kernel.index("#pragma omp parallel")])
        for kernel in source.split("cpp_pybinding")
        if "#pragma omp parallel" in kernel
    )


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sums": lambda x: x.sum(1),
    "extrema": lambda x: (x * 2).amax(1),
    "means": lambda x: (x * x).mean(1),
}


@pytest.mark.parametrize(
    ("reduction", "columns", "dtype"),
    [("sums", 4, torch.float32), ("extrema", FEW, torch.bfloat16), ("means", FEW, torch.float32)],
)
def test_results_are_the_same_but_for_rounding(
    live: Any, reduction: str, columns: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(columns)
    x = torch.randn(640, 16, columns).to(dtype)
    reduced = REDUCTIONS[reduction]
    (graph,) = live.capture(live.UserProgram(lambda x: [reduced(x)], (x,)))
    shared = graph.generate(SHARED)
    assert sent_off_within_loops(graph.stock.source)
    assert not sent_off_within_loops(shared.source)
    assert "#pragma omp parallel" in shared.source
    for stock, found in zip(*graph.run_each(graph.stock, shared), strict=True):
        torch.testing.assert_close(found, stock)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        pytest.param((640, 16, 64), 1, id="many columns"),
        pytest.param((64, 4096), 1, id="along rows"),
        pytest.param((1 << 16, 4), 0, id="no rows but what is reduced"),
        pytest.param((2, 1 << 14, 4), 1, id="few rows of many elements"),
    ],
)
def test_others_stay_as_they_are(live: Any, shape: tuple[int, ...], dim: int) -> None:
    program = live.UserProgram(lambda x: [x.sum(dim)], (torch.randn(shape),))
    (graph,) = live.capture(program)
    assert graph.generate(SHARED).source == graph.stock.source


def test_a_prediction_is_enough(store: Path) -> None:
    x = torch.randn(2048, 16, 4)
    options = {"fusewise.store": str(store), "fusewise.mode": "predict"}
    found = torch.compile(lambda x: x.sum(1), backend="fusewise", options=options)(x)
    torch.testing.assert_close(found, x.sum(1), rtol=1e-4, atol=1e-4)
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert Choice(OUTER, True) in report.chosen.schedule.codegen
