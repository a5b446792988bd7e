"""Block sizes that a collection compiles and times: which, that they are found, what comes of them.

Triton compiles for a GPU that is not there, so only the test of a whole collection needs one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_helpers

from fusewise.compiler.collecting.blocks import blocks_row, with_blocks
from fusewise.compiler.collecting.run import items, run
from fusewise.compiler.collecting.station import Station
from fusewise.compiler.collecting.work import Call, KernelRun, Settings
from fusewise.compiler.collecting.worker import Timed
from fusewise.compiler.inductor.block_draw import (
    KernelBlocks,
    compiled_blocks,
    draw,
    source_hash,
)
from fusewise.compiler.inductor.block_sizes import config_of, load_kernel, sizes_of
from fusewise.compiler.inductor.triton_ahead import triton_kernels
from fusewise.compiler.measuring.block_timing import LoadedBlocks, time_blocks
from fusewise.compiler.measuring.job import ProgramJob
from fusewise.compiler.measuring.sampling import BlockTimes
from fusewise.datasets.corpus import CorpusSpec
from fusewise.datasets.rows import decode_source
from fusewise.datasets.store import Store
from fusewise.schedule.block_sizes import BlockSizes
from tests.compiler.test_block_sizes import persistent, pointwise, program


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Triton compiles for a device that is not there; where its cache is."""
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


def soon() -> float:
    return time.monotonic() + 100


def sizes(number: int) -> BlockSizes:
    return BlockSizes((("XBLOCK", number),), 4, 1)


def test_half_are_the_nearest_and_the_same_each_time() -> None:
    by_distance = [sizes(n) for n in range(60)]
    drawn = draw(by_distance, 9, "seed")
    assert len(set(drawn)) == 9 and set(drawn) >= set(by_distance[:5])
    assert drawn == draw(by_distance, 9, "seed") != draw(by_distance, 9, "other")
    assert set(draw(by_distance[:4], 9, "seed")) == set(by_distance[:4])
    assert draw(by_distance, 0, "seed") == []


def test_they_are_found_by_who_loads_the_kernel(caches: Path, tmp_path: Path) -> None:
    found = compiled_blocks("triton_per", persistent(), 4, soon())
    assert found is not None and found.failed == frozenset()
    path = tmp_path / "kernel.py"
    path.write_text(persistent())
    kernel = load_kernel(str(path), "triton_per")
    own = list(map(sizes_of, kernel.configs))
    assert list(found.sizes[: found.own]) == own and len(found.sizes) == len(own) + 4
    compiled = sorted(caches.rglob("*.cubin"))
    assert len(compiled) == len(found.sizes)
    for one in found.compiled:
        kernel._precompile_config(config_of(one, kernel.configs[0]))
    assert sorted(caches.rglob("*.cubin")) == compiled


def test_what_was_found_to_be_best_before_stands_for_nothing(caches: Path) -> None:
    first = compiled_blocks("triton_per", persistent(), 2, soon())
    assert first is not None
    _, path = PyCodeCache.write(persistent())
    kernel = load_kernel(path, "triton_per")
    kernel.save_cache_hook(config_of(first.sizes[-1], kernel.configs[0]), 0, found_by_coordesc=True)
    assert sizes_of(load_kernel(path, "triton_per").configs[0]) == first.sizes[-1]
    assert compiled_blocks("triton_per", persistent(), 2, soon()) == first


def test_a_kernel_is_the_same_by_another_name(caches: Path) -> None:
    renamed = pointwise("triton_poi_fused_exp_7")
    assert source_hash("triton_poi_fused_exp_7", renamed) == source_hash("triton_poi", pointwise())
    assert source_hash("triton_per", persistent()) != source_hash("triton_poi", pointwise())


def test_no_time_and_no_kernel(caches: Path) -> None:
    assert compiled_blocks("triton_poi", pointwise(), 4, time.monotonic() - 1) is None
    assert compiled_blocks("triton_poi", "raise ValueError", 4, soon()) is None
    assert not list(caches.rglob("*.cubin"))


