"""Block models from kernels whose times follow a law: fitted, judged, kept, and told of."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.block_model import BlockModel, blocks_of
from fusewise.costmodel.block_table import BLOCK_FEATURES
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.registry import load_model
from fusewise.costmodel.triton_source import facts_of
from fusewise.datasets.rows import BlocksRow, encode_source
from fusewise.datasets.store import Store
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.training import block_training
from fusewise.training.block_fit import MIN_KERNELS, fit_blocks
from fusewise.training.block_scores import FIRST, judge_blocks, large, nearest_first
from fusewise.training.command import main
from fusewise.training.timed_blocks import TimedKernel, block_rows, usable

KERNEL = """\
import triton
@triton_heuristics.pointwise(
    size_hints={{'y': {y}, 'x': {x}}},
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'ynumel': 'i32',
        'xnumel': 'i32'}}, 'device': DeviceProperties(multi_processor_count=132)}},
    inductor_meta={{'grid_type': 'Grid2D', 'num_load': 1, 'num_store': 1}},
)
@triton.jit
def triton_poi(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK, XBLOCK):
    ynumel = {y}
    xnumel = {x}
    yindex = tl.program_id(1) * YBLOCK + tl.arange(0, YBLOCK)[:, None]
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + ({index}), xmask)
    tl.store(out_ptr0 + (xindex + {x}*yindex), tmp0, xmask)
