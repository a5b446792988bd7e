"""Block sizes that are worth compiling for a kernel, and that they are what it then finds.

Triton compiles for a GPU that is not there, so none is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightgbm
import numpy as np
import pytest

pytest.importorskip("triton")

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers
from torch._inductor.runtime import triton_helpers
from torch._inductor.utils import fresh_cache

from fusewise.compiler.inductor import blocks_ahead, configurations
from fusewise.compiler.inductor.block_sizes import (
    can_be_tried,
    compile_sizes,
    config_of,
    load_kernel,
    nearest,
    sizes_of,
    with_several,
)
from fusewise.compiler.inductor.found_blocks import found_blocks, tell_blocks
from fusewise.compiler.inductor.worth_trying import (
    expected_saving,
    most_ranked,
    ranked_by,
    worth_trying,
)
from fusewise.costmodel.block_model import BlockModel, BlockTrees
from fusewise.costmodel.block_table import BLOCK_FEATURES
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.kernel_choices import blocks_choice
from fusewise.schedule.schedule import Choice

_IMPORTS = """\
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import ReductionHint, TileHint, DeviceProperties

GPU = DeviceProperties(
    type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, warp_size=32,
)
"""
_META = (
    "'mutated_arg_names': [], 'optimize_mem': True, 'no_x_dim': False, 'num_load': 1, "
    "'num_reduction': {reductions}, 'max_autotune': False, 'max_autotune_pointwise': False, "
    "'coordinate_descent_tuning': True, 'force_disable_caches': False, 'kernel_name': '{name}', "
    "'autotune_local_cache': True, 'autotune_remote_cache': False, 'spill_threshold': 16"
)


def pointwise(name: str = "triton_poi") -> str:
    """The source of a kernel as Inductor writes it."""
    return (
        _IMPORTS
        + f"""
@triton_heuristics.pointwise(
    size_hints={{'x': 1048576}}, filename=__file__, min_elem_per_thread=0,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'XBLOCK': 'constexpr'}}, 'device': GPU, 'constants': {{}},
        'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {_META.format(reductions=0, name=name)}}},
)
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tl.store(out_ptr0 + (xindex), tl_math.exp(tl.load(in_ptr0 + (xindex), xmask)), xmask)
"""
    )


def persistent(rows: int = 4096, length: int = 1024) -> str:
    """A kernel whose blocks hold whole rows."""
    meta = _META.format(reductions=1, name="triton_per")
    return (
        _IMPORTS
        + f"""
@triton_heuristics.persistent_reduction(
    size_hints={{'x': {rows}, 'r0_': {length}}}, reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'r0_numel': 'i32', 'XBLOCK': 'constexpr'}}, 'device': GPU, 'constants': {{}},
        'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {meta}}},
)
@triton.jit
def triton_per(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr):
    R0_BLOCK: tl.constexpr = {length}
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    xmask = xindex < xnumel
    values = tl.load(in_ptr0 + (r0_index + {length} * xindex), xmask, other=0.0)
    tl.store(out_ptr0 + (xindex), tl.sum(values, 1)[:, None], xmask)
"""
    )


def looped(rows: int = 4096, length: int = 65536) -> str:
    """A kernel that goes through its rows in pieces."""
    meta = _META.format(reductions=1, name="triton_red")
    return (
        _IMPORTS
        + f"""
