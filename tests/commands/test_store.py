from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from fusewise.datasets.rows import DeviceRow
from fusewise.datasets.store import Store

Invoke = Callable[..., Result]
Refused = Callable[..., None]


def _filled(path: Path, key: str) -> Path:
    with Store.open(path) as store:
        store.append(DeviceRow(key=key, kind="cpu", name="a processor", threads=4))
        store.ingest()
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one device."""
    return _filled(tmp_path / "store.duckdb", "cpu-one-4t")


def test_info(invoke: Invoke, store: Path) -> None:
    result = invoke("store", "info", "--store", store)
    assert result.exit_code == 0
    assert str(store) in result.stdout
    assert "cpu-one-4t" in result.stdout


def test_info_for_machines(invoke: Invoke, store: Path) -> None:
    told = json.loads(invoke("store", "info", "--store", store, "--json").stdout)
    assert told["path"] == str(store)
    assert told["counts"]["devices"] == 1
    assert told["devices"][0]["key"] == "cpu-one-4t"


def test_info_takes_the_spool_in(invoke: Invoke, store: Path) -> None:
    with Store.open(store) as opened:
        opened.append(DeviceRow(key="cpu-two-4t", kind="cpu", name="another"))
    told = json.loads(invoke("store", "info", "--store", store, "--json").stdout)
    assert told["counts"]["devices"] == 2


def test_your_own_store(invoke: Invoke, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(store.parent))
    assert str(store) in invoke("store", "info").stdout


@pytest.mark.parametrize("command", [("info",), ("export", "folder")])
def test_no_store(
    invoke: Invoke, refused: Refused, tmp_path: Path, command: tuple[str, ...]
) -> None:
    missing = tmp_path / "missing.duckdb"
    refused(invoke("store", *command, "--store", missing), "no store", str(missing))
    assert not missing.exists()


def test_what_is_no_store(invoke: Invoke, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    path.write_bytes(b"something else" * 1000)
    refused(invoke("store", "info", "--store", path), str(path))
    assert path.read_bytes() == b"something else" * 1000


@pytest.mark.parametrize(
    "command",
    [
        ("store", "info"),
        ("store", "export", "out"),
        ("store", "merge", "other.duckdb"),
        ("store", "features"),
        ("collect", "--limit", "1"),
    ],
    ids=" ".join,
)
def test_a_path_that_is_no_file(
    invoke: Invoke, refused: Refused, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused(
        invoke(*command, "--store", tmp_path),
        f"{tmp_path}: is a folder, not a regular file; ",
        f"--store or as fusewise.store): give that of a file, such as {tmp_path}/store.duckdb",
    )
    refused(invoke(*command, "--store", "/dev/null"), "/dev/null: is a device", "a regular file,")
    assert not any(tmp_path.iterdir())
    assert not tmp_path.with_name(f"{tmp_path.name}.lock").exists()


def test_export(invoke: Invoke, store: Path, tmp_path: Path) -> None:
    result = invoke("store", "export", tmp_path / "out", "--store", store, "--json")
    files = json.loads(result.stdout)["files"]
    assert str(tmp_path / "out" / "kernels.parquet") in files
    assert all(Path(file).is_file() for file in files)


def test_export_to_a_file(invoke: Invoke, refused: Refused, store: Path) -> None:
    refused(invoke("store", "export", store, "--store", store), str(store))


def test_merge(invoke: Invoke, store: Path, tmp_path: Path) -> None:
    other = _filled(tmp_path / "other" / "store.duckdb", "cpu-other-4t")
    told = json.loads(invoke("store", "merge", other, "--store", store, "--json").stdout)
    assert told["rows"]["devices"] == 1
    info = json.loads(invoke("store", "info", "--store", store, "--json").stdout)
    assert {device["key"] for device in info["devices"]} == {"cpu-one-4t", "cpu-other-4t"}


def test_merge_into_itself(invoke: Invoke, refused: Refused, store: Path) -> None:
    refused(invoke("store", "merge", store, "--store", store), "itself")


def test_merge_of_nothing(invoke: Invoke, refused: Refused, store: Path, tmp_path: Path) -> None:
    refused(invoke("store", "merge", tmp_path / "missing", "--store", store), "no store")


def test_merge_of_a_folder(invoke: Invoke, refused: Refused, store: Path, tmp_path: Path) -> None:
    result = invoke("store", "merge", tmp_path, "--store", store)
    refused(result, f"{tmp_path}: is a folder", "given (as an argument")
