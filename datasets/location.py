"""Where the path of a store came from, and whether a store can be there at all.

Looks at the path and nothing else: opens, makes and changes no file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from fusewise.schedule.errors import StoreError

#: What is no regular file, in words, by the test that tells it.
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def home_folder() -> str:
    """Folder of the user's own store, as it is written: ``FUSEWISE_HOME``, or the data folder."""
    return os.environ.get("FUSEWISE_HOME") or platformdirs.user_data_dir("fusewise")


def writing_remedy(path: Path) -> str:
    """What to do where the store at ``path`` cannot be written, by where the path came from."""
    return _remedy(
        path,
        given="give one in a folder that can be written and has free space",
        own="make the folder writable and free some space",
    )


def check_store_path(path: Path) -> None:
    """See that at ``path`` is a regular file, or nothing yet.

    Raises:
        StoreError: something else is there, such as a folder or a device, or the folder that it
            is in cannot be looked into. Says where the path came from.
    """
    path = path.absolute()
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        # Whoever makes it finds out whether it can be made.
        return
    except OSError as error:
        raise StoreError(
            f"cannot be looked at: {error.strerror}",
            subject=str(path),
            remedy=writing_remedy(path),
        ) from error
    if stat.S_ISREG(mode):
        return
    what = next((words for is_one, words in _KINDS if is_one(mode)), "something else")
    given = (
        f"give that of a file, such as {path / 'store.duckdb'}"
        if stat.S_ISDIR(mode)
        else "give that of a regular file, or one where nothing is yet"
    )
    raise StoreError(
        f"is {what}, not a regular file",
        subject=str(path),
        remedy=_remedy(path, given=given, own="move what is there out of the way"),
    )


def spool_folder(path: Path) -> Path:
    """Folder of the rows that wait to be taken into the store at ``path``."""
    return path.with_name(path.name + ".spool")


def is_new(path: Path) -> bool:
    """Whether nothing was ever kept in a store at ``path``."""
    return not path.exists() and not spool_folder(path).exists()


def check_existing_store(path: Path, *, remedy: str) -> None:
    """See that a regular file is at ``path``.

    Raises:
        StoreError: nothing is there, for which ``remedy`` is told, or see :func:`check_store_path`.
    """
    check_store_path(path)
    if not path.exists():
        raise StoreError("there is no store", subject=str(path), remedy=remedy)


def _remedy(path: Path, *, given: str, own: str) -> str:
    """``given`` for a path that somebody named, ``own`` for that of the user's own store."""
    # Not ``Path.expanduser``, which raises for the home of somebody who is not there.
    home = Path(os.path.expanduser(home_folder()))  # noqa: PTH111
    if path != home.absolute() / "store.duckdb":
        return (
            "the store's path was given (as an argument, with --store or as fusewise.store): "
            f"{given}"
        )
    named = os.environ.get("FUSEWISE_HOME")
    source = "FUSEWISE_HOME" if named else "your data folder, as FUSEWISE_HOME is not set"
    return f"the store is in {source}: {own}, or set FUSEWISE_HOME to another one"
