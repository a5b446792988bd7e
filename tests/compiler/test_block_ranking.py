"""What the block model is told of sizes that are really tried: those that are nearest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")

from torch._inductor.runtime import triton_helpers

from fusewise.compiler.inductor.block_sizes import can_be_tried, load_kernel, nearest, sizes_of
from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.block_table import BLOCK_FEATURES
from fusewise.costmodel.triton_source import facts_of

_KERNELS = sorted((Path(__file__).parents[1] / "costmodel/triton_kernels").glob("*.txt"))
_COLUMN = {feature.name: at for at, feature in enumerate(BLOCK_FEATURES)}


@pytest.mark.parametrize("kernel", [path.stem for path in _KERNELS])
def test_features_of_the_nearest_sizes_exist(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_helpers, "set_driver_to_gpu", lambda: None)
    source = next(path for path in _KERNELS if path.stem == kernel).read_text("utf-8")
    name = source.split("\ndef triton_")[1].partition("(")[0]
    path = tmp_path / "kernel.py"
    path.write_text(source)
    loaded, facts = load_kernel(str(path), f"triton_{name}"), facts_of(source)
    if facts is None:
        assert kernel == "combo"
        return
    assert can_be_tried(loaded)
    sizes = nearest(loaded, (), 96)
    assert sizes[0] == sizes_of(loaded.configs[0])
    found = block_features(facts, sizes, sizes[0])
    assert found.shape == (len(sizes), len(BLOCK_FEATURES)) and np.isfinite(found).all()
    # No two sizes look alike, or nothing could be told of them.
    assert len(np.unique(found, axis=0)) == len(sizes)
    # Blocks of the features are those that Triton is given.
    blocks = {name for one in sizes for name, _ in one.constants if name.endswith("BLOCK")}
    known = {f"{dim.upper()}BLOCK" for dim in facts.numels}
    assert blocks <= known
    assert (found[:, _COLUMN["padding"]] >= -1e-9).all()
