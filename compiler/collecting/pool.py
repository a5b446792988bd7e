"""The compile workers of a station: started as there are items, replaced when they die or hang.

A thread attends to each worker and to nothing else, so that one that hangs, even in the middle of
a message, holds up only itself until it is killed. Times nothing.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fusewise.compiler.collecting.child import Child, Guard
from fusewise.compiler.collecting.work import (
    Finished,
    Item,
    PreparedGraph,
    Ready,
    Settings,
)
from fusewise.schedule.errors import FusewiseError, MeasureError, first_line

log = logging.getLogger(__name__)

_WORKER = "fusewise.compiler.collecting.worker"
#: A worker compiles one thing at a time; the pool is what runs side by side.
_ENVIRONMENT = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
#: A worker is replaced after so many items: tracers and compilers leak.
_ITEMS_A_WORKER = 150
#: Workers that may fail to start one after the other.
_MOST_STILLBORN = 3
#: Seconds to start in, at least; a hundred that start at once import from one disk.
_START_S = 180.0
#: Seconds for the threads to end once their workers are killed.
_JOIN_S = 4.0
_TICK_S = 0.2


class Listener(Protocol):
    """Who is told what workers do, each time in the thread of that worker."""

    def prepared(self, graph: PreparedGraph) -> None:
        """A graph waits to be timed; may take its time, for which the worker waits."""
        ...

    def done(self, item: Item, failures: Sequence[str]) -> None:
        """A worker is through with an item, or was lost over it."""
        ...

    def failed(self, error: Exception) -> None:
        """No more can be expected."""
        ...


@dataclass(eq=False)
class _Worker:
    """A worker and what it is at."""

    child: Child
    #: When it was last heard of; None where nothing is expected of it.
    heard: float | None
    patience_s: float
    #: When its item began; None between items. Moves by the time that it had to wait.
    since: float | None = None
    #: Why it is killed.
    verdict: str = ""
    items: int = 0
    #: How much of the news it has been told.
    told: int = 0
    met: int = 0


class _ClosedError(Exception):
    """The pool is being closed."""


class Pool:
    """Workers of one device."""

    def __init__(
        self,
        settings: Settings,
        counts: Mapping[str, int],
        listener: Listener,
        *,
        subject: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start no worker yet.

        Args:
            settings: with the number of workers.
            counts: how often kernels were timed, by signature.
            listener: is told what comes of items.
            subject: what to call it in errors.
            environment: variables for the workers, beside those of this process.
        """
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._settings = settings
        self._listener = listener
        self._subject = subject
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        #: Guards all below; told when the pool goes on or is closed.
        self._state = threading.Condition()
        self._counts = dict(counts)
        self._news: list[str] = []
        self._fingerprints: list[str] = []
        self._workers: list[_Worker] = []
        self._stands_still = False
        self._closing = False
        self._stillborn = 0
        self._seconds = 0.0
        #: Workers that died or were killed.
        self.lost = 0
        self._guard = Guard()
        targets = [*[self._attend_to_one] * settings.workers, self._watch]
        self._threads = [threading.Thread(target=t, name="pool", daemon=True) for t in targets]
        for thread in self._threads:
            thread.start()

    def waiting(self) -> int:
        """Items that no worker has begun."""
        return self._items.qsize()

    def add(self, items: Sequence[Item]) -> None:
        """Have items worked on."""
        for item in items:
            self._items.put(item)

    def learn(self, signatures: Sequence[str]) -> None:
        """Take in what was timed; workers are told with their next item."""
        with self._state:
            for signature in signatures:
                self._counts[signature] = self._counts.get(signature, 0) + 1
            self._news += signatures

    def seconds(self) -> float:
        """Seconds that workers were at items, all together."""
        now = time.monotonic()
        with self._state:
            return self._seconds + sum(now - w.since for w in self._workers if w.since is not None)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """No worker runs meanwhile, and none is started."""
        start = time.monotonic()
        with self._state:
            self._stands_still = True
            self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with self._state:
                self._stands_still = False
                self._signal(signal.SIGCONT)
                for worker in self._workers:
                    _excuse(worker, start)
                self._state.notify_all()

    def close(self) -> None:
        """End all workers; what they were at is lost."""
        with self._state:
            self._closing = True
            self._signal(signal.SIGKILL)
            self._state.notify_all()
        for _ in self._threads:
            self._items.put(None)
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._guard.close()

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            worker.child.signal(number)

    # One thread for each worker.

    def _attend_to_one(self) -> None:
        worker: _Worker | None = None
        try:
            while (item := self._items.get()) is not None and not self._closing:
                while worker is None:
                    worker = self._started()
                if not self._work(worker, item) or worker.items >= _ITEMS_A_WORKER:
                    self._end(worker)
                    worker = None
        except _ClosedError:
            pass
        except Exception as error:
            log.debug("the pool failed", exc_info=True)
            self._listener.failed(error)
        finally:
            if worker is not None:
                self._end(worker)

    def _started(self) -> _Worker | None:
        """A new worker, None where it died at once.

        Raises:
            MeasureError: several have died at once.
            FusewiseError: what the worker says why it cannot work.
        """
        with self._state:
            self._state.wait_for(lambda: self._closing or not self._stands_still)
            if self._closing:
                raise _ClosedError
            patience = max(_START_S, self._settings.patience_s)
            worker = _Worker(Child(_WORKER, self._environment), time.monotonic(), patience)
            self._guard.watch(worker.child.process.pid)
            self._workers.append(worker)
            counts, worker.told = dict(self._counts), len(self._news)
        try:
            worker.child.send((self._settings, counts))
            answer = worker.child.receive()
        except (EOFError, OSError) as error:
            status = self._end(worker)
            with self._state:
                if self._closing:
                    raise _ClosedError from error
                self.lost += 1
                self._stillborn += 1
                if self._stillborn < _MOST_STILLBORN:
                    return None
            raise MeasureError(
                f"{self._stillborn} compile workers died as they started, the last one with "
                f"exit status {status}",
                subject=self._subject,
                remedy=f"run `python -m {_WORKER} 0 </dev/null` to see why",
            ) from error
        if isinstance(answer, FusewiseError):
            self._end(worker)
            raise answer
        assert isinstance(answer, Ready)
        with self._state:
            self._stillborn = 0
            worker.heard = None
        return worker

    def _work(self, worker: _Worker, item: Item) -> bool:
        """Have a worker do an item; whether it can do another."""
        with self._state:
            news, worker.told = self._news[worker.told :], len(self._news)
            met, worker.met = self._fingerprints[worker.met :], len(self._fingerprints)
            worker.items += 1
            worker.patience_s = self._settings.patience_s
            worker.since = worker.heard = time.monotonic()
        try:
            worker.child.send((item, news, met))
            while not isinstance(message := worker.child.receive(), Finished):
                self._show(worker, message)
        except Exception as error:
            log.debug("a worker is lost", exc_info=True)
            what = "died" if isinstance(error, EOFError | OSError) else first_line(error)
            status = self._end(worker)
            with self._state:
                self.lost += 1
            reason = f"{item}: the compile worker {worker.verdict or what} (exit status {status})"
            self._listener.done(item, [reason])
            return False
        with self._state:
            self._fingerprints += message.fingerprints
            self._rest(worker)
        self._listener.done(item, message.failures)
        return True

    def _show(self, worker: _Worker, graph: PreparedGraph) -> None:
        """Pass a graph on; the worker rests for the time that this takes."""
        with self._state:
            self._rest(worker)
        self._listener.prepared(graph)
        with self._state:
            worker.since = worker.heard = time.monotonic()

    def _end(self, worker: _Worker) -> int | None:
        """Kill a worker; its exit status."""
        status = worker.child.kill()
        self._guard.forget(worker.child.process.pid)
        with self._state:
            self._rest(worker)
            if worker in self._workers:
                self._workers.remove(worker)
        return status

    def _rest(self, worker: _Worker) -> None:
        if worker.since is not None:
            self._seconds += time.monotonic() - worker.since
        worker.since = worker.heard = None

    # One thread for all.

    def _watch(self) -> None:
        """Kill workers that say nothing; their threads find them gone."""
        while not self._closing:
            time.sleep(_TICK_S)
            with self._state:
                # Silence of what stands still is no sign of anything.
                for worker in [] if self._stands_still else self._workers:
                    limit = time.monotonic() - worker.patience_s
                    if worker.heard is not None and worker.heard < limit:
                        worker.verdict = f"said nothing for {worker.patience_s:.0f} s"
                        worker.child.signal(signal.SIGKILL)


def _excuse(worker: _Worker, start: float) -> None:
    """The worker was made to wait from ``start`` on, or from when it went on with its item."""
    now = time.monotonic()
    if worker.heard is not None:
        worker.heard += now - max(start, worker.heard)
    if worker.since is not None:
        worker.since += now - max(start, worker.since)
