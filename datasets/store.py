"""The store: what was measured, decided and trained, in one DuckDB file.

Opening takes in what processes left in the spool; appending writes only the spool. A store holds
no connection and no lock between calls, so any number of processes can have it open. Never
removes or overwrites a file that it cannot read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import duckdb
import msgspec

from fusewise.datasets.block_samples import BlockSample, block_samples
from fusewise.datasets.database import LOCK_TIMEOUT, Database
from fusewise.datasets.decided import Decided, Outcome
from fusewise.datasets.ingest import IngestReport, has_news, ingest
from fusewise.datasets.location import (
    check_existing_store,
    check_store_path,
    home_folder,
    spool_folder,
    writing_remedy,
)
from fusewise.datasets.rows import (
    DecisionRow,
    DeviceKind,
    DeviceRow,
    GraphRow,
    Row,
    ScheduleRow,
    blocks_signature,
)
from fusewise.datasets.samples import (
    KernelSamples,
    ScheduleSamples,
    StoredProblems,
    kernel_samples,
    schedule_samples,
)
from fusewise.datasets.spool import SpoolWriter, spool_files
from fusewise.datasets.tables import TABLES
from fusewise.datasets.transfer import export_tables, merge_tables
from fusewise.schedule.errors import StoreError


def default_store_path() -> Path:
    """``store.duckdb`` in ``FUSEWISE_HOME``, or else in the user's data folder.

    Raises:
        StoreError: ``FUSEWISE_HOME`` is in the home of somebody who is not there.
    """
    home = home_folder()
    try:
        return Path(home).expanduser() / "store.duckdb"
    except RuntimeError as error:
        raise StoreError(
            f"the folder {home!r} cannot be told: {error}",
            subject="FUSEWISE_HOME",
            remedy="set it to a folder that you can write to",
        ) from error


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds."""

    path: str
    schema_version: int
    #: Rows by table.
    counts: dict[str, int]
    devices: tuple[DeviceRow, ...]
    #: Bytes of the DuckDB file and its log.
    bytes: int
    #: Files and bytes in the spool. Files of running processes stay after they were taken in.
    spool_files: int
    spool_bytes: int