def runs_of(*sources: str, wanted: bool = True) -> list[KernelRun]:
    whole = program(*sources)
    calls = tuple(
        Call("kernel", name, f"signature of {name}", (name,), (1.0,), wanted)
        for name, _, _ in triton_kernels(whole)
    )
    return [KernelRun(ProgramJob("a", whole, {}, {}), "problem", calls)]


def test_each_source_once_and_only_what_is_timed(caches: Path) -> None:
    timed = Timed({})
    sources = (pointwise(), pointwise("triton_other"), persistent())
    (unwanted,) = with_blocks(runs_of(*sources, wanted=False), timed, 2, 100.0)
    assert unwanted.blocks == {}
    (late,) = with_blocks(runs_of(*sources), Timed({}), 2, -1.0)
    assert late.blocks == {}
    (first,) = with_blocks(runs_of(*sources), timed, 2, 100.0)
    assert first.blocks.keys() == {"triton_poi", "triton_per"}
    assert all(len(found.sizes) == found.own + 2 for found in first.blocks.values())
    (again,) = with_blocks(runs_of(*sources), timed, 2, 100.0)
    assert again.blocks == {}


BLOCKS = KernelBlocks(
    "h", "triton_poi", "source", 2, tuple(map(sizes, (1, 2, 3, 4))), frozenset({sizes(3)})
)


def test_row_has_what_was_timed_and_what_failed() -> None:
    row = blocks_row(BLOCKS, BlockTimes((5.0, None, 7.0), 4, 0.01), "d", "g")
    assert row is not None and decode_source(row.source) == "source"
    assert dict(zip(row.sizes, row.us, strict=True)) == {
        sizes(1): 5.0,
        sizes(2): None,
        sizes(3): None,
        sizes(4): 7.0,
    }
    assert (row.own, row.rounds, row.spread, row.device_key) == (2, 4, 0.01, "d")
    # Time was up before the last.
    short = blocks_row(BLOCKS, BlockTimes((5.0, 6.0), 4, None), "d", "g")
    assert short is not None and short.sizes == BLOCKS.sizes[:3] and short.us == (5.0, 6.0, None)


@pytest.mark.parametrize("us", [(None, 6.0, 7.0), (5.0,), (5.0, None), ()])
def test_no_row_without_a_comparison(us: tuple[float | None, ...]) -> None:
    assert blocks_row(BLOCKS, BlockTimes(us, 4, None), "d", "g") is None


class Launcher:
    """Stands for a compiled variant; takes as long as it is said to."""

    def __init__(self, seconds: float, spilled: int = 0) -> None:
        self.seconds, self.n_spills, self.config = seconds, spilled, "config"

    def __call__(self) -> None:
        raise AssertionError("nothing here has a device")


def timed_as(launch: Callable[[], Any]) -> float:
    (launcher,) = (c.cell_contents for c in launch.__closure__ or () if callable(c.cell_contents))
    if launcher.seconds < 0:
        raise RuntimeError("out of resource")
    return float(launcher.seconds)


def test_all_are_timed_in_turns_but_what_spills_or_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(persistent())
    kernel = load_kernel(str(path), "triton_per")
    order: list[float] = []

    def clock(launch: Callable[[], Any]) -> Callable[[], float]:
        def sample() -> float:
            order.append(timed_as(launch))
            return order[-1]

        return sample

    launchers = [Launcher(5e-6), None, Launcher(7e-6, spilled=99), Launcher(-1), Launcher(0.5)]
    launchers.append(Launcher(6e-6))
    found = time_blocks(kernel, launchers, (), {}, look=timed_as, clock=clock)
    assert found is not None
    assert found.us == pytest.approx((5.0, None, None, None, 5e5, 6.0))
    # What takes long by itself is in no round.
    assert order == [5e-6, 6e-6] * found.rounds and found.rounds >= 3
    assert found.spread == 0.0
    kernel.reset_to_zero_arg_names = ["out_ptr0"]
    assert time_blocks(kernel, launchers, (), {}, look=timed_as, clock=clock) is None


