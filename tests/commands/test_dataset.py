from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import Result

from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.datasets import dataset as dataset_module
from fusewise.datasets.rows import DeviceRow, GraphRow, KernelRow, MeasurementRow, encode_problem
from fusewise.datasets.store import Store
from fusewise.schedule.problem import Problem

Invoke = Callable[..., Result]
Refused = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one kernel of a corpus."""
    path = tmp_path / "store.duckdb"
    problem = Problem("g", "inference", (), (), (), ())
    with Store.open(path) as opened:
        opened.append(
            [
                DeviceRow(key="cpu-one-4t", kind="cpu", name="a processor", threads=4),
                GraphRow(
                    key="g",
                    parts={},
                    kind="inference",
                    family="generated/rope",
                    source="generated:rope/1",
                    problem=encode_problem(problem),
                ),
                KernelRow(
                    signature="k",
                    device_key="cpu-one-4t",
                    graph_key="g",
                    nodes=(),
                    features_version=FEATURES_VERSION,
                    features=[1.0],
                ),
                MeasurementRow(
                    subject="kernel",
                    subject_id="k",
                    graph_key="g",
                    device_key="cpu-one-4t",
                    median_us=7.0,
                    torch_version="2.13.0",
                ),
            ]
        )
        opened.ingest()
    return path


@pytest.fixture
def folder(invoke: Invoke, store: Path, tmp_path: Path) -> Path:
    """The store, published."""
    out = tmp_path / "published" / "tiny"
    result = invoke("dataset", "publish", "tiny", "--store", store, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(out)
    return out


def test_publish_for_machines(invoke: Invoke, store: Path, tmp_path: Path) -> None:
    told = json.loads(
        invoke(
            *("dataset", "publish", "tiny", "--store", store, "--out", tmp_path / "out"),
            *("--device", "cpu-one-4t", "--kind", "cpu", "--json"),
        ).stdout
    )
    assert told["folder"] == str(tmp_path / "out")
    assert told["manifest"]["kernels"][0]["kernels"] == 1
    # The table of this version's features is told with it.
    assert told["manifest"]["features"][0][0] == "iterations"


def test_info(invoke: Invoke, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cpu-one-4t" in invoke("dataset", "info", folder).stdout
    told = json.loads(invoke("dataset", "info", folder, "--json").stdout)
    assert (told["name"], told["folder"]) == ("tiny", str(folder))
    monkeypatch.setattr(dataset_module, "SHIPPED", folder.parent)
    assert invoke("dataset", "info").stdout == "tiny\n"
    assert json.loads(invoke("dataset", "info", "--json").stdout) == {"datasets": ["tiny"]}
    assert "cpu-one-4t" in invoke("dataset", "info", "tiny").stdout


def test_card(invoke: Invoke, folder: Path) -> None:
    written = (folder / "CARD.md").read_text()
    assert invoke("dataset", "card", folder).stdout == written
    (folder / "CARD.md").write_text("edited")
    assert invoke("dataset", "card", folder, "--write").exit_code == 0
    assert (folder / "CARD.md").read_text() == written


def test_verify(invoke: Invoke, refused: Refused, folder: Path) -> None:
    assert "tiny is sound: 1 kernels" in invoke("dataset", "verify", folder).stdout
    assert json.loads(invoke("dataset", "verify", folder, "--json").stdout)["findings"] == []
    path = folder / "graphs.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    refused(invoke("dataset", "verify", folder), str(path), "is damaged")


@pytest.mark.parametrize("command", ["info", "card", "verify"])
def test_what_is_no_dataset(invoke: Invoke, refused: Refused, tmp_path: Path, command: str) -> None:
    refused(invoke("dataset", command, tmp_path), str(tmp_path), "is no dataset")
    refused(invoke("dataset", command, "h9000"), "no dataset 'h9000'")


def test_a_newer_schema(invoke: Invoke, refused: Refused, folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**manifest, "schema_version": 99}))
    for command in ("info", "verify"):
        refused(invoke("dataset", command, folder), "schema version 99", "upgrade fusewise")


def test_what_cannot_be_published(
    invoke: Invoke, refused: Refused, store: Path, tmp_path: Path
) -> None:
    def publish(*options: object, store: Path = store) -> Result:
        out = ("--out", tmp_path / "out")
        return invoke("dataset", "publish", "tiny", "--store", store, *out, *options)

    refused(publish("--device", "tpu"), "no device 'tpu'", "cpu-one-4t")
    refused(publish("--kind", "cuda"), "it has no cuda device")
    refused(publish(store=tmp_path / "missing.duckdb"), "no store")
    Store.open(tmp_path / "empty.duckdb").close()
    refused(publish(store=tmp_path / "empty.duckdb"), "it has no device")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    refused(publish(), "something else than a dataset")
