"""Reductions in shorter pieces: those that Inductor turns to itself, compiled where it finds them.

Triton compiles for a GPU that is not there, so none is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor import configurations, triton_ahead
from fusewise.compiler.inductor.block_sizes import (
    compile_shorter,
    load_kernel,
    shorter,
    sizes_of,
)
from fusewise.schedule.block_sizes import BlockSizes
from tests.compiler.triton_kernels import looped, persistent, pointwise, program

#: Registers of a thread by which one block at a time fits.
_MANY_REGISTERS = 255


def turned_to(kernel: Any) -> list[BlockSizes]:
    """What Inductor compiles besides, once a kernel is loaded that needs many registers."""
    asked: list[BlockSizes] = []

    def precompile(config: Any) -> Any:
        asked.append(sizes_of(config))
        return SimpleNamespace(config=config, kernel=SimpleNamespace(n_regs=0))

    kernel.compile_results = [
        SimpleNamespace(config=config, kernel=SimpleNamespace(n_regs=_MANY_REGISTERS))
        for config in kernel.configs
    ]
    kernel._precompile_config = precompile
    kernel._make_launchers = lambda: None
    kernel._dynamic_scale_rblock()
    return asked


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (looped(), "triton_red"),
        (looped(rows=64), "triton_red"),
        (looped(rows=1 << 20, length=2048), "triton_red"),
        (persistent(), "triton_per"),
        (pointwise(), "triton_poi"),
    ],
)
def test_it_is_what_inductor_turns_to(
    written: Callable[[str], str], source: str, name: str
) -> None:
    path = written(source)
    expected = turned_to(load_kernel(path, name))
    assert [sizes_of(config) for config in shorter(load_kernel(path, name))] == expected


def test_many_rows_are_worth_shorter_pieces(written: Callable[[str], str]) -> None:
    kernel = load_kernel(written(looped()), "triton_red")
    (own,) = kernel.configs
    (made,) = shorter(kernel)
    assert made.kwargs == own.kwargs | {"R0_BLOCK": own.kwargs["R0_BLOCK"] // 2}


def test_what_tuning_came_to_is_left_at_that(
    no_device: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    configurations.take_what_was_measured(looped())
    _, path = PyCodeCache.write(looped())
    kernel = load_kernel(path, "triton_red")
    assert turned_to(kernel)
    kernel.configs[0].found_by_coordesc = True
    assert not turned_to(kernel)


def test_what_is_to_be_the_same_in_every_run_is_left_alone(written: Callable[[str], str]) -> None:
    kernel = load_kernel(written(looped()), "triton_red")
    kernel.inductor_meta["are_deterministic_algorithms_enabled"] = True
    assert not list(shorter(kernel))


def test_nothing_begins_when_it_is_too_late(written: Callable[[str], str]) -> None:
    assert compile_shorter(written(looped()), "triton_red", {}, time.time() - 1) == 0


@pytest.mark.usefixtures("pool")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_who_waits_for_a_program_finds_them_compiled(no_device: Path) -> None:
    assert triton_ahead.await_kernels(program(looped()), {}, 120)
    assert len(list(no_device.rglob("*.cubin"))) == 2
