"""Columns reduced with several vectors side by side: the same bits, only where asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler.inductor.choices import COLUMNS
from fusewise.compiler.inductor.wide_columns import VECTORS_ABREAST
from fusewise.schedule.schedule import Choice, Schedule

WIDE = Schedule(codegen=(Choice(COLUMNS, True),))
#: Elements of a vector of fp32 at most.
LANES = 16
ENOUGH = LANES * VECTORS_ABREAST * 2


def reduced(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [(x * y).sum(0), x.amax(0), torch.where(y > 0, x, 0.0).sum(0), x.var(0)]


def widths(source: str) -> set[str]:
    """Vectors in the accumulators of a program's kernels."""
    return set(re.findall(r"VectorizedN<float,(\d+)> tmp_acc", source))


@pytest.mark.parametrize("rows", [9, 257])
def test_results_are_the_same(live: Any, rows: int) -> None:
    """Of matrices of three widths, each with loops of its own in one program."""

    def all_reduced(*args: torch.Tensor) -> list[torch.Tensor]:
        return [out for x, y in zip(args[::2], args[1::2], strict=True) for out in reduced(x, y)]

    torch.manual_seed(rows)
    columns = (ENOUGH, ENOUGH + 37, 4 * ENOUGH + 5)
    args = tuple(torch.randn(rows, count) for count in columns for _ in range(2))
    (graph,) = live.capture(live.UserProgram(all_reduced, args))
    program = graph.generate(WIDE)
    assert widths(program.source) == {str(VECTORS_ABREAST)} and not widths(graph.stock.source)
    assert all(map(torch.equal, *graph.run_each(graph.stock, program)))


@pytest.mark.parametrize(
    ("shape", "dtype", "dim"),
    [
        pytest.param((257, ENOUGH), torch.bfloat16, 0, id="two bytes"),
        pytest.param((257, ENOUGH), torch.float64, 0, id="eight bytes"),
        pytest.param((257, ENOUGH), torch.float32, 1, id="along rows"),
        pytest.param((257, LANES), torch.float32, 0, id="few columns"),
        pytest.param((2000, ENOUGH), torch.float32, 0, id="rows that threads would share"),
    ],
)
def test_others_stay_as_they_are(
    live: Any, shape: tuple[int, int], dtype: torch.dtype, dim: int
) -> None:
    program = live.UserProgram(lambda x: [(x * 2).sum(dim)], (torch.randn(shape).to(dtype),))
    (graph,) = live.capture(program)
    assert graph.generate(WIDE).source == graph.stock.source


def test_a_prediction_is_enough(store: Path) -> None:
    x = torch.randn(1024, 1024)
    options = {"fusewise.store": str(store), "fusewise.mode": "predict"}
    found = torch.compile(lambda x: x.sum(0), backend="fusewise", options=options)(x)
    torch.testing.assert_close(found, x.sum(0), rtol=1e-4, atol=1e-4)
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert Choice(COLUMNS, True) in report.chosen.schedule.codegen
