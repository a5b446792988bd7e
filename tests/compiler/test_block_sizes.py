"""Block sizes that are worth compiling for a kernel, and that they are what it then finds.

Triton compiles for a GPU that is not there, so none is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from torch._inductor import config as inductor_config

from fusewise.compiler.inductor import blocks_ahead, configurations
from fusewise.compiler.inductor.block_sizes import (
    STEPS,
    can_be_tried,
    compile_sizes,
    config_of,
    load_kernel,
    nearest,
    sizes_of,
    with_several,
    without_steps,
)
from fusewise.schedule.block_sizes import BlockSizes
from tests.compiler.timed_kernel import Timed
from tests.compiler.triton_kernels import looped, persistent, pointwise, program


@pytest.mark.parametrize("setting", ["deterministic", "are_deterministic_algorithms_enabled"])
def test_what_is_to_be_the_same_in_every_run_is_left_alone(
    written: Callable[[str], str], setting: str
) -> None:
    kernel = load_kernel(written(persistent()), "triton_per")
    assert can_be_tried(kernel)
    kernel.inductor_meta[setting] = True
    assert not can_be_tried(kernel)


def near_ones(write: Callable[[str], str], source: str, name: str, most: int) -> Any:
    kernel = load_kernel(write(source), name)
    others = load_kernel(write(with_several(source)), name)
    return kernel, nearest(kernel, others.configs, most)


def held(sizes: BlockSizes, others: int = 1) -> float:
    """Values for each thread."""
    blocks = 1
    for name, size in sizes.constants:
        blocks *= size if name.endswith("BLOCK") else 1
    return blocks * others / (32 * sizes.warps)


def test_inductors_own_come_first_and_then_what_is_near(written: Callable[[str], str]) -> None:
    kernel, found = near_ones(written, pointwise(), "triton_poi", 20)
    own = [sizes_of(config) for config in kernel.configs]
    assert found[: len(own)] == own
    assert len(found) == len(set(found)) == 20
    (first, *_) = own
    (block,) = (size for _, size in first.constants)
    for other in (block // 2, block * 2):
        assert BlockSizes((("XBLOCK", other),), first.warps, first.stages) in found[: 2 + 8]
    assert {sizes.warps for sizes in found} > {first.warps // 2, first.warps * 2}
    assert all(1 <= held(sizes) <= 64 for sizes in found)


def test_a_block_that_holds_rows_is_no_larger_than_its_threads_can_hold(
    written: Callable[[str], str],
) -> None:
    kernel, found = near_ones(written, persistent(), "triton_per", 24)
    own = [sizes_of(config) for config in kernel.configs]
    assert found[: len(own)] == own and len(found) > 8
    assert all(name == "XBLOCK" for sizes in found for name, _ in sizes.constants)
    assert all(1 <= held(sizes, 1024) <= 64 for sizes in found)
    # What Inductor starts from where it is to try several is tried, too.
    several = load_kernel(written(with_several(persistent())), "triton_per").configs
    assert {sizes_of(config) for config in several} <= set(found)


def test_each_size_of_a_kernel_that_loops_is_changed_first_by_itself(
    written: Callable[[str], str],
) -> None:
    kernel, found = near_ones(written, looped(), "triton_red", 32)
    (own,) = (sizes_of(config) for config in kernel.configs)
    assert found[0] == own and len(found) == 32
    changed = [
        [n for (n, a), (_, b) in zip(own.constants, one.constants, strict=True) if a != b]
        + ["warps"] * (one.warps != own.warps)
        for one in found[1:]
    ]
    alone = [names for names in changed if len(names) == 1]
    assert {names[0] for names in alone} == {"XBLOCK", "R0_BLOCK", "warps"}
    first = [len(names) for names in changed].index(2)
    assert len(changed[:first]) >= 4
    assert all(1 <= held(sizes) <= 64 for sizes in found[1:first])


def test_what_is_compiled_ahead_is_found_by_who_loads_the_kernel(
    written: Callable[[str], str], no_device: Path
) -> None:
    path = written(persistent())
    kernel = load_kernel(path, "triton_per")
    assert can_be_tried(kernel)
    chosen = nearest(kernel, (), 3)
    for sizes in chosen:
        assert compile_sizes(path, "triton_per", sizes, {}, time.time() + 60)
    compiled = sorted(no_device.rglob("*.cubin"))
    assert len(compiled) == 3
    assert {sizes_of(config_of(sizes, kernel.configs[0])) for sizes in chosen} == set(chosen)
    for sizes in chosen:
        kernel._precompile_config(config_of(sizes, kernel.configs[0]))
    assert sorted(no_device.rglob("*.cubin")) == compiled


def test_whether_it_is_tuned_makes_no_difference_to_the_compiler(
    written: Callable[[str], str], no_device: Path
) -> None:
    plain = without_steps(looped())
    assert "coordinate_descent" in looped() and "coordinate_descent" not in plain
    (own,) = nearest(load_kernel(written(looped()), "triton_red"), (), 1)
    for source in (looped(), plain):
        assert compile_sizes(written(source), "triton_red", own, {}, time.time() + 60)
    assert len(list(no_device.rglob("*.cubin"))) == 1


def test_nothing_is_compiled_when_time_is_up(
    written: Callable[[str], str], no_device: Path
) -> None:
    path = written(pointwise())
    (first, *_) = nearest(load_kernel(path, "triton_poi"), (), 1)
    assert not compile_sizes(path, "triton_poi", first, {}, time.time() - 1)
    assert not list(no_device.rglob("*.cubin"))


def test_reductions_that_share_rows_are_left_alone(written: Callable[[str], str]) -> None:
    kernel = load_kernel(written(persistent()), "triton_per")
    kernel.configs[0].kwargs["RSPLIT"] = 4
    assert not can_be_tried(kernel)


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_ahead, "_asked", type(blocks_ahead._asked)())


@pytest.mark.usefixtures("pool")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_compiles_them_for_all_kernels_at_once(
    no_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_ahead, "_FEWEST", 4)
    monkeypatch.setattr(blocks_ahead, "_EACH", 2)
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)
    plain = pointwise("triton_plain").replace(STEPS, "'x': 1")
    source = program(pointwise(), persistent(), plain)
    assert blocks_ahead.await_blocks(source, 60.0) == {}
    blocks_ahead.ask_for_blocks(source, {})
    asked = {path: list(asked.futures) for path, asked in blocks_ahead._asked.items()}
    assert sorted(map(len, asked.values())) == [4, 4]
    compiled = blocks_ahead.await_blocks(source, 60.0)
    assert [list(sizes) for sizes in compiled.values()] == list(asked.values())
    cubins = sorted(no_device.rglob("*.cubin"))
    assert len(cubins) == 8
    # Asked for once.
    blocks_ahead.ask_for_blocks(source, {})
    assert {p: list(a.futures) for p, a in blocks_ahead._asked.items()} == asked


@pytest.mark.usefixtures("pool")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_block_sizes_come_once_the_pool_has_started(
    no_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)
    monkeypatch.setattr(blocks_ahead, "_MOST", 3)
    monkeypatch.setattr(blocks_ahead, "_FEWEST", 3)
    source = program(pointwise(), persistent())
    with monkeypatch.context() as starting:
        starting.setattr(blocks_ahead.AsyncCompile, "use_process_pool", lambda: False)
        blocks_ahead.ask_for_blocks(source, {})
        coming = blocks_ahead.rounds_to_come(source)
        assert len(coming) == 2 and not blocks_ahead._asked
    assert [len(rounds.coming()) for rounds in coming.values()] == [3, 3]
    # All were asked for at once.
    assert len(blocks_ahead._asked) == len(coming)
    assert blocks_ahead.rounds_to_come(source).keys() == coming.keys()


@pytest.mark.usefixtures("pool")
def test_a_pool_that_does_not_start_is_waited_for_once(
    no_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(blocks_ahead.AsyncCompile, "use_process_pool", lambda: False)
    monkeypatch.setattr(blocks_ahead, "await_pool", waited.append)
    coming = blocks_ahead.rounds_to_come(program(pointwise(), persistent()))
    assert [rounds.coming() for rounds in coming.values()] == [(), ()]
    assert len(waited) == 1


@pytest.mark.usefixtures("pool")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_is_not_compiled_in_time_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", -1.0)
    source = program(pointwise())
    blocks_ahead.ask_for_blocks(source, {})
    assert blocks_ahead._asked
    assert blocks_ahead.await_blocks(source, 60.0) == {}


def test_without_a_pool_nothing_is_asked_for(no_device: Path) -> None:
    with inductor_config.patch(compile_threads=1):
        blocks_ahead.ask_for_blocks(program(pointwise()), {})
    assert blocks_ahead.await_blocks(program(pointwise()), 1.0) == {}


@pytest.fixture
def offered(
    written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Any, list[BlockSizes]]]:
    """Path, kernel and block sizes that are said to be compiled for it."""
    path = written(persistent())
    kernel = load_kernel(path, "triton_per")
    sizes = nearest(kernel, (), 12)
    monkeypatch.setattr(configurations, "_clock", None)
    configurations.offer_blocks({path: tuple(sizes)})
    yield path, kernel, sizes
    configurations._offered.clear()


def test_the_fastest_of_what_is_compiled_is_taken_and_kept(offered: Any) -> None:
    path, kernel, sizes = offered
    best = sizes[7]
    timed = Timed(kernel, lambda one: 5.0 if one == best else 10.0)
    configurations.tune_warm(timed.clock)
    launcher = timed.tuned()
    assert sizes_of(launcher.config) == best and launcher.config.found_by_coordesc
    # The one that was there is not compiled once more.
    assert timed.loaded == sizes[1:]
    (kept,) = load_kernel(path, "triton_per").configs
    assert sizes_of(kept) == best and kept.found_by_coordesc


def test_what_is_hardly_faster_and_what_does_not_run_is_not_taken(offered: Any) -> None:
    path, kernel, sizes = offered
    us = {sizes[2]: math.inf, sizes[5]: 9.95}
    timed = Timed(kernel, lambda one: us.get(one, 10.0))
    configurations.tune_warm(timed.clock)
    assert sizes_of(timed.tuned().config) == sizes[0]
    # That nothing is better is known from now on.
    (kept,) = load_kernel(path, "triton_per").configs
    assert sizes_of(kept) == sizes[0] and kept.found_by_coordesc


def test_where_nothing_is_compiled_inductor_tunes_step_by_step(offered: Any) -> None:
    _, kernel, sizes = offered
    configurations._offered.clear()
    timed = Timed(kernel, lambda one: 5.0 if one in sizes[1:3] else 10.0)
    configurations.tune_warm(timed.clock)
    # It compiles what no list says, one after the other.
    assert sizes_of(timed.tuned().config) in sizes
    assert len(timed.loaded) > 1 and timed.loaded != sizes[1:]
