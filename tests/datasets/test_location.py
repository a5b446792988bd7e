"""What is said of a store's path: where it came from, and what is there in place of a store."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fusewise.datasets.location import check_store_path, is_new, spool_folder
from fusewise.datasets.rows import DeviceRow
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.errors import StoreError

ROW = DeviceRow(key="d", kind="cpu", name="n")


@pytest.fixture(params=["given", "FUSEWISE_HOME", "data folder"])
def named(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the path that :func:`default_store_path` tells came from, but for ``given``."""
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path / "home"))
    if request.param == "data folder":
        monkeypatch.delenv("FUSEWISE_HOME")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    return str(request.param)


@pytest.fixture
def path(named: str, tmp_path: Path) -> Path:
    """The path of no store yet, from where ``named`` says."""
    return tmp_path / "mine.duckdb" if named == "given" else default_store_path()


_SAID = {
    "given": "given (as an argument, with --store or as fusewise.store): ",
    "FUSEWISE_HOME": "the store is in FUSEWISE_HOME: ",
    "data folder": "the store is in your data folder, as FUSEWISE_HOME is not set: ",
}


def test_a_spool_that_cannot_be_written(path: Path, named: str) -> None:
    store = Store.open(path)
    spool = path.with_name(f"{path.name}.spool")
    spool.write_text("in the way")
    with pytest.raises(StoreError, match="rows cannot be written") as told:
        store.append(ROW)
    assert told.value.subject == str(spool)
    assert _SAID[named] in told.value.remedy
    assert ("FUSEWISE_HOME" in told.value.remedy) == (named != "given")
    spool.unlink()
    assert store.append(ROW) == 1


def test_a_folder(path: Path, named: str) -> None:
    path.mkdir(parents=True)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="is a folder, not a regular file") as told:
            Store.open(path, read_only=read_only)
        assert told.value.subject == str(path)
        right = f"such as {path}/store.duckdb" if named == "given" else "out of the way, or set"
        assert _SAID[named] in told.value.remedy and right in told.value.remedy
    assert [*path.parent.glob(f"{path.name}*")] == [path]


def test_what_is_neither_a_folder_nor_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of a socket has to be short.
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        found = sorted(tmp_path.iterdir())
        for place, what in (("/dev/null", "device"), ("pipe", "pipe"), ("socket", "socket")):
            with pytest.raises(StoreError, match=f"is a {what}, not a regular file") as told:
                Store.open(place)
            assert "give that of a regular file" in told.value.remedy
            assert "aside" not in str(told.value)
        assert sorted(tmp_path.iterdir()) == found


def test_the_root_folder() -> None:
    with pytest.raises(StoreError, match="/: is a folder"):
        Store.open("/")


def test_what_a_link_leads_to(tmp_path: Path) -> None:
    for name, there in (("folder", tmp_path), ("itself", tmp_path / "itself")):
        (tmp_path / name).symlink_to(there)
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(tmp_path / "folder")
    with pytest.raises(StoreError, match=r"cannot be looked at: .*symbolic links"):
        Store.open(tmp_path / "itself")
    Store.open(tmp_path / "real.duckdb").close()
    (tmp_path / "link").symlink_to(tmp_path / "real.duckdb")
    check_store_path(tmp_path / "link")
    assert Store.open(tmp_path / "link", read_only=True).info().counts["devices"] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_folder_that_may_not_be_looked_into(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o600)
    with pytest.raises(StoreError, match="cannot be looked at: Permission denied"):
        Store.open(closed / "store.duckdb")


def test_a_store_is_new_until_something_is_kept_for_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "store.duckdb"
    assert is_new(path)
    spool_folder(path).mkdir(parents=True)
    # A process that was killed left rows before there was a database.
    assert not is_new(path)
    other = tmp_path / "other.duckdb"
    other.touch()
    assert not is_new(other)
