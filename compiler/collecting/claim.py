"""One collection a device: a claim that others can read.

Two collections on one device would wait for each other's timings and time each other's compilers.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import torch

from fusewise.costmodel.device import physical_name
from fusewise.schedule.errors import MeasureError


@contextmanager
def claim(device: str) -> Iterator[None]:
    """Hold the device for a collection.

    Raises:
        MeasureError: another process collects on it; names the process. Or the claim cannot be
            made.
    """
    name = physical_name(torch.device(device))
    path = Path(tempfile.gettempdir()) / f"fusewise-collecting-{name}.lock"
    lock = filelock.FileLock(path, timeout=0, mode=0o666)
    note = path.with_suffix(".pid")
    try:
        lock.acquire()
    except filelock.Timeout as error:
        holder = note.read_text() if note.is_file() else "of which nothing is known"
        raise MeasureError(
            f"process {holder} is collecting on it",
            subject=f"device {name}",
            remedy="wait for it to end, or collect on another device",
        ) from error
    except OSError as error:
        raise MeasureError(
            f"the file that says who collects on it cannot be opened: {error}",
            subject=f"device {name}",
            remedy=f"remove {path}, or have it removed by its owner",
        ) from error
    try:
        # Only ever read to be shown. Another user's, left behind, is not ours to overwrite.
        with contextlib.suppress(OSError):
            note.write_text(str(os.getpid()))
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink()
        lock.release()
