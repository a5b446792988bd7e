"""The block model: its order of block sizes, and how it travels with the model for a device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import msgspec
import numpy as np
import pytest

from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.block_model import BlockModel, BlockTrees, blocks_of
from fusewise.costmodel.block_table import BLOCK_FEATURES, BLOCKS_VERSION
from fusewise.costmodel.borrowed import BorrowedModel
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.learned import LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel, read_model
from fusewise.costmodel.registry import load_model, save_model
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.trained import TrainedModel
from fusewise.costmodel.triton_source import facts_of
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import ModelError

KernelText = Callable[[str], str]
COLUMN = {feature.name: at for at, feature in enumerate(BLOCK_FEATURES)}


def many_sizes() -> list[BlockSizes]:
    return [
        BlockSizes((("XBLOCK", 1 << block),), 1 << warps, 1)
        for block in range(5, 12)
        for warps in range(1, 4)
    ]


@pytest.fixture(scope="module")
def trees() -> str:
    """Trees by which a kernel is faster the more positions each thread has."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(800, len(BLOCK_FEATURES)))
    rows[:, COLUMN["each_change"]] = generator.uniform(-8, 8, 800)
    data = lightgbm.Dataset(rows, label=-0.1 * rows[:, COLUMN["each_change"]])
    parameters = {"num_threads": 1, "verbosity": -1, "seed": 0, "deterministic": True}
    return str(lightgbm.train(parameters, data, num_boost_round=60).model_to_string())


@pytest.fixture
def blocks(trees: str) -> BlockModel:
    return BlockModel(BlockTrees(trees=trees, kernels=3))


@pytest.fixture
def model(kernels: Callable[[int, int], Any], blocks: BlockModel) -> TrainedModel:
    some = kernels(300, 1)
    estimator = LearnedCostModel(n_estimators=20, networks=1, epochs=4)
    fitted = estimator.fit(some.features, some.us, some.graph)
    return fitted.model_.with_blocks(blocks)


def test_sizes_come_in_the_order_of_what_is_expected(
    blocks: BlockModel, kernel_text: KernelText
) -> None:
    source, sizes = kernel_text("broadcast"), many_sizes()
    ranking = blocks.ranked(source, sizes, 2)
    assert ranking is not None
    assert sorted(map(str, ranking.sizes)) == sorted(map(str, sizes))
    assert list(ranking.ratios) == sorted(ranking.ratios)
    most = ranking.sizes[0]
    assert (most.constants, most.warps) == ((("XBLOCK", 2048),), 2)
    # Over the better of Inductor's own two, which are the first ones.
    at = dict(zip(ranking.sizes, ranking.ratios, strict=True))
    assert min(at[sizes[0]], at[sizes[1]]) == 1.0
    facts = facts_of(source)
    assert facts is not None
    logs = blocks.log_ratios(facts, sizes, sizes[0])
    assert logs[0] == 0.0 and logs.shape == (len(sizes),)
    assert logs[1:].min() == pytest.approx(np.log(ranking.ratios[0]) + min(logs[:2]))
    raw = lightgbm.Booster(model_str=blocks.kept.trees).predict(
        block_features(facts, sizes, sizes[0]), num_threads=1
    )
    assert (np.asarray(raw)[1:] == logs[1:]).all()


def test_an_answer_is_the_same_every_time(blocks: BlockModel, kernel_text: KernelText) -> None:
    first = blocks.ranked(kernel_text("broadcast"), many_sizes(), 1)
    other = copy.deepcopy(BlockModel(blocks.kept)).ranked(kernel_text("broadcast"), many_sizes(), 1)
    assert first == other


def test_nothing_is_said_of_what_is_not_known(blocks: BlockModel, kernel_text: KernelText) -> None:
    assert blocks.ranked(kernel_text("combo"), many_sizes(), 1) is None
    assert blocks.ranked("not Python (", many_sizes(), 1) is None
    assert blocks.ranked(kernel_text("broadcast"), [], 0) is None
    facts = facts_of(kernel_text("broadcast"))
    assert facts is not None
    assert blocks.log_ratios(facts, [], many_sizes()[0]).shape == (0,)


def test_nothing_is_said_of_kinds_that_were_not_trained_on(
    blocks: BlockModel, kernel_text: KernelText
) -> None:
    sizes = [BlockSizes((("RSPLIT_SIZE", 16), ("XBLOCK", x)), 4, 1) for x in (1, 2, 4)]
    kinds = ("persistent_reduction", "pointwise")
    some = BlockModel(msgspec.structs.replace(blocks.kept, kinds=kinds))
    assert some.ranked(kernel_text("mixed_order"), sizes, 1) is None
    assert some.ranked(kernel_text("column_sum"), many_sizes(), 1) is None
    assert some.ranked(kernel_text("broadcast"), many_sizes(), 1) is not None
    assert blocks.ranked(kernel_text("mixed_order"), sizes, 1) is not None


def test_trees_that_are_none_are_refused_when_they_are_needed(kernel_text: KernelText) -> None:
    broken = BlockModel(BlockTrees(trees="no trees"))
    with pytest.raises(ModelError, match="cannot be read"):
        broken.ranked(kernel_text("broadcast"), many_sizes(), 1)


def test_it_travels_with_the_model(
    model: TrainedModel, blocks: BlockModel, profile: DeviceProfile, tmp_path: Path,
    kernel_text: KernelText,
) -> None:  # fmt: skip
    manifest = Manifest(name="mine", id=model.id, profile=profile)
    save_model(SavedModel(model.renamed("mine"), manifest), tmp_path)
    loaded = load_model(None, profile, tmp_path)
    found = blocks_of(loaded)
    assert found is not None and found.kept == blocks.kept and loaded.id == model.id
    source, sizes = kernel_text("broadcast"), many_sizes()
    assert found.ranked(source, sizes, 1) == blocks.ranked(source, sizes, 1)
    other = msgspec.structs.replace(profile, key="cpu-other-4t", copy_gbs=160.0)
    assert BorrowedModel(model, profile, other).blocks is blocks
    assert blocks_of(Roofline(profile)) is None
    assert model.with_blocks(None).id != model.id


def test_trees_of_another_version_are_left_out(
    model: TrainedModel, profile: DeviceProfile, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    assert model.blocks is not None
    old = msgspec.structs.replace(model.blocks.kept, version=BLOCKS_VERSION + 1)
    manifest = Manifest(name="mine", id=model.id, profile=profile)
    path = save_model(SavedModel(model.with_blocks(BlockModel(old)), manifest), tmp_path)
    with caplog.at_level(logging.DEBUG, "fusewise.costmodel.block_model"):
        assert read_model(path).model.blocks is None
    assert "block sizes left out" in caplog.text


def test_models_of_before_have_none(
    model: TrainedModel, profile: DeviceProfile, tmp_path: Path
) -> None:
    manifest = Manifest(name="mine", id=model.id, profile=profile)
    path = save_model(SavedModel(model.with_blocks(None), manifest), tmp_path)
    assert '"blocks":null' in path.read_text()
    assert read_model(path).model.blocks is None
