"""A station: one device, processes that time on it in turns, and a pool of those that compile.

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
from fusewise.compiler.collecting.timing import Timer
from fusewise.compiler.collecting.work import (
    Batch,
    Item,
    PreparedGraph,
    Settings,
    Usage,
)
from fusewise.compiler.inductor.toolchain import probed_vectors
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.registry import load_model
from fusewise.schedule.errors import FusewiseError, MeasureError, first_line

log = logging.getLogger(__name__)

#: Graphs that wait for the device, for each worker, before workers have to wait.
_QUEUE_EACH = 2
#: Items that wait for a worker, for each worker.
_ITEMS_EACH = 2
_TICK_S = 0.2
#: Seconds for the threads that time to end once their processes are killed.
_JOIN_S = 3.0
#: Most of the time of one that times goes into loading programs, which needs no device.
_GPU_TIMERS = 5
#: Cores beside a GPU that are left to the processes that launch, and to this one.
SPARE_CORES = 3


class Station:
    """Collects on one device until it is closed."""

    def __init__(self, settings: Settings, timed: Callable[[str], Mapping[str, int]]) -> None:
        """``timed``: how often kernels were timed, by signature, on the device of a key.

        Raises:
            FusewiseError: the device cannot be used or profiled, or there is no such model.
        """
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = torch.device(settings.device)
        profile = device_profile(device, Path(settings.home))
        self.device_key = profile.key
        if settings.strategy == "active":
            # Workers load it themselves; what is wrong with it is better told before they start.
            load_model(settings.model or None, profile, Path(settings.home))
        self._settings = _complete(settings)
        self._shares_cores = device.type == "cpu"
        #: Guards all that both threads of workers and the timing thread change.
        self._lock = threading.Lock()
        #: Parts of each item that are not through: the worker's share and each graph of it.
        self._open: Counter[Item] = Counter()
        self._failure: FusewiseError | None = None
        environment = probed_vectors() if device.type == "cpu" else {}
        self._start = time.monotonic()
        self._closing = threading.Event()
        self._batches: queue.SimpleQueue[Batch] = queue.SimpleQueue()
        self._lines = [
            _Line(Timer(str(device), profile, environment=environment), self._settings)
            for _ in range(self._settings.timers)
        ]
        #: Graphs of one program are timed by one process, which keeps what a forward graph saved.
        self._line_of: dict[Item, _Line] = {}
        subject = f"collecting on {self.device_key}"
        self._pool = Pool(
            self._settings, timed(profile.key), self, subject=subject, environment=environment
        )
        self._threads = [
            threading.Thread(target=self._time, args=(line,), name="timing", daemon=True)
            for line in self._lines
        ]
        for thread in self._threads:
            thread.start()

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
        return Usage(
            elapsed=time.monotonic() - self._start,
            timing=sum(line.timer.held_s for line in self._lines),
            compiling=self._pool.seconds(),
            workers=self._settings.workers,
            lost=self._pool.lost + sum(line.timer.lost for line in self._lines),
        )

    def close(self) -> None:
        """End all processes, within a few seconds; what was in flight is lost."""
        self._closing.set()
        for line in self._lines:
            line.timer.stop()
        self._pool.close()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # What workers have to say, in their threads.

    def prepared(self, graph: PreparedGraph) -> None:
        """Queue a graph for the device."""
        with self._lock:
            self._open[graph.item] += 1
            shortest = min(self._lines, key=lambda line: line.graphs.qsize())
            line = self._line_of.setdefault(graph.item, shortest)
        while not self._closing.is_set():
            with contextlib.suppress(queue.Full):
                line.graphs.put(graph, timeout=_TICK_S)
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

    # The device, in a thread for each process that times.

    def _time(self, line: _Line) -> None:
        try:
            while not self._closing.is_set():
                try:
                    graph = line.graphs.get(timeout=_TICK_S)
                except queue.Empty:
                    line.timer.look()
                else:
                    self._time_one(line.timer, graph)
        except Exception as error:
            log.debug("timing failed", exc_info=True)
            self.failed(error)
        finally:
            line.timer.close()

    def _time_one(self, timer: Timer, graph: PreparedGraph) -> None:
        batch = self._timed(timer, graph)
        # What was cut short is as if it had not been begun.
        if not self._closing.is_set():
            self._pool.learn(batch.signatures)
            self._close_part(batch)

    def _timed(self, timer: Timer, graph: PreparedGraph) -> Batch:
        try:
            return timer.time(graph, self._quiet)
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
                self._line_of.pop(item, None)
                batch.finished = True
            # In order, so that nothing of an item comes after its end.
            self._batches.put(batch)


class _Line:
    """One process that times, and the graphs that wait for it."""

    def __init__(self, timer: Timer, settings: Settings) -> None:
        self.timer = timer
        # A full queue leaves graphs in the pipes, and so their senders waiting.
        most = max(2, _QUEUE_EACH * settings.workers // settings.timers)
        self.graphs: queue.Queue[PreparedGraph] = queue.Queue(most)


def _complete(settings: Settings) -> Settings:
    """The settings with what was left to the machine filled in."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = settings.device.startswith("cuda")
    spare = SPARE_CORES if gpu else 0
    return msgspec.structs.replace(
        settings,
        workers=settings.workers or max(1, (cores or 1) - spare),
        timers=(settings.timers or _GPU_TIMERS) if gpu else 1,
        threads=settings.threads or torch.get_num_threads(),
    )