@triton_heuristics.reduction(
    size_hints={{'x': {rows}, 'r0_': {length}}}, reduction_hint=ReductionHint.INNER,
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32',
        'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}}, 'device': GPU,
        'constants': {{}}, 'configs': [{{(0,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', {meta}}},
)
@triton.jit
def triton_red(
    in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr
):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    xmask = xindex < xnumel
    total = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        total += tl.load(in_ptr0 + (r0_index + {length} * xindex), xmask, other=0.0)
    tl.store(out_ptr0 + (xindex), tl.sum(total, 1)[:, None], xmask)
"""
    )


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Triton compiles for a device that is not there; where its cache is."""
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(source: str) -> str:
        path = tmp_path / f"kernel{len(list(tmp_path.glob('*.py')))}.py"
        path.write_text(source)
        return str(path)

    return write


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


@pytest.fixture(scope="module")
def by_warps() -> BlockModel:
    """By which a kernel is the faster the fewer warps it has, whatever else it is."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(800, len(BLOCK_FEATURES)))
    at = [feature.name for feature in BLOCK_FEATURES].index("warps_change")
    rows[:, at] = generator.integers(-4, 5, 800)
    data = lightgbm.Dataset(rows, label=0.2 * rows[:, at])
    settings = {"num_threads": 1, "verbosity": -1, "seed": 0, "deterministic": True}
    trees = lightgbm.train(settings, data, num_boost_round=60).model_to_string()
    return BlockModel(BlockTrees(trees=str(trees), kernels=800))


def test_the_best_predicted_are_worth_trying(
    written: Callable[[str], str], no_device: Path, by_warps: BlockModel
) -> None:
    code = looped(4096, 20_000)
    path = written(code)
    own = [sizes_of(config) for config in load_kernel(path, "triton_red").configs]
    near = worth_trying(path, "triton_red", code, 32)
    assert most_ranked() is None and len(near) == 32
    assert expected_saving("triton_red", code) is None
    with ranked_by(by_warps, 6):
        few = most_ranked()
        assert few is not None
        tried = worth_trying(path, "triton_red", code, few)
        saving = expected_saving("triton_red", code)
    assert len(tried) == few < len(near) and tried[: len(own)] == own
    assert all(sizes.warps < min(o.warps for o in own) for sizes in tried[len(own) :])
    fewest = min(sizes.warps for sizes in tried)
    assert saving == pytest.approx(1 - 2 ** (0.2 * np.log2(fewest / own[0].warps)), abs=0.2)
    assert saving > 0.1


def test_of_a_kernel_that_the_model_cannot_read_the_nearest_are_tried(
    written: Callable[[str], str], no_device: Path, by_warps: BlockModel
) -> None:
    code = looped().replace("r0_index + 65536 * xindex", "r0_index + ks0 * xindex")
    path = written(code)
    near = worth_trying(path, "triton_red", code, 6)
    with ranked_by(by_warps, 6):
        assert expected_saving("triton_red", code) is None
        assert worth_trying(path, "triton_red", code, 6) == near
    assert len(near) == 6


def test_block_sizes_that_were_found_are_told_to_the_same_kernel(
    no_device: Path,
) -> None:
    source = program(looped(), persistent())
    nodes = {"triton_red": frozenset({"op0", "op1"}), "triton_per": frozenset({"op2"})}
    codegen = (blocks_choice("op1", "descent"), blocks_choice("op2", "descent"))
    sizes = BlockSizes((("R0_BLOCK", 1024), ("XBLOCK", 2)), 8, 1)
    with fresh_cache():
        assert found_blocks(source, nodes, codegen) == ()
        told = (Choice("blocks:op1", sizes.text), Choice("blocks:op9", sizes.text))
        (kernel,) = tell_blocks(source, nodes, told)
        assert (kernel.name, kernel.sizes) == ("triton_red", sizes)
        assert found_blocks(source, nodes, codegen) == told[:1]
        # What does not fit a kernel is left to be tuned.
        assert tell_blocks(source, nodes, (Choice("blocks:op2", sizes.text),)) == ()
        assert found_blocks(source, nodes, codegen) == told[:1]
    with fresh_cache():
        assert found_blocks(source, nodes, codegen) == ()


def program(*codes: str) -> str:
    """A generated program with these kernels."""
    lines = ["async_compile = AsyncCompile()"]
    for code in codes:
        name = code.split("\ndef ")[1].split("(")[0]
        lines.append(f"{name} = async_compile.triton({name!r}, {code!r}, device_str='cuda')")
    return "\n".join(lines)


@pytest.fixture
def pool(no_device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Inductor's pool of processes, which are copies of this one: they know of no device either."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setattr(blocks_ahead, "_asked", type(blocks_ahead._asked)())
    with inductor_config.patch(compile_threads=2, worker_start_method="fork"):
        shutdown_compile_workers()
        AsyncCompile.wait_pool_ready()
        yield AsyncCompile.process_pool()
        shutdown_compile_workers()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_pool_compiles_them_for_all_kernels_at_once(
    pool: Any, no_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_ahead, "_FEWEST", 4)
    monkeypatch.setattr(blocks_ahead, "_EACH", 2)
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", 60.0)
    plain = pointwise("triton_plain").replace(blocks_ahead._STEPS, "'x': 1")
    source = program(pointwise(), persistent(), plain)
    assert blocks_ahead.await_blocks(source, 60.0) == {}
    blocks_ahead.ask_for_blocks(source, {})
    asked = {path: list(asked.futures) for path, asked in blocks_ahead._asked.items()}
    assert sorted(map(len, asked.values())) == [4, 4]
    compiled = blocks_ahead.await_blocks(source, 60.0)
    assert {path: list(sizes) for path, sizes in compiled.items()} == asked
    cubins = sorted(no_device.rglob("*.cubin"))
    assert len(cubins) == 8
    # Asked for once.
    blocks_ahead.ask_for_blocks(source, {})
    assert {p: list(a.futures) for p, a in blocks_ahead._asked.items()} == asked


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_is_not_compiled_in_time_is_not_told(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks_ahead, "_COMPILING_S", -1.0)
    source = program(pointwise())
    blocks_ahead.ask_for_blocks(source, {})
    assert blocks_ahead._asked
    assert blocks_ahead.await_blocks(source, 60.0) == {}


def test_without_a_pool_nothing_is_asked_for(no_device: Path) -> None:
    with inductor_config.patch(compile_threads=1):
        blocks_ahead.ask_for_blocks(program(pointwise()), {})
    assert blocks_ahead.await_blocks(program(pointwise()), 1.0) == {}


class Timed:
    """A kernel whose compiled variants do nothing, and take as long as they are said to."""

    def __init__(self, kernel: Any, us: Callable[[BlockSizes], float]) -> None:
        self.kernel, self._us = kernel, us
        self.loaded: list[BlockSizes] = []
        kernel._precompile_config = self._compiled

    def _compiled(self, config: Any) -> Any:
        sizes = sizes_of(config)
        self.loaded.append(sizes)
        return SimpleNamespace(make_launcher=lambda: self.launcher(config))

    def launcher(self, config: Any) -> Any:
        sizes = sizes_of(config)
        if self._us(sizes) == math.inf:
            raise RuntimeError("out of resource: registers")

        def launch(*args: Any, stream: int) -> BlockSizes:
            del args, stream
            return sizes

        # What Inductor tells of them in its log, too.
        told = {"config": config, "n_spills": 0, "n_regs": 32, "shared": 0, "cache_hash": None}
        vars(launch).update(told)
        return launch

    def clock(self, call: Callable[[], Any]) -> Callable[[], float]:
        (launcher,) = (c.cell_contents for c in call.__closure__ or () if callable(c.cell_contents))
        us = self._us(sizes_of(launcher.config))
        return lambda: us

    def tuned(self) -> Any:
        """What Inductor would launch it with."""
        first = self.launcher(self.kernel.configs[0])
        return self.kernel.coordinate_descent_tuning(first)


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
