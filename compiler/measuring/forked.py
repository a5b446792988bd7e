"""A measuring process for the CPU made by copying this one, which is there at once.

Starting Python and importing torch and Inductor anew takes two to three seconds of processor time,
as long as a small program takes to compile. A copy serves in a thread of its own, which has none of
what holds in this one: no threads of OpenMP, no modes of torch's, no settings of a compile under
way. It touches no GPU. Whether it can be relied on shows in its first answer.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

from fusewise.compiler.inductor.bar_lock import own_bar_lock

#: A process that is larger is not copied: writing down where its memory is takes too long.
_MOST_BYTES = 16 << 30
#: Streams that a copy keeps.
_STANDARD = 3
_FAILED = 1
#: OpenMP's kind of pause after which everything else is as before.
_SOFT_PAUSE = 1

#: Set where a copy proved to be of no use in this process.
_useless = threading.Event()


class Copy:
    """A copy of this process, as far as a started one is used."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        self._wait(0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """End it now."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # Somebody else has asked for it.
                pid, status = self.pid, _FAILED << 8
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def can_copy() -> bool:
    """Whether this process may be copied to measure on the CPU."""
    if sys.platform != "linux" or _useless.is_set() or torch.cuda.is_initialized():
        return False
    return psutil.Process().memory_info().rss < _MOST_BYTES


def give_up_copies() -> None:
    """Have no more processes made so: one hung, or broke before it had answered anything."""
    _useless.set()


def copy_to_measure(descriptor: int) -> Copy:
    """A copy of this process that answers requests on a socket.

    Args:
        descriptor: the copy's end, which is still open here.

    Raises:
        OSError: the process cannot be copied.
    """
    # What takes long to import is there before, once for all copies.
    from fusewise.compiler.measuring.serving import serve

    _let_threads_go()
    with warnings.catch_warnings():
        # Python warns that other threads are not copied. None of them is waited for.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return Copy(pid)
    code = _FAILED
    try:
        own_bar_lock()
        # An interrupt from the terminal is meant for the caller.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _let_go_of_files(descriptor)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(serve(Connection(descriptor))))
        thread.start()
        thread.join()
        code = codes[0] if codes else _FAILED
    finally:
        # Nothing that is to be done at exit, or is still in a buffer, is this one's.
        os._exit(code)


def _let_threads_go() -> None:
    """End the OpenMP threads of this one, which come back when there is work for them.

    A copy would count them and not have them. Where there are more than cores by that count, they
    sleep while they wait instead of spinning, and each loop that is shared takes longer by the time
    to wake them: a program of many kernels took twice as long as where it is used.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(_SOFT_PAUSE)


def _let_go_of_files(kept: int) -> None:
    """Close what is the other process's: who waits for the end of a pipe must not wait for this."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.closerange(_STANDARD, kept)
    last = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    os.closerange(kept + 1, last + 1)