class Store:
    """A store at ``path``. Make it with :meth:`open`.

    Reading sees what was taken in by opening and by :meth:`ingest`, not what this or another
    process has appended since.
    """

    def __init__(self, path: Path, *, read_only: bool, timeout: float) -> None:
        self.path = path
        self.read_only = read_only
        remedy = writing_remedy(path)
        self._database = Database(path, remedy=remedy, timeout=timeout)
        self._spool = SpoolWriter(spool_folder(path), remedy=remedy)
        self._decided = Decided(path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        timeout: float = LOCK_TIMEOUT,
    ) -> Self:
        """Open or make the store, bring its tables up to date and take the spool in.

        Args:
            path: the DuckDB file; its lock and its spool stand beside it.
            read_only: change nothing: no making, no migrations, no taking in, no appending.
            timeout: seconds to wait for another process that has it.

        Raises:
            StoreError: it is held too long by another process, damaged, no store, no regular
                file, of a newer schema, or cannot be written. What is there is left as it was.
        """
        check_store_path(Path(path))
        store = cls(Path(path).absolute(), read_only=read_only, timeout=timeout)
        if read_only:
            check_existing_store(
                store.path, remedy="give the path of one, or collect into it first"
            )
            with store.reading():
                return store
        store.ingest()
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of this process's spool file. The store can still be used; it opens another."""
        self._spool.close()

    def append(self, rows: Iterable[Row] | Row) -> int:
        """Leave rows in the spool of this process; the number of rows.

        Rows of a key that is there already are merged with it when they are taken in.

        Raises:
            StoreError: a row cannot be told, the spool cannot be written, or the store was opened
                read-only.
        """
        self._check_writable()
        given = [rows] if isinstance(rows, msgspec.Struct) else list(rows)
        count = self._spool.append(given)
        self._decided.note(given)
        return count

    def ingest(self) -> IngestReport:
        """Take in what all processes have left in the spool so far.

        Raises:
            StoreError: as for :meth:`open`.
        """
        self._check_writable()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"its folder cannot be made: {error.strerror or error}",
                subject=str(self.path),
                remedy=self._database.remedy,
            ) from error
        with self._database.lock():
            if not self.path.exists():
                self._database.create()
            files = spool_files(self._spool.folder)
            # Most openings find nothing to do, and a reading connection cannot do harm to a file
            # that turns out to be something else.
            with self._database.connect(write=False) as connection:
                outdated = self._database.is_outdated(connection)
                if not outdated and not has_news(connection, files):
                    return IngestReport()
            with self._database.connect(write=True) as connection:
                self._database.migrate(connection)
                return ingest(connection, files)

    def outcome(
        self, graph_key: str, device_key: str, modes: Sequence[str] = ("measure", "predict")
    ) -> Outcome | None:
        """The newest decision for the graph on the device, with all that it was made among.

        Args:
            graph_key: the graph.
            device_key: the device.
            modes: modes that the decision may come from; an earlier one goes before a later one.
        """
        with self.reading() as connection:
            found: list[Row] = []
            for mode in modes:
                found = TABLES["decisions"].select(
                    connection,
                    "WHERE graph_key = ? AND device_key = ? AND mode = ? "
                    'ORDER BY "at" DESC, schedule_id LIMIT 1',
                    [graph_key, device_key, mode],
                )
                if found:
                    break
            else:
                return None
            schedules = TABLES["schedules"].select(connection, "WHERE graph_key = ?", [graph_key])
            graphs = TABLES["graphs"].select(connection, "WHERE key = ?", [graph_key])
        return Outcome(
            cast(DecisionRow, found[0]),
            {row.id: row.schedule for row in cast(list[ScheduleRow], schedules)},
            cast(GraphRow, graphs[0]).nodes if graphs else 0,
        )

    def extern_times(self, device_key: str) -> dict[str, float]:
        """Median microseconds of extern kernels measured on the device, by node signature."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT subject_id, median(median_us) FROM measurements WHERE subject = 'extern' "
                "AND status = 'ok' AND device_key = ? AND median_us IS NOT NULL GROUP BY 1",
                [device_key],
            ).fetchall()
        return {signature: float(us) for signature, us in found}

    def graph(self, key: str) -> GraphRow | None:
        """The graph of that key."""
        with self.reading() as connection:
            found = TABLES["graphs"].select(connection, "WHERE key = ?", [key])
        return cast(GraphRow, found[0]) if found else None

    def rows(self, table: str) -> list[Row]:
        """All rows of ``table``, for reports over small tables.

        Raises:
            StoreError: there is no such table.
        """
        if table not in TABLES:
            raise StoreError(
                f"there is no table {table!r}",
                subject=str(self.path),
                remedy=f"use one of {', '.join(TABLES)}",
            )
        with self.reading() as connection:
            return TABLES[table].select(connection, "ORDER BY ALL", [])

    def devices(self) -> list[DeviceRow]:
        """All devices, in the order in which they were met."""
        with self.reading() as connection:
            return self._devices(connection)

    def kernel_samples(
        self,
        *,
        features_version: int | None = None,
        device_key: str | None = None,
        device_kind: DeviceKind | None = None,
    ) -> KernelSamples:
        """Measured kernels: one sample for each distinct kernel and device.

        Args:
            features_version: the version that features are wanted of; None takes the newest.
            device_key: only this device.
            device_kind: only devices of this kind.

        Raises:
            StoreError: samples of that version have different numbers of features.
        """
        with self.reading() as connection:
            return kernel_samples(
                connection,
                features_version=features_version,
                device_key=device_key,
                device_kind=device_kind,
            )

    def schedule_samples(self, *, device_key: str | None = None) -> ScheduleSamples:
        """Measured schedules, of one device or all."""
        with self.reading() as connection:
            return schedule_samples(connection, device_key=device_key)

    def measured_signatures(self, device_key: str) -> dict[str, int]:
        """How often each kernel and extern call was measured on the device, failures included.

        Kernels that were timed with several block sizes have a signature of their own for that,
        :func:`~fusewise.datasets.rows.blocks_signature`.
        """
        with self.reading() as connection:
            found = connection.execute(
                "SELECT subject_id, count(*) FROM measurements "
                "WHERE subject IN ('kernel', 'extern') AND device_key = ? GROUP BY 1",
                [device_key],
            ).fetchall()
            tried = connection.execute(
                "SELECT source_hash FROM blocks WHERE device_key = ?", [device_key]
            ).fetchall()
        return dict(found) | {blocks_signature(source): 1 for (source,) in tried}

    def block_samples(self, *, device_key: str | None = None) -> tuple[BlockSample, ...]:
        """Kernels that were timed with several block sizes, of one device or all.

        Raises:
            StoreError: a kernel's source is damaged.
        """
        with self.reading() as connection:
            return block_samples(connection, device_key=device_key)

    def collected(self, device_key: str) -> set[tuple[str, str, int]]:
        """Label of corpus, name and round of the programs that were collected on the device."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT corpus, name, round FROM items WHERE device_key = ?", [device_key]
            ).fetchall()
        return set(found)

    def problems(self) -> StoredProblems:
        """The problems of all graphs that were kept with one, each decoded when it is asked for."""
        with self.reading() as connection:
            found = connection.execute(
                "SELECT key, problem FROM graphs WHERE problem IS NOT NULL"
            ).fetchall()
        return StoredProblems(dict(found))

    def graph_keys(self) -> set[str]:
        """Keys of all graphs."""
        with self.reading() as connection:
            return {key for (key,) in connection.execute("SELECT key FROM graphs").fetchall()}

    def info(self) -> StoreInfo:
        """Counts, devices and sizes."""
        with self.reading() as connection:
            counts = {table: _count(connection, table) for table in TABLES}
            devices = tuple(self._devices(connection))
            version = self._database.version(connection)
        files = spool_files(self._spool.folder)
        log = self.path.with_name(self.path.name + ".wal")
        return StoreInfo(
            path=str(self.path),
            schema_version=version,
            counts=counts,
            devices=devices,
            bytes=sum(file.stat().st_size for file in (self.path, log) if file.exists()),
            spool_files=len(files),
            spool_bytes=sum(file.size for file in files),
        )

    def export(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each table as ``<table>.parquet`` into ``folder``; the files written.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.reading() as connection:
            return export_tables(connection, Path(folder))

    def merge(self, other: str | os.PathLike[str]) -> dict[str, int]:
        """Take in all of another store; the number of its rows by table.

        The other store is opened first, so its spool counts, and otherwise left as it is.

        Raises:
            StoreError: either cannot be opened or read, or both are the same. The error names
                which, and nothing was taken in.
        """
        self._check_writable()
        other_path = Path(other).absolute()
        if other_path.resolve() == self.path.resolve():
            raise StoreError(
                "a store cannot be merged into itself",
                subject=str(other_path),
                remedy="give another store",
            )
        check_existing_store(other_path, remedy="give the path of one")
        with Store.open(other_path, timeout=self._database.timeout) as source:
            merged = merge_tables(self._database, source._database)
        self._decided.forget()
        return merged

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for reading in bulk. Others wait while it is held."""
        with (
            self._database.lock(optional=self.read_only),
            self._database.connect(write=False) as connection,
        ):
            if self._database.is_outdated(connection):
                raise StoreError(
                    "has tables of an older fusewise",
                    subject=str(self.path),
                    remedy="open it once for writing, which brings it up to date",
                )
            yield connection

    def _check_writable(self) -> None:
        if self.read_only:
            raise StoreError(
                "was opened read-only", subject=str(self.path), remedy="open it for writing"
            )

    @staticmethod
    def _devices(connection: duckdb.DuckDBPyConnection) -> list[DeviceRow]:
        found = TABLES["devices"].select(connection, "ORDER BY first_seen, key", [])
        return cast(list[DeviceRow], found)


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(found[0]) if found else 0
