"""The folder of a station in a cluster: one each, and none is left of those that were killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fusewise.compiler.collecting.remote import _own_folder

#: Has a folder until it is killed, and says which.
HOLDER = """
from contextlib import ExitStack
from fusewise.compiler.collecting.remote import _own_folder
held = ExitStack()
print(_own_folder(held), flush=True)
input()
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder(folders: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folders,
    ) as process:
        yield process
        process.kill()


def test_folders_of_the_killed_are_removed_and_of_the_living_kept(
    folders: Path, holder: subprocess.Popen[str]
) -> None:
    assert holder.stdout is not None
    others = Path(holder.stdout.readline().strip())
    (others / "profile.json").write_text("{}")
    unmarked = folders / "fusewise-station-of-nobody-known"
    unmarked.mkdir()
    with ExitStack() as held:
        own = _own_folder(held)
        assert own.parent == others.parent == folders and own != others
        assert (others / "profile.json").exists()
        holder.kill()
        holder.wait()
        another = _own_folder(held)
        assert own.is_dir() and another.is_dir() and unmarked.is_dir() and not others.exists()
    last = _own_folder(ExitStack())
    assert last.is_dir() and not own.exists() and not another.exists()
