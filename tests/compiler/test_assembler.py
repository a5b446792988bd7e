"""The assembler that Triton uses in this process, and that it says it uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.inductor import assembler


@pytest.fixture
def nvidia() -> Any:
    return pytest.importorskip("triton.backends.nvidia.compiler")


def test_a_version_that_was_asked_for_before_is_forgotten(
    nvidia: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    own = nvidia.get_ptxas_version(90)
    other = tmp_path / "ptxas"
    # What Triton accepts as an assembler says which release it is.
    other.write_text(f"#!/bin/sh\ncat <<'END'\n{own}, of PyTorch\nEND\n")
    other.chmod(0o755)
    monkeypatch.setattr(
        assembler,
        "_set_triton_ptxas_path",
        lambda: monkeypatch.setenv("TRITON_PTXAS_PATH", str(other)),
    )
    try:
        # Not the one that does it once a process.
        assembler.use_pools_assembler.__wrapped__()
        assert "of PyTorch" in nvidia.get_ptxas_version(90)
    finally:
        nvidia.get_ptxas_version.cache_clear()
