"""Promises of the checkout's layout that no other tool looks after."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    """The ``project`` table of ``pyproject.toml``."""
    table = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def test_every_room_has_a_relative_link(checkout: Path) -> None:
    rooms = {path.parent.name for path in checkout.glob("*/__init__.py")}
    links = {p.name: p.readlink() for p in (checkout / "src/fusewise").iterdir() if p.is_symlink()}
    assert links == {room: Path("../..", room) for room in rooms}


def test_nothing_beside_the_rooms_is_a_package(checkout: Path) -> None:
    # Either would put the checkout on the path, and with it the rooms by their bare names.
    assert not (checkout / "conftest.py").exists()
    assert list((checkout / "tests").rglob("__init__.py")) == []


def test_no_file_names_a_home_folder(checkout: Path) -> None:
    if not (checkout / ".git").exists():
        pytest.skip("only git knows which files are the project's")
    listed = ["git", "-C", str(checkout), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    home = re.compile(rb"/(?:home|root|Users)/\w")
    files = [path for path in map(checkout.joinpath, names) if path.is_file()]
    assert files
    assert [str(path) for path in files if home.search(path.read_bytes())] == []


def test_entry_points_resolve(project: dict[str, Any]) -> None:
    groups = {"scripts": project["scripts"], **project["entry-points"]}
    for group, entries in groups.items():
        for name, value in entries.items():
            assert callable(EntryPoint(name, value, group).load())


def test_ci_can_be_run(checkout: Path) -> None:
    assert os.access(checkout / ".ci/run", os.X_OK)


@pytest.mark.parametrize(
    "line",
    [
        "import torch._inductor.config",
        "from torch import _inductor",
        "from torch._inductor.codegen import simd",
        "import torch; torch._inductor.config",
    ],
)
@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("compiler/inductor/some.py", True),
        ("compiler/some.py", False),
        ("compiler/measuring/some.py", False),
        ("search/some.py", False),
        ("a_new_room/some.py", False),
    ],
)
def test_only_one_folder_may_touch_inductor(
    checkout: Path, module: str, allowed: bool, line: str
) -> None:
    # The rule is a setting, and a slip in its pattern would switch it off without a word.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--select",
            "TID251",
            "--stdin-filename",
            module,
            "-",
        ],
        input=line + "\n",
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if allowed else 1), done.stdout + done.stderr
    assert ("TID251" in done.stdout) is not allowed
