"""The spool: where each process leaves its rows until an opening of the store takes them in.

A process appends to a file of its own, one JSON line a row, written in one piece, so a process
that is killed loses at most the line it was writing. It holds a shared ``flock`` on its file as
long as it may write more: whoever can take the file's lock alone knows that its writer is gone,
also across containers, where process ids mean nothing. Never touches DuckDB.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from fusewise.datasets.rows import Row
from fusewise.datasets.tables import TABLE_OF
from fusewise.schedule.errors import StoreError

#: Version of the lines. Older ones are read with the defaults of what they lack, newer ones are
#: left for a newer fusewise.
LINE_VERSION = 1


class Line(msgspec.Struct, frozen=True):
    """One line of a spool file."""

    table: str
    version: int
    row: msgspec.Raw


class SpoolWriter:
    """Appends rows to this process's file in ``folder``; made on the first row, anew after a fork.

    Safe to use from several threads.
    """

    def __init__(self, folder: Path, *, remedy: str) -> None:
        """Name a folder; nothing is made.

        Args:
            folder: the spool.
            remedy: what to do where it cannot be written; says where the path came from.
        """
        self.folder = folder
        self.remedy = remedy
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        _writers.add(self)

    def append(self, rows: Iterable[Row]) -> int:
        """Write each row as one line; the number of rows written.

        Raises:
            StoreError: a row cannot be told as JSON (nothing of it is written), or the file
                cannot be written; rows before it stand.
        """
        count = 0
        with self._lock:
            for row in rows:
                self._write(encode_line(row))
                count += 1
        return count

    def close(self) -> None:
        """Let go of the file, so that it can be removed once taken in. Appending opens another."""
        with self._lock:
            self._forget()

    def _write(self, line: bytes) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            # Part of the line may stand there: a row appended to it would be lost with it.
            self._forget()
            raise StoreError(
                f"rows cannot be written: {error.strerror or error}",
                subject=str(self.folder),
                remedy=self.remedy,
            ) from error

    def _open(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = self.folder / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Between the two calls it looked like the file of a dead process, which is removed.
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _after_fork(self) -> None:
        # The file stays the parent's; its lock too, as the parent still has it open.
        self._lock = threading.Lock()
        self._forget()


_writers: weakref.WeakSet[SpoolWriter] = weakref.WeakSet()


def _close_inherited() -> None:
    for writer in list(_writers):
        writer._after_fork()


os.register_at_fork(after_in_child=_close_inherited)


def encode_line(row: Row) -> bytes:
    """``row`` as a spool line, newline included.

    Raises:
        StoreError: names the field that cannot be told as JSON.
    """
    table = TABLE_OF[type(row)]
    try:
        told = msgspec.to_builtins(row, builtin_types=(bytes,)) if _odd(row) else None
        if told is not None:
            told = {name: _spelled(getattr(row, name), value) for name, value in told.items()}
        raw = msgspec.json.encode(row if told is None else told)
        # What cannot be read back must not wait in the spool to be found out there.
        table.decoder.decode(raw)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            f"a row cannot be stored: {error}",
            subject=f"table {table.name}",
            remedy="give values that fit the row's fields",
        ) from error
    return msgspec.json.encode(Line(table.name, LINE_VERSION, msgspec.Raw(raw))) + b"\n"


def _odd(value: object) -> bool:
    """Whether a number that JSON has no word for stands in ``value``."""
    match value:
        case float():
            return not math.isfinite(value)
        case list() | tuple():
            return any(map(_odd, value))
        case dict():
            return any(map(_odd, value.values()))
        case msgspec.Struct():
            return any(_odd(getattr(value, name)) for name in value.__struct_fields__)
        case _:
            return False


def _spelled(field: object, told: object) -> object:
    """``told`` with numbers that are not finite as text, which lax decoding reads as numbers."""
    match told:
        case float() if not math.isfinite(told):
            return str(told)
        case list() | tuple() if isinstance(field, list | tuple):
            return [_spelled(f, t) for f, t in zip(field, told, strict=True)]
        case dict() if isinstance(field, msgspec.Struct):
            return {name: _spelled(getattr(field, name), t) for name, t in told.items()}
        case dict() if _odd(told):
            raise ValueError("nan or inf stands in a field of free JSON")
        case _:
            return told


class SpoolFile(msgspec.Struct, frozen=True):
    """A spool file as found on the disk."""

    path: Path
    size: int

    @property
    def name(self) -> str:
        """Its identity: names are random and never used again."""
        return self.path.name

    def writer_is_gone(self) -> bool:
        """Whether no process will append to it any more."""
        return self._alone(lambda _: True)

    def remove(self) -> bool:
        """Remove it unless it was appended to or its writer is alive; whether it is gone."""
        return self._alone(self._unlink)

    def read(self, start: int) -> bytes:
        """Its bytes from ``start`` on."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read()

    def _unlink(self, descriptor: int) -> bool:
        # Under its lock: a file that was made this moment may have got its writer since it was
        # found empty.
        if os.fstat(descriptor).st_size != self.size:
            return False
        self.path.unlink(missing_ok=True)
        return True

    def _alone(self, act: Callable[[int], bool]) -> bool:
        """Result of ``act`` with the file's lock held alone, False where its writer has it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return act(descriptor)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)


def spool_files(folder: Path) -> list[SpoolFile]:
    """Files in the spool, by name.

    Raises:
        StoreError: the folder is there but cannot be listed.
    """
    found = []
    try:
        for path in folder.glob("*.jsonl"):
            # Another process may remove what it has taken in.
            with contextlib.suppress(FileNotFoundError):
                found.append(SpoolFile(path, path.stat().st_size))
    except OSError as error:
        raise StoreError(
            f"cannot be listed: {error.strerror or error}",
            subject=str(folder),
            remedy="make the folder readable",
        ) from error
    return sorted(found, key=lambda file: file.name)
