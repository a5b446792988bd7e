"""The measuring process: answers what its parent asks for, one request after the other.

Started by :mod:`fusewise.compiler.measuring.client`, with the file descriptor of a socket to its
parent. A crash in here, however hard, costs the parent one measurement.
"""

from __future__ import annotations

import gc
import io
import logging
import pickle
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from fusewise.compiler.inductor.program import get_ready
from fusewise.compiler.inductor.toolchain import trust_probes
from fusewise.compiler.measuring.device import is_lost
from fusewise.compiler.measuring.worker import Worker

log = logging.getLogger(__name__)

#: Seconds without a request after which the process ends.
_IDLE_S = 600.0
#: Exit status of a process whose device can do nothing any more.
_LOST = 3


class _Requests:
    """What the parent asks for, in turn."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ahead: list[tuple[str, tuple[Any, ...]]] = []

    def take(self) -> tuple[str, tuple[Any, ...]] | None:
        """The next one; None where the parent closed its end, or has asked nothing for long."""
        try:
            if not self._ahead and self._connection.poll(_IDLE_S):
                self._read()
        except (EOFError, ConnectionResetError):
            # The parent ended, maybe without reading the last answer.
            return None
        return self._ahead.pop() if self._ahead else None

    def is_let_go(self) -> bool:
        """Whether the next one is there by now, and is to let go of a graph."""
        if not self._ahead and self._connection.poll(0):
            # That the parent ended is met when the next one is taken.
            with suppress(EOFError, ConnectionResetError):
                self._read()
        return bool(self._ahead) and self._ahead[0][0] == "let_go"

    def _read(self) -> None:
        self._ahead.append(pickle.loads(self._connection.recv_bytes()))


def serve(connection: Connection, worker: Worker | None = None) -> int:
    """Answer requests until the parent closes its end, or has asked nothing for long.

    An idle process would keep a device context; the parent starts another when it needs one. An
    answer says whether the request succeeded, what came of it, whether this was the last one, and
    how long the device was this process's alone.

    Returns:
        Exit status of the process.
    """
    worker = worker or Worker()
    # The parent still lowers the graph.
    get_ready()
    # What is loaded by now stays; collecting garbage need not go over it each time.
    gc.freeze()
    gc.enable()
    requests = _Requests(connection)
    while (request := requests.take()) is not None:
        name, arguments = request
        lost = False
        try:
            answer: tuple[bool, Any] = (True, None)
            # A graph that nobody waited for would take the device from the program that runs now.
            if name != "prepare" or not requests.is_let_go():
                answer = (True, getattr(worker, name)(*arguments))
        except Exception as error:
            log.debug("request %s failed", name, exc_info=True)
            lost = is_lost(worker.device)
            told = "; its process ends" if lost else ""
            answer = (False, f"{type(error).__name__}: {error}{told}")
        buffer = io.BytesIO()
        pickle.dump((*answer, lost, worker.held_s), buffer)
        worker.held_s = 0.0
        connection.send_bytes(buffer.getvalue())
        if lost:
            return _LOST
    return 0


def main(descriptor: int) -> int:
    """Serve whoever is at the other end of a socket; exit status of the process."""
    trust_probes()
    return serve(Connection(descriptor))
