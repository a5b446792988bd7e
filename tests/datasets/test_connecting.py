"""Connections to DuckDB leave the standard output to who prints there."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from fusewise.datasets.connecting import connected


def settings(connection: duckdb.DuckDBPyConnection) -> tuple[object, ...]:
    """Whether long queries draw a bar, and the number of threads."""
    found = connection.execute(
        "SELECT current_setting('enable_progress_bar'), current_setting('threads')"
    ).fetchone()
    assert found is not None
    return found


@pytest.mark.parametrize("read_only", [False, True])
def test_no_bar_is_drawn(tmp_path: Path, read_only: bool) -> None:
    path = str(tmp_path / "some.duckdb")
    duckdb.connect(path).close()
    with connected(path, read_only=read_only, threads=1) as connection:
        assert settings(connection) == (False, 1)
    with connected() as connection:
        assert settings(connection)[0] is False
