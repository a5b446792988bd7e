"""Keeping other programs out of a measurement on the CPU, and noticing when they get in.

While a sample is taken the threads of this process run at real-time priority, where that is
permitted. A window is short, never open while a tensor is made or a program compiled, and not
opened at all where the system does not bound what real-time threads may take.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil
import torch

if sys.platform == "linux":
    import resource

    _ORDINARY = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)
    #: Threads that are started meanwhile are ordinary. Who may not do this by capability can set
    #: the flag but not take it back, so that it stays.
    _FLAG = os.SCHED_RESET_ON_FORK

#: A window that may last longer is not opened: what takes as long does not need one.
LONGEST_S = 0.05
_RT_RUNTIME = Path("/proc/sys/kernel/sched_rt_runtime_us")
_TASKS = Path("/proc/self/task")
_MAPS = Path("/proc/self/maps")
_TOPOLOGY = Path("/sys/devices/system/cpu")
#: Elements that torch does not leave to one thread.
_WORK_FOR_ALL = 1 << 20


class Quiet:
    """A window in which a sample is taken: ``with quiet: ...``, then :attr:`disturbed`."""

    def __init__(self) -> None:
        #: Whether a thread of this process had to make way for another program's.
        self.disturbed = False
        self._policy = 0
        self._permitted = False
        if sys.platform == "linux":
            # A window that was open before has left its flag.
            self._policy = os.sched_getscheduler(0) & ~_FLAG
            self._permitted = self._policy in _ORDINARY and _is_bounded()
        self._threads: list[int] = []
        self._before = 0

    def expect(self, seconds: float, *, longest: float = LONGEST_S) -> None:
        """Say how long the next windows will be; threads that were started since are seen.

        They are not opened where they would be longer than ``longest``.
        """
        self._threads = []
        if self._permitted and seconds <= longest:
            threads = [int(task.name) for task in _TASKS.iterdir()]
            # Threads that wait for each other by spinning need a core each.
            if torch.get_num_threads() <= len(_cores(threads)):
                self._threads = threads

    def __enter__(self) -> Quiet:
        """Open the window."""
        if self._threads and not self._set(os.SCHED_RR, 1):
            self._set(self._policy, 0)
            self._permitted, self._threads = False, []
        self._before = _switches()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it; :attr:`disturbed` speaks of it now."""
        self.disturbed = _switches() > self._before
        if self._threads:
            self._set(self._policy, 0)

    def _set(self, policy: int, priority: int) -> bool:
        """Whether it was permitted for each thread; each is tried."""
        permitted = True
        for thread in self._threads:
            try:
                os.sched_setscheduler(thread, policy | _FLAG, os.sched_param(priority))
            except ProcessLookupError:
                continue
            except PermissionError:
                permitted = False
        return permitted


def _is_bounded() -> bool:
    """Whether the system keeps a share of each core from real-time threads."""
    try:
        return int(_RT_RUNTIME.read_text()) > 0
    except (OSError, ValueError):
        return False


def _cores(threads: list[int]) -> set[int]:
    found: set[int] = set()
    for thread in threads:
        try:
            found |= os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue
    return found


def _switches() -> int:
    """Times that a thread of this process was made to give up its core."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def pinned(threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that give each OpenMP thread of a process a core of its own, if there are enough.

    None where torch brings an OpenMP library of its own, beside the one that generated kernels are
    linked with: the first to start pins its thread, and the second, which finds that it may run on
    one core, puts all of its threads there.

    Args:
        threads: that the process runs kernels on.
        environment: what the process gets otherwise; a choice made there stands.
    """
    if sys.platform != "linux" or {"OMP_PROC_BIND", "OMP_PLACES"} & environment.keys():
        return {}
    cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    if threads > cores or not _shares_openmp():
        return {}
    return {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


def pin_threads(threads: int) -> None:
    """Give each OpenMP thread that this one has, and this one, a core of its own, where
    :func:`pinned` would.

    For a process that runs already. To be called before this thread has had anything done by
    several, which is when they are started.
    """
    places = _places()
    if threads > len(places) or not pinned(threads, os.environ):
        return
    before = {int(task.name) for task in _TASKS.iterdir()}
    torch.ones(_WORK_FOR_ALL).add_(1)
    started = sorted({int(task.name) for task in _TASKS.iterdir()} - before)
    # Were there others, nobody could tell which are which.
    if len(started) == threads - 1:
        for task, place in zip((0, *started), places, strict=False):
            os.sched_setaffinity(task, place)


def _places() -> list[set[int]]:
    """The logical processors of each core that this thread may run on."""
    allowed = os.sched_getaffinity(0)
    places: dict[str, set[int]] = {}
    for processor in sorted(allowed):
        siblings = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        name = siblings.read_text() if siblings.exists() else str(processor)
        places.setdefault(name, set()).add(processor)
    return list(places.values())


def _shares_openmp() -> bool:
    """Whether kernels that are loaded here run on torch's own OpenMP library."""
    mapped = {Path(line.split()[-1]) for line in _MAPS.read_text().splitlines() if ".so" in line}
    torch_folder = Path(torch.__file__).parent.parent
    libraries = {
        path.name
        for path in mapped
        if path.is_relative_to(torch_folder)
        and path.relative_to(torch_folder).parts[0] in {"torch", "torch.libs"}
        and re.match(r"lib(gomp|omp|iomp)", path.name)
    }
    return libraries == {"libgomp.so.1"}