def test_what_computes_something_else_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    kernel = SimpleNamespace(
        fn=SimpleNamespace(arg_names=["in_ptr0", "out_ptr0"], __name__="triton_poi"),
        mutated_arg_names=(),
        reset_to_zero_arg_names=(),
        custom_kernel=False,
        device_props=SimpleNamespace(type="cuda"),
        inductor_meta={},
        clone_args=lambda *args, **kwargs: (args, kwargs),
    )

    def launcher(factor: float) -> Any:
        def launch(x: torch.Tensor, out: torch.Tensor, *, stream: int) -> None:
            del stream
            torch.mul(x, factor, out=out)

        launch.n_spills, launch.config = 0, factor  # type: ignore[attr-defined]
        return launch

    def look(launch: Callable[[], Any]) -> float:
        launch()
        return 1.0

    x = torch.randn(100)
    out = torch.zeros(100)
    found = time_blocks(kernel, [launcher(f) for f in (2.0, 3.0, 2.0)], (x, out), {}, look=look)
    assert found is not None
    assert found.us == pytest.approx((1e6, None, 1e6))
    assert torch.equal(out, 2 * x)
    assert time_blocks(kernel, [None, launcher(2.0)], (x, out), {}, look=look) is None


def test_kernels_are_loaded_with_each_size_and_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(persistent())
    kernel = load_kernel(str(path), "triton_per")
    own = SimpleNamespace(config=kernel.configs[0])
    kernel.launchers = [own]

    def precompile(config: Any) -> Any:
        if config.kwargs["XBLOCK"] == 2:
            raise RuntimeError("out of resource: shared memory")
        return SimpleNamespace(make_launcher=lambda: config)

    kernel._precompile_config = precompile
    module: Any = ModuleType("program")
    module.triton_per = kernel
    wanted = {"triton_per": [sizes(1), sizes(2), sizes(4)], "triton_gone": [sizes(1)]}
    loaded = LoadedBlocks(module, wanted)
    first = loaded.take("triton_per")
    assert [one and sizes_of(one) for one in first] == [sizes(1), None, sizes(4)]
    assert kernel.launchers == [own]
    assert loaded.take("triton_per") == loaded.take("triton_gone") == []


@pytest.mark.gpu
def test_collection_times_each_kernel_with_several(
    tmp_path: Path, profiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    (tmp_path / "devices").symlink_to(profiled)
    store = Store.open(tmp_path / "store.duckdb")
    settings = Settings(
        device="cuda",
        home=str(tmp_path),
        plans=1,
        lowerings=0,
        schedules=0,
        workers=1,
        block_sizes=6,
    )
    station = Station(settings, store.measured_signatures)
    spec = CorpusSpec(name="generated", scale=4.0)
    # The second time round kernels are timed again, but not with several block sizes.
    tally = run([station], items([spec], seed=0, limit=2, rounds=2, done=()), store)
    store.ingest()
    rows = store.block_samples()
    # Kernels that differ only for the model of kernels may have one source.
    assert tally.items == 4 and tally.kernels > tally.blocks >= len(rows) > 0
    for row in rows:
        assert row.device_key == station.device_key and store.graph(row.graph_key) is not None
        assert source_hash(row.name, row.source) == row.source_hash
        assert 0 < row.own < len(row.sizes) == len(row.us) <= row.own + 6
        assert len(set(row.sizes)) == len(row.sizes)
        timed = [us for us in row.us if us is not None]
        assert row.us[0] is not None and len(timed) > 1 and all(0.1 < us < 1e5 for us in timed)
        assert row.rounds >= 3 and row.spread is not None and row.spread < 0.2
