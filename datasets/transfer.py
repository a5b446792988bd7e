"""All of a store at once: its tables as Parquet files, and the tables of another taken in.

Knows no spool: whoever calls has taken it in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

from fusewise.datasets.database import Database, blaming, transaction
from fusewise.datasets.tables import TABLES
from fusewise.schedule.errors import StoreError

#: What a store that is taken in is called. The one that takes it in is called by its file, and no
#: file has a name like this.
_OTHER: Final = '"other/store"'


def export_tables(connection: duckdb.DuckDBPyConnection, folder: Path) -> list[Path]:
    """Write each table as ``<table>.parquet`` into ``folder``; the files written.

    Raises:
        StoreError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot be made: {error.strerror or error}",
            subject=str(folder),
            remedy="give a folder that can be written",
        ) from error
    written = []
    for table in TABLES:
        file = folder / f"{table}.parquet"
        connection.execute(f"COPY {table} TO {_quoted(file)} (FORMAT parquet)")
        written.append(file)
    return written


def merge_tables(database: Database, other: Database) -> dict[str, int]:
    """Take all rows of ``other`` into ``database``; how many there were, by table.

    Raises:
        StoreError: either cannot be read; nothing was taken in. The error names which.
    """
    merged = {}
    # Always in the same order: two merges of each other would wait for ever.
    first, second = sorted((database, other), key=lambda d: str(d.path))
    with first.lock(), second.lock(), database.connect(write=True) as connection:
        with blaming(other.path):
            connection.execute(f"ATTACH {_quoted(other.path)} AS {_OTHER} (READ_ONLY)")
        with transaction(connection):
            for name, table in TABLES.items():
                with blaming(other.path):
                    table.stage_from(connection, _OTHER)
                    _under_our_profiles(connection, name)
                merged[name] = table.merge_stage(connection)
    return merged


def _under_our_profiles(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Have a device that both know keep the rates that this store's features were computed from.

    Features that come from other rates get version 0: who needs them computes them anew.
    """
    if table == "devices":
        connection.execute(
            "UPDATE stage SET profile = devices.profile FROM devices WHERE devices.key = stage.key"
        )
    elif table == "kernels":
        connection.execute(
            "UPDATE stage SET features_version = 0 WHERE device_key IN "
            f"(SELECT key FROM devices JOIN {_OTHER}.devices AS theirs USING (key) "
            "WHERE theirs.profile <> devices.profile) "
            "AND graph_key IN (SELECT key FROM graphs WHERE problem IS NOT NULL)"
        )


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
