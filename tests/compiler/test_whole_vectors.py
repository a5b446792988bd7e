"""Flags and random numbers by whole vectors: the bits of lane by lane, only where asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler.inductor.choices import VECTORS
from fusewise.compiler.inductor.whole_vectors import by_vectors
from fusewise.schedule.schedule import Choice, Schedule

WHOLE = Schedule(codegen=(Choice(VECTORS, True),))
#: The same with vectors of half the length where the processor has such of 64 bytes.
NARROW = Schedule(codegen=(Choice("vector_bits", 256), Choice(VECTORS, True)))
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64)


def flagged(x: torch.Tensor, y: torch.Tensor, flags: torch.Tensor) -> list[torch.Tensor]:
    """Reads and writes flags along rows whose ends are parts of vectors, and across them."""
    above = x > 0
    both = above & flags
    return [
        torch.where(flags, x, y),
        (x * flags).sum(-1),
        both,
        both.any(-1),
        torch.where(both.t(), x.t(), y.t()).contiguous(),
        flags.to(x.dtype) + x,
    ]


def dropped(x: torch.Tensor) -> list[torch.Tensor]:
    noise = torch.rand(x.shape)
    return [torch.nn.functional.dropout(x, 0.3, training=True), noise, noise > 0.5]


def ran(
    live: Any, schedule: Schedule, function: Any, args: tuple[torch.Tensor, ...]
) -> tuple[list[Any], str]:
    """What a function gives without whole vectors, then by a schedule; the code of this."""
    (graph,) = live.capture(live.UserProgram(function, args))
    others = tuple(choice for choice in schedule.codegen if choice.name != VECTORS)
    without, program = graph.generate(Schedule(codegen=others)), graph.generate(schedule)
    assert "whole_vectors" not in without.source
    return graph.run_each(without, program), program.source


@pytest.mark.parametrize(
    ("schedule", "columns"),
    [
        pytest.param(WHOLE, 37, id="whole, 37"),
        pytest.param(NARROW, 64, id="narrow, 64"),
        pytest.param(WHOLE, 64, id="whole, 64", marks=pytest.mark.slow),
        pytest.param(WHOLE, 5, id="whole, 5", marks=pytest.mark.slow),
        pytest.param(NARROW, 37, id="narrow, 37", marks=pytest.mark.slow),
        pytest.param(NARROW, 5, id="narrow, 5", marks=pytest.mark.slow),
    ],
)
def test_flags_are_the_same(live: Any, schedule: Schedule, columns: int) -> None:
    """Of all dtypes in one program, each with rows of its own number: loops of their own."""
    torch.manual_seed(columns)
    args: list[torch.Tensor] = []
    for rows, dtype in enumerate(DTYPES, 48):
        x, y = (torch.randn(rows, columns).mul(4).to(dtype) for _ in range(2))
        args += [x, y, torch.rand(rows, columns) > 0.5]

    def all_flagged(*args: torch.Tensor) -> list[torch.Tensor]:
        return [out for i in range(0, len(args), 3) for out in flagged(*args[i : i + 3])]

    (stock, whole), source = ran(live, schedule, all_flagged, tuple(args))
    assert all(map(torch.equal, stock, whole))
    assert {"from", "store"} <= set(re.findall(r"whole_vectors::(\w+)", source))


@pytest.mark.parametrize("schedule", [WHOLE, NARROW], ids=["whole", "narrow"])
def test_random_numbers_are_the_same(live: Any, schedule: Schedule) -> None:
    def both_dropped(x: torch.Tensor, half: torch.Tensor) -> list[torch.Tensor]:
        return [*dropped(x), *dropped(half)]

    args = (torch.randn(61, 37), torch.randn(62, 37).bfloat16())
    (stock, whole), source = ran(live, schedule, both_dropped, args)
    assert all(map(torch.equal, stock, whole))
    assert "whole_vectors::uniform<" in source and "normalized_rand_cpu" not in source
    for value in (whole[0], whole[3]):
        assert 0.2 < float((value == 0).float().mean()) < 0.4


@pytest.mark.parametrize("schedule", [WHOLE, NARROW], ids=["whole", "narrow"])
def test_normal_numbers_are_the_same(live: Any, schedule: Schedule) -> None:
    def noised(*args: torch.Tensor) -> list[torch.Tensor]:
        return [x + 3.0 * torch.randn_like(x) for x in args]

    args = (torch.zeros(601, 403), torch.zeros(602, 403).bfloat16())
    (stock, whole), source = ran(live, schedule, noised, args)
    assert all(map(torch.equal, stock, whole))
    assert "whole_vectors::normal<" in source and "randn_cpu" not in source
    for value in whole[:2]:
        assert float(value.float().std()) == pytest.approx(3.0, rel=0.01)


def test_what_is_not_done_lane_by_lane_stays() -> None:
    plain = (
        "auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + x0);\ntmp0.store(out_ptr0 + x0);"
    )
    assert by_vectors(plain) == plain
    # Only what is stored where flags are.
    flags = f"void kernel(const float* in_ptr0, bool* out_ptr1)\n{plain}\ntmp1.store(out_ptr1, 16);"
    assert by_vectors(flags) == flags.replace(
        "tmp1.store(out_ptr1", "whole_vectors::store(tmp1, out_ptr1"
    )


@pytest.mark.parametrize("width", [4, 12, 16])
@pytest.mark.parametrize(
    ("one", "all_of_them"), [("normalized_rand", "uniform"), ("randn", "normal")]
)
def test_vectors_of_eight_are_drawn_at_once(width: int, one: str, all_of_them: str) -> None:
    loop = (
        f"for( int64_t offset_idx = 0; offset_idx < {width}; offset_idx++ )\n{{\n    "
        f"result[offset_idx] = {one}_cpu(tmp0, offset[offset_idx]);\n}}"
    )
    drawn = f"whole_vectors::{all_of_them}<{width}>(tmp0, offset, result);"
    assert by_vectors(loop) == (loop if width % 8 else drawn)


@pytest.mark.parametrize("flags", [True, False], ids=["flags", "numbers"])
def test_a_prediction_is_enough(store: Path, *, flags: bool) -> None:
    def f(x: Any, y: Any) -> Any:
        above = x * 2 > y
        return above if flags else torch.where(above, x, y)

    args = (torch.randn(512, 300), torch.randn(300))
    options = {"fusewise.store": str(store), "fusewise.mode": "predict"}
    assert torch.equal(torch.compile(f, backend="fusewise", options=options)(*args), f(*args))
    (report,) = fusewise.reports()
    assert report.fallback is None and report.chosen is not None
    assert (Choice(VECTORS, True) in report.chosen.schedule.codegen) is flags
