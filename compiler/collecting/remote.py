"""The node's end of a station in a cluster: a station in an actor, with a folder of its own.

Is shown nothing of the store and writes nothing that outlives it. Imports no cluster library: an
actor is a class like any other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

import fusewise.datasets
from fusewise.compiler.collecting.claim import claim
from fusewise.compiler.collecting.station import Station
from fusewise.compiler.collecting.work import Batch, Item, Settings, Usage
from fusewise.costmodel.device import device_key, device_profile
from fusewise.schedule.errors import FusewiseError

#: What folders of stations begin with, and the file in each that is locked while one has it.
_FOLDER, _HELD = "fusewise-station-", "held"
_OPENMP = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Exchange:
    """What an actor has to say when it is asked."""

    batches: list[Batch]
    #: Items that it can take.
    room: int
    usage: Usage
    #: Why it can do nothing any more.
    failure: FusewiseError | None


class StationActor:
    """A station on the node and the device that this process was started for."""

    def __init__(self, settings: Settings, *, exclusive: bool) -> None:
        """``exclusive``: whether to refuse a device that another collection is at."""
        _forget_checkout()
        # A cluster sets one thread for tasks that ask for no cores.
        for name in _OPENMP:
            os.environ.pop(name, None)
        self._open = ExitStack()
        self._home = _own_folder(self._open)
        if settings.device == "cpu" and not settings.threads:
            settings = msgspec.structs.replace(settings, threads=_threads())
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self._settings = msgspec.structs.replace(settings, home=str(self._home))
        self._exclusive = exclusive
        self._station: Station | None = None

    def named(self) -> tuple[str, str]:
        """Key of the device, and the version of fusewise here.

        Raises:
            FusewiseError: the device cannot be used.
        """
        return self._key(), fusewise.__version__

    def profile(self) -> bytes:
        """Measure the device; its profile as it is kept in a file."""
        device_profile(torch.device(self._settings.device), self._home)
        return self._profile_path().read_bytes()

    def start(
        self, profile: bytes, models: Mapping[str, bytes], model: str, counts: Mapping[str, int]
    ) -> None:
        """Start the station.

        Args:
            profile: of the device; one for all stations on devices of a key.
            models: files of cost models by their names.
            model: name of the model that the active strategy asks.
            counts: how often kernels were timed.

        Raises:
            FusewiseError: the station cannot be started, or another collects on the device.
        """
        path = self._profile_path()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(profile)
        for name, content in models.items():
            (self._home / "models").mkdir(exist_ok=True)
            (self._home / "models" / name).write_bytes(content)
        if self._exclusive:
            self._open.enter_context(claim(self._settings.device))
        settings = msgspec.structs.replace(self._settings, model=model)
        self._station = Station(settings, lambda _: counts)
        self._open.callback(self._station.close)

    def exchange(self, items: Sequence[Item], news: Sequence[str], timeout_s: float) -> Exchange:
        """Give items and news, take what is ready, waiting for it no longer than ``timeout_s``."""
        station = self._station
        assert station is not None
        station.submit(items, news)
        batches = station.poll(timeout_s)
        return Exchange(batches, station.room(), station.usage(), station.failure())

    def close(self) -> None:
        """End all processes and remove the folder."""
        self._open.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _key(self) -> str:
        return device_key(torch.device(self._settings.device))

    def _profile_path(self) -> Path:
        return self._home / "devices" / f"{self._key()}.json"


def _own_folder(held: ExitStack) -> Path:
    """A folder of this process, while ``held`` is; those that killed ones left are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        # In use, another user's, or being removed by others.
        with suppress(OSError), (left / _HELD).open("rb") as found:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=_FOLDER))
    # Under another name until it is locked, or others would take it for one that was left.
    unlocked = home / f"{_HELD}-soon"
    mark = held.enter_context(unlocked.open("wb"))
    fcntl.flock(mark, fcntl.LOCK_EX)
    unlocked.rename(home / _HELD)
    return home


def _threads() -> int:
    """Threads that torch takes where nothing tells it otherwise."""
    program = "import torch; print(torch.get_num_threads())"
    environment = {name: value for name, value in os.environ.items() if name not in _OPENMP}
    run = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    return int(run.stdout)


def _forget_checkout() -> None:
    """Take a checkout of fusewise off the path, where a cluster puts the driver's folder.

    Its folder ``datasets`` would hide the library of that name.
    """
    root = Path(fusewise.datasets.__path__[0]).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != root]
