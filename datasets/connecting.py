"""Connections to DuckDB that print nothing.

It draws a progress bar on the standard output for whatever takes two seconds, in the middle of what
a command prints there.
"""

from __future__ import annotations

import duckdb


def connected(
    path: str = ":memory:",
    *,
    read_only: bool = False,
    **config: str | bool | int | float | list[str],
) -> duckdb.DuckDBPyConnection:
    """A connection to the database at ``path`` with these settings.

    Raises:
        duckdb.Error: it cannot be opened.
    """
    connection = duckdb.connect(path, read_only=read_only, config=config)
    # No setting of the whole database, so none that could be given along.
    connection.execute("SET enable_progress_bar = false")
    return connection
