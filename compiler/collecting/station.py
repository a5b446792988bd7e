"""A station: one device, one process that times on it, and a pool of processes that compile.

Items go in, batches of rows come out. What crashes or hangs costs its item or its program and is
replaced. On a CPU the pool stands still while something is timed: both would be on the same cores.
Knows no store: whoever runs the station writes the rows down.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import torch

from fusewise.compiler.collecting.pool import Pool
from fusewise.compiler.collecting.prepare import first_line
from fusewise.compiler.collecting.timing import Timer
from fusewise.compiler.collecting.work import Batch, Item, PreparedGraph, Settings, Usage
from fusewise.costmodel.device import device_profile
from fusewise.schedule.errors import FusewiseError, MeasureError

log = logging.getLogger(__name__)

#: Graphs that wait for the device, for each worker, before workers have to wait.
_QUEUE_EACH = 2
#: Items that wait for a worker, for each worker.
_ITEMS_EACH = 2
_TICK_S = 0.2
#: Seconds for the timing thread to end once its process is killed.
_JOIN_S = 3.0


class Station:
    """Collects on one device until it is closed."""

    def __init__(self, settings: Settings, timed: Callable[[str], Mapping[str, int]]) -> None:
        """``timed``: how often kernels were timed, by signature, on the device of a key.

        Raises:
            FusewiseError: the device cannot be used or profiled.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = torch.device(settings.device)
        profile = device_profile(device, Path(settings.home))
        self.device_key = profile.key
        self._settings = _complete(settings)
        self._shares_cores = device.type == "cpu"
        #: Guards all that both threads of workers and the timing thread change.
        self._lock = threading.Lock()
        #: Parts of each item that are not through: the worker's share and each graph of it.
        self._open: Counter[Item] = Counter()
        self._failure: FusewiseError | None = None
        self._timing_s = 0.0
        self._timing_since: float | None = None
        self._start = time.monotonic()
        self._closing = threading.Event()
        # A full queue leaves graphs in the pipes, and so their senders waiting.
        self._graphs: queue.Queue[PreparedGraph] = queue.Queue(_QUEUE_EACH * self._settings.workers)
        self._batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._timer = Timer(str(device), profile)
        subject = f"collecting on {self.device_key}"
        self._pool = Pool(self._settings, timed(profile.key), self, subject=subject)
        self._thread = threading.Thread(target=self._time, name="timing", daemon=True)
        self._thread.start()

    def room(self) -> int:
        """How many more items it can take now."""
        return max(0, _ITEMS_EACH * self._settings.workers - self._pool.waiting())

    def idle(self) -> bool:
        """Whether everything that was submitted is through, and was given out by :meth:`poll`."""
        with self._lock:
            return not self._open and self._batches.empty()

    def failure(self) -> FusewiseError | None:
        """Why nothing more can come of it; None where it works."""
        return self._failure

    def lost(self) -> list[Item]:
        """Nothing: what dies here costs its item."""
        return []

    def submit(self, items: Sequence[Item], news: Sequence[str] = ()) -> None:
        """Take items, and signatures of what was timed elsewhere meanwhile."""
        with self._lock:
            self._open.update(items)
        self._pool.learn(news)
        self._pool.add(items)

    def poll(self, timeout_s: float) -> list[Batch]:
        """Batches that are ready, waiting for the first no longer than ``timeout_s``."""
        found: list[Batch] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._batches.get(timeout=timeout_s))
            while True:
                found.append(self._batches.get_nowait())
        return found

    def usage(self) -> Usage:
        """Where the time went so far."""
        now = time.monotonic()
        with self._lock:
            timing = self._timing_s
            if self._timing_since is not None:
                timing += now - self._timing_since
        return Usage(
            elapsed=now - self._start,
            timing=timing,
            compiling=self._pool.seconds(),
            workers=self._settings.workers,
            lost=self._pool.lost + self._timer.lost,
        )

    def close(self) -> None:
        """End all processes, within a few seconds; what was in flight is lost."""
        self._closing.set()
        self._timer.stop()
        self._pool.close()
        self._thread.join(_JOIN_S)

    # What workers have to say, in their threads.

    def prepared(self, graph: PreparedGraph) -> None:
        """Queue a graph for the device."""
        with self._lock:
            self._open[graph.item] += 1
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                self._graphs.put(graph, timeout=_TICK_S)
                return

    def done(self, item: Item, failures: Sequence[str]) -> None:
        """A worker is through with an item."""
        self._close_part(Batch(item, failures=list(failures)))

    def failed(self, error: Exception) -> None:
        """Something happened that nobody thought of."""
        if not isinstance(error, FusewiseError):
            log.error("a thread of the collection failed", exc_info=error)
            error = MeasureError(
                first_line(error),
                subject=f"collecting on {self.device_key}",
                remedy="collect again, which goes on from here; please report it if it recurs",
            )
        self._failure = self._failure or error

    # The device, in a thread of its own.

    def _time(self) -> None:
        try:
            while not self._closing.is_set():
                with contextlib.suppress(queue.Empty):
                    self._time_one(self._graphs.get(timeout=_TICK_S))
        except Exception as error:
            log.debug("timing failed", exc_info=True)
            self.failed(error)
        finally:
            self._timer.close()

    def _time_one(self, graph: PreparedGraph) -> None:
        start = time.monotonic()
        with self._lock:
            self._timing_since = start
        try:
            with self._quiet():
                batch = self._timed(graph)
        finally:
            with self._lock:
                self._timing_s += time.monotonic() - start
                self._timing_since = None
        # What was cut short is as if it had not been begun.
        if not self._closing.is_set():
            self._pool.learn(batch.signatures)
            self._close_part(batch)

    def _timed(self, graph: PreparedGraph) -> Batch:
        try:
            return self._timer.time(graph)
        except Exception as error:
            log.warning("timing %s failed", graph.sample, exc_info=True)
            return Batch(graph.item, failures=[f"{graph.sample}: {first_line(error)}"])

    def _quiet(self) -> AbstractContextManager[None]:
        """The pool stands still where it runs on the cores that are timed."""
        return self._pool.standing_still() if self._shares_cores else nullcontext()

    def _close_part(self, batch: Batch) -> None:
        """One part of an item is through: a graph of it, or the worker's share."""
        item = batch.item
        with self._lock:
            self._open[item] -= 1
            if not self._open[item]:
                del self._open[item]
                batch.finished = True
            # In order, so that nothing of an item comes after its end.
            self._batches.put(batch)


def _complete(settings: Settings) -> Settings:
    """The settings with what was left to the machine filled in."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Two cores beside a GPU: for the process that launches, and for this one.
    spare = 2 if settings.device.startswith("cuda") else 0
    return msgspec.structs.replace(
        settings,
        workers=settings.workers or max(1, (cores or 1) - spare),
        threads=settings.threads or torch.get_num_threads(),
    )
