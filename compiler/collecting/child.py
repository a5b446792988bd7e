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
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


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
        """Send a signal to the child and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def kill(self) -> int:
        """End the child and all that it started; its exit status."""
        self.signal(signal.SIGKILL)
        status = self.process.wait()
        self.connection.close()
        return status


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends, even by SIGKILL.

    Linux only; elsewhere a child ends when it finds its connection closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
