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
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
import torch

from fusewise.compiler.collecting.child import Child
from fusewise.compiler.collecting.prepare import first_line
from fusewise.compiler.collecting.timing import Timer
from fusewise.compiler.collecting.work import (
    Batch,
    Finished,
    Item,
    PreparedGraph,
    Settings,
    Usage,
)
from fusewise.costmodel.device import device_profile
from fusewise.schedule.errors import MeasureError

log = logging.getLogger(__name__)

_WORKER = "fusewise.compiler.collecting.worker"
#: A worker compiles one thing at a time; the pool is what runs side by side.
_ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
#: Graphs that wait for the device, for each worker, before workers have to wait.
_QUEUE_EACH = 2
#: Items that wait for a worker, for each worker.
_ITEMS_EACH = 2
#: A worker is replaced after so many items: tracers and compilers leak.
_ITEMS_A_WORKER = 150
#: Workers that may die one after the other before anything was achieved.
_MOST_STILLBORN = 3
_TICK_S = 0.5


@dataclass
class _Busy:
    """A worker and what it is at."""

    child: Child
    item: Item | None = None
    #: When it was last heard of.
    heard: float = 0.0
    items: int = 0
    #: How much of the news it has been told.
    told: int = 0
    told_fingerprints: int = 0


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
        cores = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
        spare = 2 if device.type == "cuda" else 0
        self._settings = _complete(settings, max(1, (cores or 1) - spare))
        self._shares_cores = device.type == "cpu"
        self._counts = dict(timed(profile.key))
        self._news: list[str] = []
        self._fingerprints: list[str] = []
        self._items: deque[Item] = deque()
        self._pool: list[_Busy] = []
        #: Parts of each item that are not through: the worker's share and each graph of it.
        self._open: Counter[Item] = Counter()
        self._lock = threading.Lock()
        self._graphs: queue.Queue[PreparedGraph | None] = queue.Queue()
        self._batches: queue.Queue[Batch] = queue.Queue()
        self._timer = Timer(str(device), profile)
        self._usage = Usage(workers=self._settings.workers)
        self._start = time.monotonic()
        self._stillborn = 0
        self._closing = threading.Event()
        self._timing_now = threading.Lock()
        self._threads = [
            threading.Thread(target=self._pump, name="workers", daemon=True),
            threading.Thread(target=self._time, name="timing", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def room(self) -> int:
        """How many more items it can take now."""
        return max(0, _ITEMS_EACH * self._settings.workers - len(self._items))

    def idle(self) -> bool:
        """Whether everything that was submitted is through."""
        return not (self._items or self._open or not self._batches.empty())

    def submit(self, items: Sequence[Item], news: Sequence[str] = ()) -> None:
        """Take items, and signatures of what was timed elsewhere meanwhile."""
        with self._lock:
            self._open.update(items)
        self._items.extend(items)
        self._learn(news)

    def poll(self, timeout_s: float) -> list[Batch]:
        """Batches that are ready, waiting for the first no longer than ``timeout_s``.

        Raises:
            MeasureError: workers die as soon as they start; nothing will ever be ready.
        """
        found: list[Batch] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._batches.get(timeout=timeout_s))
            while True:
                found.append(self._batches.get_nowait())
        if self._stillborn >= _MOST_STILLBORN:
            raise MeasureError(
                f"{self._stillborn} compile workers died before they did anything",
                subject=f"collecting on {self.device_key}",
                remedy="run `python -m fusewise.compiler.collecting.worker` to see why",
            )
        return found

    def usage(self) -> Usage:
        """Where the time went so far."""
        return replace(
            self._usage,
            elapsed=time.monotonic() - self._start,
            lost=self._usage.lost + self._timer.lost,
        )

    def close(self) -> None:
        """End all processes; what was in flight is lost."""
        self._closing.set()
        self._graphs.put(None)
        self._timer.close()
        for thread in self._threads:
            thread.join(timeout=10)

    # The pool, in a thread of its own.

    def _pump(self) -> None:
        try:
            while not self._closing.is_set():
                self._assign()
                connections = {w.child.connection: w for w in self._pool if w.item is not None}
                # A full queue leaves messages in the pipes, and so their senders waiting.
                full = self._graphs.qsize() > _QUEUE_EACH * self._settings.workers
                ready = [] if full else wait(list(connections), timeout=_TICK_S)
                if full:
                    self._closing.wait(0.05)
                for connection in ready:
                    assert isinstance(connection, Connection)
                    self._hear(connections[connection])
                if not full:
                    self._give_up_silent()
        finally:
            for worker in self._pool:
                worker.child.kill()

    def _assign(self) -> None:
        while self._items:
            idle = next((w for w in self._pool if w.item is None), None)
            if idle is None:
                if len(self._pool) == self._settings.workers:
                    return
                idle = self._started()
                self._pool.append(idle)
            item = self._items.popleft()
            news, idle.told = self._news[idle.told :], len(self._news)
            met = self._fingerprints[idle.told_fingerprints :]
            idle.told_fingerprints = len(self._fingerprints)
            idle.item, idle.heard = item, time.monotonic()
            idle.items += 1
            try:
                idle.child.send((item, news, met))
            except OSError:
                self._lose(idle, "died")

    def _started(self) -> _Busy:
        child = Child(_WORKER, _ENVIRONMENT)
        with self._lock:
            counts, told = dict(self._counts), len(self._news)
        with contextlib.suppress(OSError):
            child.send((self._settings, counts))
        return _Busy(child, heard=time.monotonic(), told=told)

    def _hear(self, worker: _Busy) -> None:
        try:
            message = worker.child.receive()
        except (EOFError, OSError):
            self._lose(worker, "died")
            return
        worker.heard = time.monotonic()
        if isinstance(message, PreparedGraph):
            with self._lock:
                self._open[message.item] += 1
            self._graphs.put(message)
            return
        assert isinstance(message, Finished)
        self._stillborn = 0
        self._usage.compiling += message.seconds
        self._fingerprints += message.fingerprints
        worker.item = None
        self._batches.put(Batch(message.item, failures=list(message.failures)))
        self._close_item(message.item)
        if worker.items >= _ITEMS_A_WORKER:
            self._pool.remove(worker)
            worker.child.kill()

    def _give_up_silent(self) -> None:
        # Silence while the pool stands still is no sign of anything.
        if self._timing_now.locked() and self._shares_cores:
            for worker in self._pool:
                worker.heard += _TICK_S
        limit = time.monotonic() - self._settings.patience_s
        for worker in list(self._pool):
            if worker.item is not None and worker.heard < limit:
                self._lose(worker, f"said nothing for {self._settings.patience_s:.0f} s")

    def _lose(self, worker: _Busy, what: str) -> None:
        """Replace a worker; its item is given up, what was sent of it is timed."""
        self._pool.remove(worker)
        status = worker.child.kill()
        self._usage.lost += 1
        if worker.items <= 1:
            self._stillborn += 1
        if worker.item is not None:
            reason = f"{worker.item}: the compile worker {what} (exit status {status})"
            self._batches.put(Batch(worker.item, failures=[reason]))
            self._close_item(worker.item)

    # The device, in a thread of its own.

    def _time(self) -> None:
        while (graph := self._graphs.get()) is not None:
            start = time.monotonic()
            with self._timing_now, self._quiet():
                batch = self._timed(graph)
            if self._closing.is_set():
                return
            self._usage.timing += time.monotonic() - start
            self._learn(batch.signatures)
            self._batches.put(batch)
            self._close_item(graph.item)

    def _timed(self, graph: PreparedGraph) -> Batch:
        try:
            return self._timer.time(graph)
        except Exception as error:
            log.warning("timing %s failed", graph.sample, exc_info=True)
            return Batch(graph.item, failures=[f"{graph.sample}: {first_line(error)}"])

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """The pool stands still where it runs on the cores that are timed."""
        pool = list(self._pool) if self._shares_cores else []
        for worker in pool:
            worker.child.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in pool:
                worker.child.signal(signal.SIGCONT)

    def _close_item(self, item: Item) -> None:
        """One part of an item is through: a graph of it, or the worker's share."""
        with self._lock:
            self._open[item] -= 1
            through = self._open[item] == 0
            if through:
                del self._open[item]
        if through:
            self._batches.put(Batch(item, finished=True))

    def _learn(self, signatures: Sequence[str]) -> None:
        """Take in what was timed, here or elsewhere; workers are told with their next item."""
        with self._lock:
            for signature in signatures:
                self._counts[signature] = self._counts.get(signature, 0) + 1
            self._news += signatures


def _complete(settings: Settings, workers: int) -> Settings:
    """The settings with what was left to the machine filled in."""
    return msgspec.structs.replace(
        settings,
        workers=settings.workers or workers,
        threads=settings.threads or torch.get_num_threads(),
    )
