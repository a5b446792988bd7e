"""Child processes of a collection: started with a connection, ended with all that they started.

A child lives in a session of its own, so that it can be stopped, continued and killed together
with the compilers that it runs, and it dies with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
#: Seconds until a process that was killed is given up: it waits for a disk that does not answer.
_DEATH_S = 2.0
#: A program without imports of ours, so that it takes little memory.
_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Child:
    """A process running ``python -m module FD``, FD being its end of a connection."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # The child finds fusewise, and the caller's modules, where this process does.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                **environment,
            },
            start_new_session=True,
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    def send(self, message: Any) -> None:
        """Send anything that pickles. Raises OSError where the child is gone."""
        self.connection.send_bytes(pickle.dumps(message))

    def receive(self) -> Any:
        """The next message. Raises EOFError or OSError where the child is gone."""
        return pickle.loads(self.connection.recv_bytes())

    def signal(self, number: int) -> None:
        """Send a signal to the child and to all that it started; any thread may."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def kill(self) -> int | None:
        """End the child and all that it started; its exit status, None where it will not end.

        For the thread that sends and receives.
        """
        self.signal(signal.SIGKILL)
        self.connection.close()
        try:
            return self.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return None


class Guard:
    """A process that outlives this one, if only to kill the groups that it has left behind.

    A child dies with its parent, but not the compilers that it runs, which may stand still.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def watch(self, group: int) -> None:
        """Kill the group when this process is gone."""
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """The group is gone."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End it; what it still watches is killed."""
        assert self._process.stdin is not None
        with self._lock, contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DEATH_S)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # Without a guard there is still the children's own end.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, even by SIGKILL.

    Linux only; elsewhere a child ends when it finds its connection closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
