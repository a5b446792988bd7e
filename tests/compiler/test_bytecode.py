"""Byte code that is kept where Python keeps none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusewise.compiler.measuring import bytecode
from fusewise.compiler.measuring.bytecode import kept_bytecode


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that writes no byte code and has none; the user's cache."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(bytecode, "cache_from_source", lambda path: f"{path}.missing")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_process_keeps_byte_code_in_the_users_cache(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_to_compile.py").write_text("VALUE = 7\n")
    subprocess.run(
        [sys.executable, "-c", "import slow_to_compile"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), **kept_bytecode()},
        check=True,
    )
    (found,) = bare.rglob("slow_to_compile*.pyc")
    assert "fusewise" in found.parts
    assert not list(tmp_path.glob("__pycache__/*"))


def test_nothing_is_kept_twice(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_bytecode()
    with monkeypatch.context() as beside:
        beside.setattr(bytecode, "cache_from_source", lambda path: path)
        assert not kept_bytecode()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PYTHONPYCACHEPREFIX", str(bare))
        assert not kept_bytecode()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert not kept_bytecode()
