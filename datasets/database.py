"""Access to the store's file: one lock, one short connection, and every failure a StoreError.

DuckDB has one writer or many readers, and compiles run in many processes, so every access takes
the lock beside the file, connects, and lets go. Never keeps a connection, never removes or
overwrites a file that it cannot read.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path

import duckdb
import filelock

from fusewise.datasets.connecting import connected
from fusewise.schedule.errors import StoreError

#: Seconds to wait for another process to let go of the store.
LOCK_TIMEOUT = 30.0
#: Seconds between two tries; an access takes some 20 ms.
LOCK_POLL = 0.005

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    # Lookups are small: starting a pool of threads would cost more than they do.
    "threads": 1,
    "autoinstall_known_extensions": False,
}


def migrations() -> list[tuple[int, str, str]]:
    """Version, name and SQL of each migration, in order."""
    folder = resources.files("fusewise.datasets").joinpath("migrations")
    found = []
    for entry in folder.iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, entry.read_text(encoding="utf-8")))
    return sorted(found)


class Database:
    """The file at ``path`` and its lock."""

    def __init__(self, path: Path, *, remedy: str, timeout: float = LOCK_TIMEOUT) -> None:
        """Name a file; nothing is opened or made.

        Args:
            path: the file.
            remedy: what to do where it cannot be written; says where the path came from.
            timeout: seconds to wait for another process that has it.
        """
        self.path = path
        self.remedy = remedy
        self.timeout = timeout

    @property
    def lock_path(self) -> Path:
        """The file whose lock stands for the store."""
        return self.path.with_name(self.path.name + ".lock")

    @contextmanager
    def lock(self, *, optional: bool = False) -> Iterator[None]:
        """Hold the store alone.

        Args:
            optional: go on without where the folder cannot be written, as a reader may: DuckDB's
                own lock still keeps it from reading while another writes.

        Raises:
            StoreError: another process held it for the whole timeout, or it cannot be made.
        """
        lock = filelock.FileLock(self.lock_path, timeout=self.timeout, poll_interval=LOCK_POLL)
        try:
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                self._check_folder()
                lock.acquire()
        except filelock.Timeout as error:
            raise StoreError(
                f"{_holder(self.lock_path)} has held the store for {self.timeout:g} s",
                subject=str(self.path),
                remedy="wait for it to end, or end it, and try again",
            ) from error
        except OSError as error:
            if not optional:
                raise self._unwritable(error) from error
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _check_folder(self) -> None:
        """Raise what keeps the lock's file from being made, where nobody can be holding it.

        A folder that says there is no such file is to filelock one in which another process has
        removed it at that moment, so it would try on. Some file systems (``/proc``) say so of
        every file that is to be made.

        Raises:
            OSError: no file can be made there.
        """
        if not os.path.lexists(self.lock_path):
            folder = self.path.parent
            try:
                with tempfile.NamedTemporaryFile(dir=folder, prefix=self.lock_path.name):
                    pass
            except FileNotFoundError as error:
                raise OSError(error.errno, f"no file can be made in {folder}") from error

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot be written: {error.strerror or error}",
            subject=str(self.path),
            remedy=self.remedy,
        )

    @contextmanager
    def connect(self, *, write: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection, to be used while the lock is held. Closed on leaving.

        Raises:
            StoreError: the file cannot be opened, or a statement in the body failed.
        """
        try:
            connection = self._connect(write)
        except duckdb.Error as error:
            raise _unreadable(self.path, error) from error
        try:
            yield connection
        except duckdb.Error as error:
            raise _failed(self.path, error) from error
        finally:
            connection.close()

    def _connect(self, write: bool) -> duckdb.DuckDBPyConnection:
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return connected(str(self.path), read_only=not write, **_CONFIG)
            except duckdb.IOException as error:
                # A program that knows nothing of our lock (such as the duckdb shell) has it open.
                if not _is_locked(error) or time.monotonic() > deadline:
                    raise
                time.sleep(LOCK_POLL)

    def create(self) -> None:
        """Make the store, whole or not at all. The lock must be held.

        Raises:
            StoreError: it cannot be written.
        """
        # What a killed process left of its attempt is of no use.
        fresh = Database(self.path.with_name(f"{self.path.name}.new"), remedy=self.remedy)
        try:
            for left in (fresh.path, fresh.path.with_name(f"{fresh.path.name}.wal")):
                left.unlink(missing_ok=True)
            with fresh.connect(write=True) as connection:
                fresh.migrate(connection)
            fresh.path.replace(self.path)
        except OSError as error:
            raise self._unwritable(error) from error

    def version(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Schema version of the file; 0 for one that has no tables at all.

        Raises:
            StoreError: it holds something else, or a schema newer than this fusewise knows.
        """
        try:
            found = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
        except duckdb.CatalogException as error:
            tables = connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE NOT temporary "
                "AND database_name = current_database() ORDER BY table_name LIMIT 3"
            ).fetchall()
            if not tables:
                return 0
            raise StoreError(
                f"is a DuckDB file with other tables ({', '.join(name for (name,) in tables)}), "
                "not a store of fusewise",
                subject=str(self.path),
                remedy="give another path for the store, or move this file aside",
            ) from error
        version = int(found[0] or 0) if found else 0
        known = migrations()[-1][0]
        if version > known:
            raise StoreError(
                f"has schema version {version}, this fusewise knows up to {known}",
                subject=str(self.path),
                remedy="upgrade fusewise, or move the file aside to start an empty store",
            )
        return version

    def is_outdated(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Whether migrations are missing.

        Raises:
            StoreError: as for :meth:`version`.
        """
        return self.version(connection) < migrations()[-1][0]

    def migrate(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Apply the migrations that are missing, each in a transaction of its own."""
        version = self.version(connection)
        for number, name, sql in migrations():
            if number <= version:
                continue
            with transaction(connection):
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS schema_migrations "
                    "(version INTEGER PRIMARY KEY, name VARCHAR NOT NULL, "
                    "applied_at TIMESTAMP NOT NULL)"
                )
                connection.execute(sql)
                connection.execute(
                    "INSERT INTO schema_migrations VALUES (?, ?, make_timestamp(?))",
                    [number, name, int(time.time() * 1e6)],
                )


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All of the body or nothing of it."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        # A commit that failed has rolled back by itself.
        with suppress(duckdb.TransactionException):
            connection.rollback()
        raise


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Statements that read another file than the one that is connected to: failures name it.

    Raises:
        StoreError: a statement in the body failed.
    """
    try:
        yield
    except duckdb.Error as error:
        raise _unreadable(path, error) from error


def _holder(lock_path: Path) -> str:
    """Who holds the lock: the process id where the system tells it."""
    try:
        wanted = f":{lock_path.stat().st_ino} "
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            if wanted in line and "FLOCK" in line and "->" not in line:
                return f"process {line.split()[4]}"
    except OSError:
        return "another process"
    return "another process"


def _is_locked(error: duckdb.Error) -> bool:
    """Whether DuckDB found its own lock taken; it has no exception of its own for that."""
    return isinstance(error, duckdb.IOException) and "could not set lock" in str(error).lower()


def _unreadable(path: Path, error: duckdb.Error) -> StoreError:
    if _is_locked(error):
        return StoreError(
            f"another program has it open: {_first_line(error)}",
            subject=str(path),
            remedy="close that program and try again",
        )
    if path.exists() and not os.access(path, os.R_OK):
        return StoreError(
            f"cannot be read: {os.strerror(errno.EACCES)}",
            subject=str(path),
            remedy="make the file readable, or name another store",
        )
    return StoreError(
        f"cannot be opened as a DuckDB file: {_first_line(error)}",
        subject=str(path),
        remedy="move the file aside to start an empty store; it was left as it is",
    )


def _failed(path: Path, error: duckdb.Error) -> StoreError:
    if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException):
        return StoreError(
            f"cannot be read or written: {_first_line(error)}",
            subject=str(path),
            remedy="free some space or memory and try again; nothing that was stored is lost",
        )
    return StoreError(
        f"DuckDB failed: {_first_line(error)}",
        subject=str(path),
        remedy="move the file aside to start an empty store; it was left as it is",
    )


def _first_line(error: duckdb.Error) -> str:
    return str(error).strip().splitlines()[0]
