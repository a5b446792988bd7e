"""Training on a published dataset: its own split, equal files, features of another version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.costmodel.model_file import read_model
from fusewise.costmodel.settled import settled
from fusewise.datasets.columns import FEATURE_BITS
from fusewise.datasets.dataset import Dataset, load
from fusewise.datasets.publish import publish
from fusewise.datasets.rows import GraphRow
from fusewise.datasets.store import Store
from fusewise.training.command import main
from fusewise.training.source import source_of

MakeDataset = Callable[..., Dataset]

#: In place of the families that the store is made of: the last two are of the test split.
FAMILIES = ("softmax", "layer_norm", "adam", "transpose", "rope", "group_norm")


@pytest.fixture
def make_dataset(make_store: Callable[..., Path], tmp_path: Path) -> MakeDataset:
    """``make_dataset()`` publishes what ``make_store()`` makes."""

    def make(*, families: tuple[str, ...] = FAMILIES, **changes: int) -> Dataset:
        path = make_store(families=len(families), **changes)
        with Store.open(path) as store:
            graphs = [row for row in store.rows("graphs") if isinstance(row, GraphRow)]
            store.append(
                msgspec.structs.replace(
                    row,
                    family=f"generated/{families[int(row.family.removeprefix('family'))]}",
                    source=f"generated:{row.key}",
                )
                for row in graphs
            )
            store.ingest()
            return load(publish(store, "tiny", tmp_path / "tiny").folder)

    return make


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models of a dataset are saved."""
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def scores(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_trained_on_one_split_and_judged_by_the_other(
    make_dataset: MakeDataset, home: Path, profile: DeviceProfile
) -> None:
    dataset = make_dataset()
    found = scores("--dataset", dataset.folder, "--seed", 1)
    assert (found["device"], found["split"]) == (profile.key, "published split")
    assert found["n_train"] == len(dataset.kernels(split="train")) == 16 * 28
    assert found["n_kernels"] == len(dataset.kernels(split="test")) == 8 * 28
    assert found["mape_5us"] < found["roofline"]["mape_5us"] / 2
    # Of eight graphs, four schedules each; the two others have no plan or no problem.
    assert (found["n_schedules"], found["n_schedules_skipped"]) == (32, 16)
    path = Path(found["path"])
    assert path.parent == home / "models"
    manifest = read_model(path).manifest
    assert manifest.name == f"{profile.key}-tiny-{manifest.id[-8:]}"
    assert manifest.kernels == found["n_train"]
    assert not {"generated/rope", "generated/group_norm"} & set(manifest.families)
    assert not (home / "store.duckdb").exists()

    judged = scores("--dataset", dataset.folder, "--evaluate-only", "--model", path)
    assert (judged["split"], judged["n_kernels"]) == ("published split", found["n_kernels"])
    assert judged["mape_5us"] == found["mape_5us"]
    assert "test split" in call("--dataset", dataset.folder).stdout


def test_equal_seeds_give_equal_files(make_dataset: MakeDataset, tmp_path: Path) -> None:
    folder = make_dataset(graphs=12).folder
    files = []
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        out = tmp_path / f"{name}.fusewise.json"
        scores("--dataset", folder, "--seed", seed, "--out", out)
        files.append(out.read_bytes())
    assert files[0] == files[1] != files[2]


def test_features_of_another_version_are_computed_anew(
    make_dataset: MakeDataset, profile: DeviceProfile
) -> None:
    dataset = make_dataset(version=FEATURES_VERSION + 1)
    published = dataset.kernels()
    assert published.features_version == FEATURES_VERSION + 1
    samples = source_of(dataset).kernels(profile)
    assert samples.features_version == FEATURES_VERSION
    # Only the number of the version is another one, so they come out as they were.
    np.testing.assert_array_equal(settled(samples.features, FEATURE_BITS), published.features)
    assert samples.features.dtype == np.float64
    assert not np.array_equal(samples.features, published.features), "those have fewer bits"


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    return line


def test_refusals(make_dataset: MakeDataset, make_store: Callable[..., Path]) -> None:
    folder = make_dataset().folder
    assert "no dataset 'h9000', but: " in refused("--dataset", "h9000")
    assert "leave one of them out" in refused("--dataset", folder, "--store", "x.duckdb")
    assert "--hold-out: has no meaning" in refused("--dataset", folder, "--hold-out", "bert")
    assert "no profile of device 'tpu'" in refused("--dataset", folder, "--device", "tpu")
    (folder / "kernels.parquet").write_bytes(b"PAR1 and no more")
    assert "is damaged" in refused("--dataset", folder)


def test_one_side_is_empty(make_dataset: MakeDataset) -> None:
    folder = make_dataset(families=("softmax", "adam")).folder
    assert "is of the test split" in refused("--dataset", folder)
