"""Which block sizes of a kernel are tried, and that what was found is not tried again.

Triton compiles for a GPU that is not there, so none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from torch._inductor.utils import fresh_cache

from fusewise.compiler.inductor.block_sizes import load_kernel, sizes_of
from fusewise.compiler.inductor.found_blocks import found_blocks, tell_blocks
from fusewise.compiler.inductor.worth_trying import (
    expected_saving,
    most_ranked,
    ranked_by,
    worth_trying,
)
from fusewise.costmodel.block_model import BlockModel
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.kernel_choices import blocks_choice
from fusewise.schedule.schedule import Choice
from tests.compiler.triton_kernels import by_warps, looped, persistent, program


@pytest.fixture(scope="module")
def few_warps() -> BlockModel:
    """By which a kernel is the faster the fewer warps it has, whatever else it is."""
    return by_warps(0.2)


def test_the_best_predicted_are_worth_trying(
    written: Callable[[str], str], no_device: Path, few_warps: BlockModel
) -> None:
    code = looped(4096, 20_000)
    path = written(code)
    own = [sizes_of(config) for config in load_kernel(path, "triton_red").configs]
    near = worth_trying(path, "triton_red", code, 32)
    assert most_ranked() is None and len(near) == 32
    assert expected_saving("triton_red", code) is None
    with ranked_by(few_warps):
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
    written: Callable[[str], str], no_device: Path, few_warps: BlockModel
) -> None:
    code = looped().replace("r0_index + 65536 * xindex", "r0_index + ks0 * xindex")
    path = written(code)
    near = worth_trying(path, "triton_red", code, 6)
    with ranked_by(few_warps):
        assert expected_saving("triton_red", code) is None
        assert worth_trying(path, "triton_red", code, 6) == near
    assert len(near) == 6


@pytest.mark.parametrize("setting", ["deterministic", "are_deterministic_algorithms_enabled"])
def test_a_kernel_that_can_have_no_others_is_expected_to_save_nothing(
    written: Callable[[str], str], no_device: Path, few_warps: BlockModel, setting: str
) -> None:
    code = looped(4096, 20_000).replace("inductor_meta={", f"inductor_meta={{'{setting}': True, ")
    with ranked_by(few_warps):
        assert expected_saving("triton_red", code) is None
        assert worth_trying(written(code), "triton_red", code, 6) == []


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
