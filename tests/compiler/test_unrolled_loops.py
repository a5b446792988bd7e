"""Loops over rows that take several turns at once: which of them, and that nothing else changes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from fusewise.compiler.inductor.choices import UNROLLED
from fusewise.compiler.inductor.unrolled_loops import TURNS_AT_ONCE, unrolled
from fusewise.schedule.schedule import Choice, Schedule

TURNS = Schedule(codegen=(Choice(UNROLLED, True),))
ROWS = "for r0_offset in tl.range(0, r0_numel, R0_BLOCK):"
INNER = "for r1_offset in tl.range(0, r1_numel, R1_BLOCK):"
SHARED = "for r0_offset in tl.range(rsplit_start, rsplit_end, R0_BLOCK):"
FACTOR = f", loop_unroll_factor={TURNS_AT_ONCE}"


def changed(*lines: Any) -> list[Any]:
    """The lines that are others than before."""
    found = unrolled(lines)
    assert len(found) == len(lines)
    assert unrolled(found) == found
    return [new for new, old in zip(found, lines, strict=True) if new != old]


def with_factor(line: str) -> str:
    return f"{line[:-2]}{FACTOR}):"


@pytest.mark.parametrize("head", [ROWS, SHARED, f"    {ROWS}"])
def test_a_loop_takes_several_turns_at_once(head: str) -> None:
    indent = " " * (len(head) - len(head.lstrip()))
    assert changed("x0 = xindex", head, f"{indent}    tmp0 = 1", "x1 = 2") == [with_factor(head)]


def test_each_of_several_loops_does() -> None:
    lines = (ROWS, "    tmp0 = 1", "tmp2 = tl.sum(_tmp2, 1)[:, None]", ROWS, "    tmp3 = 2")
    assert changed(*lines) == [with_factor(ROWS)] * 2


def test_of_loops_within_each_other_only_the_inner_does() -> None:
    inner = f"    {INNER}"
    nested = (ROWS, "    r0_mask = 1", "", inner, "        tmp0 = 1", "    r1 = 0")
    assert changed(*nested, ROWS, "    tmp1 = 1") == [with_factor(inner), with_factor(ROWS)]


@pytest.mark.parametrize(
    "line",
    [
        "for _ in tl.range(0, split_size, XBLOCK, num_stages=NUM_STAGES):",
        "for r0_offset in tl.range(0, r0_numel, R0_BLOCK, num_stages = 2):",
        "tmp0 = tl.load(in_ptr0 + (r0_1), r0_mask)",
        object(),
    ],
)
def test_what_is_no_plain_loop_stays(line: Any) -> None:
    assert changed(line) == []


def without_paths(source: str) -> str:
    """A program without the files that its kernels are kept in, which go by their code."""
    return re.sub(r"# kernel path: .*", "", source)


def looped(x: torch.Tensor) -> list[torch.Tensor]:
    return [x.sum(1), x.amax(1), (x - x.mean(1, keepdim=True)).square().sum(1)]


@pytest.mark.gpu
@pytest.mark.parametrize("length", [2049, 5001, 8192])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_the_same(live: Any, length: int, dtype: torch.dtype) -> None:
    """Of rows that end within a turn, and of some that do not."""
    x = torch.randn(4096, length, device="cuda").to(dtype)
    (graph,) = live.capture(live.UserProgram(looped, (x,)))
    program = graph.generate(TURNS)
    heads = re.findall(r"for r0_offset in .*", program.source)
    assert heads and all(FACTOR in head for head in heads)
    assert without_paths(program.source.replace(FACTOR, "")) == without_paths(graph.stock.source)
    found = graph.run(program)
    live.difference(found, graph.eager())
    for ours, stock in zip(found, graph.run(graph.stock), strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_kernels_without_a_loop_stay(live: Any) -> None:
    x = torch.randn(4096, 512, device="cuda")
    (graph,) = live.capture(live.UserProgram(lambda x: x.softmax(1) + x.exp(), (x,)))
    assert graph.generate(TURNS).source == graph.stock.source