"""
COLUMN = {feature.name: at for at, feature in enumerate(BLOCK_FEATURES)}
FAMILIES = 5


def source_of(number: int) -> str:
    """A copy, or a transposition: every other one."""
    x, y = 64 * (1 + number % 7), 256 << number % 5
    index = f"xindex + {x}*yindex" if number % 2 else f"yindex + {y}*xindex"
    return KERNEL.format(x=x, y=y, index=index) + f"# {number}\n"


def timed(number: int, *, noise: float = 0.01, us: float = 20.0) -> TimedKernel:
    """Sectors that are touched and half-empty warps take time; each eleventh does not compile."""
    generator = np.random.default_rng(number)
    source = source_of(number)
    facts = facts_of(source)
    assert facts is not None
    own = [BlockSizes((("XBLOCK", 256), ("YBLOCK", 4)), 4, 1)]
    others = [
        BlockSizes((("XBLOCK", 1 << int(x)), ("YBLOCK", 1 << int(y))), 1 << int(w), 1)
        for x, y, w in generator.integers((3, 0, 0), (10, 7, 4), size=(12, 3))
    ]
    sizes = list(dict.fromkeys(own + others))
    rows = block_features(facts, sizes, sizes[0])
    log = 0.6 * rows[:, COLUMN["sector_ratio"]] + 0.05 * np.abs(rows[:, COLUMN["each"]] - 3)
    times = us * np.exp(log + generator.normal(0.0, noise, len(sizes)))
    told = [None if at % 11 == 10 else float(one) for at, one in enumerate(times)]
    return TimedKernel(source, tuple(sizes), 1, tuple(told), f"family{number % FAMILIES}")


@pytest.fixture(scope="module")
def kernels() -> list[TimedKernel]:
    return usable(timed(number) for number in range(60))


@pytest.fixture(scope="module")
def model(kernels: list[TimedKernel]) -> BlockModel:
    return fit_blocks([kernel for kernel in kernels if kernel.label != "family0"], seed=3)


def test_it_finds_good_sizes_of_kernels_that_it_has_not_seen(
    kernels: list[TimedKernel], model: BlockModel
) -> None:
    held = [kernel for kernel in kernels if kernel.label == "family0"]
    found = judge_blocks(model, held)
    assert found is not None and found.kernels == len(held) == 12
    kept = [found.model.first[str(k)].kept for k in FIRST]
    assert kept == sorted(kept) and kept[-1] == pytest.approx(1.0, abs=0.05)
    assert kept[0] > 0.7
    for k in ("1", "2"):
        assert found.model.first[k].regret < found.nearest.first[k].regret
    assert found.own.kept == 0.0 and found.own.regret > found.model.first["1"].regret
    assert found.best_gain > 1.1
    sure = found.untimed["0.9"]
    assert 0 < sure.taken <= found.untimed["0.95"].taken <= 12
    assert sure.slower <= 1 and sure.gain > 1.0


def test_equal_kernels_and_seeds_give_equal_trees(
    kernels: list[TimedKernel], model: BlockModel
) -> None:
    fitted = [kernel for kernel in kernels if kernel.label != "family0"]
    assert fit_blocks(fitted[::-1], seed=3).kept == model.kept
    assert fit_blocks(fitted, seed=4).kept != model.kept
    assert (model.kept.kernels, model.kept.kinds) == (48, ("pointwise",))


def test_rows_are_of_what_could_be_timed(kernels: list[TimedKernel]) -> None:
    few = kernels[:3]
    rows = block_rows(few)
    expected = [sum(one is not None for one in kernel.us) for kernel in few]
    assert np.bincount(rows.kernel).tolist() == expected
    assert rows.features.shape == (sum(expected), len(BLOCK_FEATURES))
    first = np.flatnonzero(np.diff(rows.kernel, prepend=-1))
    assert (rows.log_ratio[first] == 0.0).all()
    assert (rows.weight == 1.0).all()
    (short,) = usable([timed(1, us=0.15)])
    assert 0.1 <= short.weight < 0.2 and not large([short])


def test_what_cannot_be_compared_is_left_out() -> None:
    good = timed(1)
    unknown = TimedKernel("no kernel", good.sizes, good.own, good.us)
    untimed = TimedKernel(good.source, good.sizes, good.own, (None, *good.us[1:]))
    alone = TimedKernel(good.source, good.sizes[:1], 1, good.us[:1])
    assert usable([unknown, good, untimed, alone]) == [good]
    assert judge_blocks(fit_blocks([good]), []) is None


def test_the_nearest_are_few_steps_away() -> None:
    own = BlockSizes((("XBLOCK", 64),), 4, 1)
    sizes = (
        own,
        BlockSizes((("XBLOCK", 512),), 4, 1),
        BlockSizes((("XBLOCK", 128),), 8, 1),
        BlockSizes((("XBLOCK", 64),), 2, 1),
    )
    kernel = TimedKernel(source_of(1), sizes, 1, (1.0, 1.0, 1.0, 1.0))
    assert nearest_first(kernel).tolist() == [0, 3, 2, 1]


def block_store_rows(device: str, count: int) -> Iterator[BlocksRow]:
    for number in range(count):
        kernel = timed(number)
        yield BlocksRow(
            source_hash=f"hash{number:03}",
            device_key=device,
            graph_key=f"graph{number % 24}",
            source=encode_source(kernel.source),
            name="triton_poi",
            own=kernel.own,
            sizes=kernel.sizes,
            us=kernel.us,
        )


def append(path: Path, profile: DeviceProfile, count: int) -> None:
    with Store.open(path) as store:
        store.append(list(block_store_rows(profile.key, count)))
        store.ingest()


def test_the_command_trains_one_where_it_can(
    make_store: Any, profile: DeviceProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What trees come to is judged above; here some are enough.
    monkeypatch.setattr(block_training, "fit_blocks", functools.partial(fit_blocks, trees=60))
    path = make_store()
    plain = _json("--store", path, "--seed", 1)
    assert plain["blocks"] is None
    assert blocks_of(load_model(None, profile, tmp_path)) is None

    append(path, profile, 60)
    found = _json("--store", path, "--seed", 1)
    told = found["blocks"]
    assert told["n_train"] + told["n_kernels"] == 60 and told["unknown"] == 0
    assert told["large"]["model"]["first"]["2"]["kept"] > 0.5
    kept = blocks_of(load_model(found["path"], profile, tmp_path))
    assert kept is not None and kept.kept.kernels == 60
    assert found["model_id"] != plain["model_id"]
    assert _json("--store", path, "--seed", 1)["model_id"] == found["model_id"]

    judged = _json("--store", path, "--evaluate-only", "--model", found["path"])
    assert judged["blocks"]["n_kernels"] == 60
    shown = CliRunner().invoke(main, ["--store", str(path), "--seed", "1"])
    assert "block sizes: trained on" in shown.stdout and "gain kept" in shown.stdout


def test_few_kernels_give_none(make_store: Any, profile: DeviceProfile, tmp_path: Path) -> None:
    path = make_store()
    append(path, profile, MIN_KERNELS - 1)
    found = _json("--store", path)
    assert found["blocks"]["large"] is None
    assert blocks_of(load_model(found["path"], profile, tmp_path)) is None


def _json(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told
