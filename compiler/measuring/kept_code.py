"""The file with the code of the modules that measuring processes import, and how it is written.

Is run to write it, with the file's place, by a process that told which modules it imports: once
that is gone, and without importing any of them. What is measured before has nothing to do with it.
Like Python's byte code it is run without being looked at, so that only a file of the user's own is
taken.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import signal
import struct
import sys
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple

#: Code of modules by name.
Kept = dict[str, "KeptModule"]

#: What follows the key in a file: checksum of the rest, and bytes of the table of modules.
_SIZES = struct.Struct("<IQ")
#: Permissions by which others than its owner could change a file.
_OTHERS_WRITE = 0o022
#: Seconds after which no more code is compiled, and those after which the process is ended.
_COMPILING_S, _WRITING_S = 12.0, 20
_LOWEST_PRIORITY = 19


class KeptModule(NamedTuple):
    """Code of a module, and how its source and the folder with it were when that was taken."""

    file: str
    modified_ns: int
    size: int
    folder_ns: int
    code: bytes | memoryview

    @property
    def package(self) -> str | None:
        """Folder of the package whose own source this is; None for any other module."""
        folder, _, name = self.file.rpartition(os.sep)
        return folder if name == "__init__.py" else None

    @property
    def folder(self) -> str:
        """The entry of a search path under which Python finds it."""
        return (self.package or self.file).rpartition(os.sep)[0]

    def as_it_was(self) -> bool:
        """Whether the source is as it was, by what Python goes by for its byte code."""
        try:
            found = os.stat(self.file)  # noqa: PTH116
        except OSError:
            return False
        return (found.st_mtime_ns, found.st_size) == (self.modified_ns, self.size)


def place_in(folder: str) -> Path:
    """Where code is kept that this Python runs, in this environment."""
    tag = sys.implementation.cache_tag
    return Path(folder, f"{tag}-{importlib.util.source_hash(_key()).hex()}")


def read(place: Path) -> Kept:
    """What is kept at a place; nothing where that is no whole file of this user's and Python's."""
    try:
        with place.open("rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or about.st_mode & _OTHERS_WRITE:
                return {}
            whole = memoryview(file.read())
    except OSError:
        return {}
    key = _key()
    start = len(key) + _SIZES.size
    if len(whole) < start or whole[: len(key)] != key:
        return {}
    checksum, length = _SIZES.unpack_from(whole, len(key))
    if zlib.crc32(whole[start:]) != checksum:
        return {}
    table, codes = marshal.loads(whole[start : start + length]), whole[start + length :]
    return {
        name: KeptModule(file, modified_ns, size, folder_ns, codes[begin:end])
        for name, (file, modified_ns, size, folder_ns, begin, end) in table.items()
    }


def add(place: Path, sources: Mapping[str, str]) -> None:
    """Keep the code of modules at a place, beside what is kept there and as it was.

    Args:
        place: of the file, which is replaced; nobody else may do so meanwhile.
        sources: files by the names of the modules.

    Raises:
        OSError: it cannot be written.
    """
    kept = {name: module for name, module in read(place).items() if module.as_it_was()}
    until = time.monotonic() + _COMPILING_S
    new = {}
    for name, file in sources.items():
        if time.monotonic() > until:
            break
        # What cannot be read any more, or compiled, is not kept.
        with suppress(OSError, SyntaxError, ValueError):
            module = _as_it_is(file)
            if module[:4] != kept.get(name, ())[:4]:
                new[name] = module._replace(
                    code=marshal.dumps(SourceFileLoader(name, file).get_code(name))
                )
    if new:
        _write(place, kept | new)


def main() -> None:
    """Add to the file at the place that is given, once who has told what to add is gone."""
    import filelock

    place, told = Path(sys.argv[1]), int(sys.argv[2])
    os.nice(_LOWEST_PRIORITY)
    # Python may be told to write none; whoever imports the modules sees to that.
    sys.dont_write_bytecode = True
    # It has the other end, and writes nothing.
    sys.stdin.read()
    signal.alarm(_WRITING_S)
    with os.fdopen(told, "rb") as file:
        lines = os.fsdecode(file.read()).split("\n")[:-1]
    if not place.parent.is_dir():
        # Removed meanwhile, and not to be made again.
        return
    # Somebody else writes it, or it cannot be written: the next one who lacks it tries again.
    lock = filelock.FileLock(f"{place}.lock", timeout=0, mode=0o600)
    with suppress(filelock.Timeout, OSError), lock:
        add(place, dict(line.split(" ", 1) for line in lines))


def _key() -> bytes:
    """What a file begins with whose code this Python runs, in this environment."""
    python = sys.version, importlib.util.MAGIC_NUMBER, sys.prefix, sys.flags.optimize
    return f"code of modules, 1: {python!r}\n".encode()


def _as_it_is(file: str) -> KeptModule:
    """A module as it is now, still without its code."""
    about = Path(file).stat()
    bare = KeptModule(file, about.st_mtime_ns, about.st_size, 0, b"")
    return bare._replace(folder_ns=Path(bare.folder).stat().st_mtime_ns)


def _write(place: Path, kept: Kept) -> None:
    table, end = {}, 0
    for name, module in kept.items():
        begin, end = end, end + len(module.code)
        table[name] = (*module[:4], begin, end)
    head = marshal.dumps(table)
    parts = [head, *(module.code for module in kept.values())]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    beside = place.with_suffix(".new")
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(opened, "wb") as file:
        file.write(_key() + _SIZES.pack(checksum, len(head)))
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(place)


if __name__ == "__main__":
    main()
