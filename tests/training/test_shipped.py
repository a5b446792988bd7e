"""The shipped datasets: trained on twice, in processes of their own, they give the same file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusewise.costmodel.model_file import read_model
from fusewise.datasets.dataset import load, shipped_names

_TRAIN = "from fusewise.training.command import main; main()"


def train(home: Path, dataset: str, hash_seed: int) -> bytes:
    """The file of a model; sets and dicts are ordered otherwise in each process."""
    out = home / f"{hash_seed}.fusewise.json"
    subprocess.run(
        [sys.executable, "-c", _TRAIN, "--dataset", dataset, "--seed", "7", "--out", str(out)],
        env={**os.environ, "FUSEWISE_HOME": str(home), "PYTHONHASHSEED": str(hash_seed)},
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dataset", shipped_names())
def test_the_same_seed_gives_the_same_file(dataset: str, tmp_path: Path):
    first, second = (train(tmp_path, dataset, hash_seed) for hash_seed in (1, 2))
    assert first == second
    manifest = read_model(tmp_path / "1.fusewise.json").manifest
    test = {str(family) for family in load(dataset).kernels(split="test").family}
    assert test and not test & set(manifest.families)
    assert manifest.created == load(dataset).manifest.created
