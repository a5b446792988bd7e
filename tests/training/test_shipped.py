"""The shipped datasets: trained on twice, as if on two processors, they give the same file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusewise.costmodel.model_file import read_model
from fusewise.datasets.dataset import load, shipped_names

_TRAIN = "from fusewise.training.command import main; main()"
#: Has functions of arrays differ in the last bit, as they do between processors.
_NUDGED = """
import numpy as np
def nudged(function):
    return lambda *args, **kwargs: np.nextafter(function(*args, **kwargs), np.inf)
for name in ("exp", "exp2", "log", "log2"):
    setattr(np, name, nudged(getattr(np, name)))
"""
#: How each of two processes begins; sets are ordered otherwise in them, too, and BLAS takes the
#: instructions of another processor in the second.
_PROCESSORS = (
    ("", {"PYTHONHASHSEED": "1"}),
    (_NUDGED, {"PYTHONHASHSEED": "2", "OPENBLAS_CORETYPE": "Nehalem"}),
)


def train(out: Path, dataset: str, begin: str, environment: dict[str, str]) -> bytes:
    """The file of a model, trained in a process of its own."""
    arguments = ["--dataset", dataset, "--seed", "7", "--out", str(out)]
    subprocess.run(
        [sys.executable, "-c", begin + _TRAIN, *arguments],
        env={**os.environ, "FUSEWISE_HOME": str(out.parent), **environment},
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dataset", shipped_names())
def test_the_same_seed_gives_the_same_file(dataset: str, tmp_path: Path):
    outs = [tmp_path / f"{n}.fusewise.json" for n in range(len(_PROCESSORS))]
    first, second = (train(o, dataset, *p) for o, p in zip(outs, _PROCESSORS, strict=True))
    assert first == second
    manifest = read_model(outs[0]).manifest
    test = {str(family) for family in load(dataset).kernels(split="test").family}
    assert test and not test & set(manifest.families)
    assert manifest.created == load(dataset).manifest.created
