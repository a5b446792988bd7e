"""Taking the spool in: all new rows of all spool files in one transaction.

How far each file was read is stored in that same transaction, so a process may be killed at any
moment: its rows are either in the store or still to be read. Never drops a whole line: what cannot
be read is set aside in ``rejected/`` of the spool.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec

from fusewise.datasets.database import transaction
from fusewise.datasets.spool import LINE_VERSION, Line, SpoolFile
from fusewise.datasets.tables import TABLES
from fusewise.schedule.errors import StoreError

_log = logging.getLogger("fusewise.datasets")

#: Bytes of rows that go to DuckDB in one statement: enough for speed, little enough for memory.
_BATCH = 16 * 2**20

_line_decoder = msgspec.json.Decoder(Line)


class IngestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one ingestion did."""

    #: Lines taken in, by table.
    rows: dict[str, int] = {}
    #: Last lines that a killed process left unfinished.
    torn: int = 0
    #: Whole lines that are no rows of this fusewise, set aside.
    rejected: int = 0
    files_removed: int = 0


def has_news(connection: duckdb.DuckDBPyConnection, files: list[SpoolFile]) -> bool:
    """Whether :func:`ingest` would have something to do. A read-only connection is enough."""
    if not files:
        return False
    done = _progress(connection)
    return any(file.size != done.get(file.name) or file.writer_is_gone() for file in files)


def ingest(connection: duckdb.DuckDBPyConnection, files: list[SpoolFile]) -> IngestReport:
    """Take in what is new in ``files`` and remove those that are done with.

    The store's lock must be held.

    Raises:
        StoreError: a spool file cannot be read; nothing was taken in then.
    """
    done = _progress(connection)
    batches: dict[str, list[bytes]] = {}
    sizes = dict.fromkeys(TABLES, 0)
    counts: dict[str, int] = {}
    torn = rejected = 0
    finished: list[SpoolFile] = []

    def flush(table: str) -> None:
        rows = batches.pop(table, [])
        sizes[table] = 0
        if rows:
            TABLES[table].stage_json(connection, b"[" + b",".join(rows) + b"]")
            TABLES[table].merge_stage(connection)

    with transaction(connection):
        for file in files:
            gone = file.writer_is_gone()
            start = done.get(file.name, 0)
            tail = _Tail(_read(file, start))
            bad: list[bytes] = []
            for line in tail.lines():
                row = _decode(line)
                if row is None:
                    bad.append(line)
                    continue
                batches.setdefault(row.table, []).append(bytes(row.row))
                counts[row.table] = counts.get(row.table, 0) + 1
                sizes[row.table] += len(row.row)
                if sizes[row.table] >= _BATCH:
                    flush(row.table)
            if bad:
                rejected += len(bad)
                _set_aside(file, bad)
            end = start + tail.consumed
            if gone and not tail.is_newer:
                torn += tail.has_rest
                end = start + len(tail.data)
                finished.append(SpoolFile(file.path, end))
            connection.execute(
                "INSERT INTO spool_files VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET ingested = excluded.ingested",
                [file.name, end],
            )
        for table in list(batches):
            flush(table)
        _forget_removed(connection, done, files)
    removed = sum(file.remove() for file in finished)
    report = IngestReport(rows=counts, torn=torn, rejected=rejected, files_removed=removed)
    if torn:
        _log.warning("%d unfinished rows of killed processes were dropped", torn)
    if rejected:
        _log.warning(
            "%d spool lines could not be read and were set aside in %s",
            rejected,
            files[0].path.parent / "rejected",
        )
    return report


class _Tail:
    """The unread end of a spool file, cut into whole lines."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.consumed = 0
        #: Whether reading stopped at a line that only a newer fusewise understands.
        self.is_newer = False

    @property
    def has_rest(self) -> bool:
        return self.consumed < len(self.data)

    def lines(self) -> Iterator[bytes]:
        while (end := self.data.find(b"\n", self.consumed)) >= 0:
            line = self.data[self.consumed : end]
            if _version(line) > LINE_VERSION:
                self.is_newer = True
                return
            self.consumed = end + 1
            yield line


def _version(line: bytes) -> int:
    try:
        return _line_decoder.decode(line).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0


def _decode(line: bytes) -> Line | None:
    """The line if it holds a row of a table of ours."""
    try:
        found = _line_decoder.decode(line)
        TABLES[found.table].decoder.decode(found.row)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return None
    return found


def _read(file: SpoolFile, start: int) -> bytes:
    try:
        return file.read(start)
    except OSError as error:
        raise StoreError(
            f"cannot be read: {error.strerror or error}",
            subject=str(file.path),
            remedy="make the file readable, or move it aside",
        ) from error


def _set_aside(file: SpoolFile, lines: list[bytes]) -> None:
    """Keep lines that cannot be taken in. Written before the commit: better twice than never."""
    target: Path = file.path.parent / "rejected" / file.name
    try:
        target.parent.mkdir(exist_ok=True)
        with target.open("ab") as kept:
            kept.write(b"\n".join(lines) + b"\n")
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}",
            subject=str(target),
            remedy="make the folder writable and free some space",
        ) from error


def _progress(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    return dict(connection.execute("SELECT name, ingested FROM spool_files").fetchall())


def _forget_removed(
    connection: duckdb.DuckDBPyConnection, done: dict[str, int], files: list[SpoolFile]
) -> None:
    """Names are never used again, so what is no longer on the disk needs no offset."""
    for name in done.keys() - {file.name for file in files}:
        connection.execute("DELETE FROM spool_files WHERE name = ?", [name])
