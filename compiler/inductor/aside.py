"""Work done aside, in copies of this process that are forked for it and end with it.

Lowering and generating code is Python that holds the interpreter's lock; a copy has a lock of its
own and all that was lowered so far. A copy touches no device and no other process. Whatever goes
wrong in one (it dies, hangs, needs the device) costs its time: the caller does the work itself.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import pickle
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import torch
from torch._inductor import config as inductor_config

from fusewise.compiler.inductor.bar_lock import own_bar_lock
from fusewise.compiler.inductor.deviceless import answer_without_device, gpu_in_use
from fusewise.schedule.errors import FusewiseError

log = logging.getLogger(__name__)

#: Cores from which on it pays: one is for this process, one for the process that measures.
_LEAST_CORES = 4
#: A copy is given up after this long, whatever its work.
_MOST_S = 30.0
#: Inductor's settings in a copy: the processes of its pool are the other one's.
COPY_SETTINGS: dict[str, Any] = {"compile_threads": 1}
#: What errors say where a copy would need the device.
_DEVICE_ERRORS = ("forked subprocess", "CUDA error", "CUDA driver", "NVIDIA driver")
_LENGTH = 8
_CHUNK = 1 << 20

#: Set where copies proved to be of no use in this process.
_useless = threading.Event()


def can_work_aside() -> bool:
    """Whether this process may be copied, and has cores to spare for copies."""
    if sys.platform != "linux" or _useless.is_set():
        return False
    return len(os.sched_getaffinity(0)) >= _LEAST_CORES


def has_cores(copies: int) -> bool:
    """Whether so many copies can be at work while this process is, and compilers for it."""
    return len(os.sched_getaffinity(0)) >= copies + _LEAST_CORES


class Copies:
    """Copies of this process at work on some jobs until it is left; to be used with ``with``."""

    def __init__(
        self, jobs: Sequence[Callable[[], Any]], then: Callable[[Any], Any] | None = None
    ) -> None:
        """Copy this process, as often as there are jobs, or cores but one.

        Args:
            jobs: each gives something that can be pickled. What it changes is not seen here.
            then: goes on with what a job gave, in the same copy, once that was sent. Places of
                what it gives follow those of all jobs.
        """
        self._running: dict[int, tuple[int, bytearray]] = {}
        self._answered: dict[int, Any] = {}
        #: Whether one of them needed the device.
        self.in_vain = False
        count = min(len(jobs), len(os.sched_getaffinity(0)) - 1)
        gpu = gpu_in_use()
        try:
            for at in range(count):
                share = [(i, jobs[i]) for i in range(at, len(jobs), count)]
                pid, reading = _start(share, gpu, then, len(jobs))
                self._running[reading] = pid, bytearray()
        except OSError:
            log.debug("this process cannot be copied", exc_info=True)
            _useless.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._running)
        self._running.clear()

    def wait(self, wanted: Iterable[int], timeout_s: float | None = None) -> Mapping[int, Any]:
        """What those of the jobs that are ``wanted`` gave, or the error that they raised.

        Args:
            wanted: jobs by their places. The answers of others may be among what is returned.
            timeout_s: seconds after which no job is waited for any more.

        Returns:
            Answers by place; none of jobs that could not be done aside.
        """
        patience = _MOST_S if timeout_s is None else min(_MOST_S, timeout_s)
        until = time.monotonic() + patience
        left = set(wanted) - set(self._answered)
        try:
            for index, succeeded, value in _answers(self._running, left, until):
                if succeeded or value is not None:
                    self._answered[index] = value
                else:
                    self.in_vain = True
            if patience == _MOST_S and time.monotonic() >= until:
                # One that hangs does so again.
                _useless.set()
        except OSError:
            log.debug("copies cannot be heard", exc_info=True)
            _useless.set()
        return self._answered


@contextmanager
def few_garbage() -> Iterator[None]:
    """What was there before is not gone over when garbage is collected: it takes half a second.

    In a copy of this process it would have all of it copied, too.
    """
    frozen = gc.get_freeze_count() == 0
    if frozen:
        gc.freeze()
    try:
        yield
    finally:
        if frozen:
            gc.unfreeze()


def _start(
    jobs: Sequence[tuple[int, Callable[[], Any]]],
    gpu: int | None,
    then: Callable[[Any], Any] | None,
    count: int,
) -> tuple[int, int]:
    """Copy this process; its number, and the end of a pipe that its answers come out of.

    ``count``: of the jobs of all copies.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that other threads are not copied. No job waits for one.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        own_bar_lock()
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        # The threads of OpenMP were not copied.
        torch.set_num_threads(1)
        if gpu is not None:
            answer_without_device(gpu)
        with inductor_config.patch(COPY_SETTINGS):
            given = [(index, _send(writing, index, job)) for index, job in jobs]
            if then is not None:
                for index, found in given:
                    if found is not None:
                        _send(writing, count + index, functools.partial(then, found))
        status = 0
    finally:
        # Nothing that is to be done at exit, or is still in a buffer, is this one's.
        os._exit(status)


def _send(writing: int, index: int, job: Callable[[], Any]) -> Any:
    """What a job gives, which is sent; None where it failed."""
    try:
        answer: tuple[int, bool, Any] = (index, True, job())
    except FusewiseError as error:
        answer = (index, False, error)
    except Exception as error:
        # It is raised where the job was wanted. What needs the device says so: that is no error of
        # the job.
        needs_device = any(text in str(error) for text in _DEVICE_ERRORS)
        log.debug("work aside failed", exc_info=True)
        told = RuntimeError(f"{type(error).__name__}: {error}")
        answer = (index, False, None if needs_device else told)
    data = pickle.dumps(answer)
    view = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
    while view:
        view = view[os.write(writing, view) :]
    return answer[2] if answer[1] else None


def _answers(
    copies: Mapping[int, tuple[int, bytearray]], left: set[int], until: float
) -> Iterator[tuple[int, bool, Any]]:
    """Answers as they come, until those to the jobs ``left`` have come or time is up."""
    with selectors.DefaultSelector() as selector:
        for reading in copies:
            selector.register(reading, selectors.EVENT_READ)
        while left and selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                log.debug("%d copies are given up", len(selector.get_map()))
                return
            for key, _ in ready:
                buffer = copies[key.fd][1]
                data = os.read(key.fd, _CHUNK)
                if not data:
                    selector.unregister(key.fd)
                buffer += data
                for answer in _complete(buffer):
                    left.discard(answer[0])
                    yield answer


def _complete(buffer: bytearray) -> Iterator[tuple[int, bool, Any]]:
    """The answers that are whole, taken out of the buffer."""
    while len(buffer) >= _LENGTH:
        end = _LENGTH + int.from_bytes(buffer[:_LENGTH], "little")
        if len(buffer) < end:
            return
        answer: tuple[int, bool, Any] = pickle.loads(buffer[_LENGTH:end])
        del buffer[:end]
        yield answer


def _end(copies: dict[int, tuple[int, bytearray]]) -> None:
    for reading, (pid, _) in copies.items():
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
