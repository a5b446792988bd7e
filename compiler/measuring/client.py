"""The caller's end of the measuring process: starts it early, one a device, and survives it.

Requests are strictly one after the other. A process that died, hangs or answers nonsense is
killed and forgotten; the next measurement starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fusewise.compiler.inductor.code_keys import code_keys
from fusewise.compiler.measuring.block_timing import BlockSizesOf
from fusewise.compiler.measuring.forked import (
    Copy,
    can_copy,
    copy_to_measure,
    give_up_copies,
)
from fusewise.compiler.measuring.imported import kept_folder
from fusewise.compiler.measuring.job import Budget, GraphJob, GraphResult, ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.compiler.measuring.quiet import pinned
from fusewise.schedule.errors import MeasureError

_START = "fusewise.compiler.measuring.start"
#: Seconds for which nothing is read or written in the middle of a message.
_STUCK_S = 120


class MeasuringProcess:
    """One process that measures on one device."""

    def __init__(
        self,
        device: str,
        environment: Mapping[str, str] | None = None,
        module: str = "fusewise.compiler.measuring.serving",
        *,
        copied: bool = False,
    ) -> None:
        """Start it.

        Args:
            device: that it measures on.
            environment: variables for the process, beside those of this one.
            module: whose ``main`` it calls with the number of its socket, which gives its exit
                status; another one prepares the process and does the same.
            copied: whether to make it by copying this process, if that can be.
        """
        self.device = device
        #: Seconds that the device was its alone.
        self.held_s = 0.0
        #: Whether it has started, and did something that it was asked for.
        self.answered = False
        #: The graph that is prepared, or being so.
        self.graph_id: str | None = None
        self._trusting = False
        self._knows_keys = False
        ours, theirs = socket.socketpair()
        copy = _copied(theirs.fileno()) if copied else None
        #: Whether it is a copy of this process that has not shown yet that it can do anything.
        self.unproven = copy is not None
        self._process: subprocess.Popen[bytes] | Copy = copy or _started(
            device, environment or {}, module, theirs.fileno()
        )
        theirs.close()
        # A process that hangs may do so with half a message read or written.
        for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", _STUCK_S, 0))
        self._connection = Connection(ours.detach())
        self._pending = 0
        # What is written may be more than fits on the way, and nobody reads before it has started.
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()
        if self.unproven:
            self._send("wake", torch.get_num_threads())

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def trust(self, variables: Mapping[str, str]) -> None:
        """Have the process take over what this one found out about the C++ compiler.

        Raises:
            MeasureError: the process is gone.
        """
        if not self._trusting:
            self._send("trust", dict(variables))
            self._trusting = True

    def prepare(self, job: GraphJob) -> None:
        """Have the inputs and the reference of a graph made, while the caller goes on.

        Raises:
            MeasureError: the process is gone.
        """
        if self.device != "cpu" and not self._knows_keys:
            self._send("take_keys", code_keys())
            self._knows_keys = True
        self._send("prepare", job)
        self.graph_id = job.graph_id

    def measure(
        self, programs: Sequence[ProgramJob], budget: Budget, timeout_s: float
    ) -> GraphResult:
        """Measure the candidates of the graph that was prepared last.

        Raises:
            MeasureError: the process died, did not answer within ``timeout_s``, or failed.
        """
        self._send("measure", list(programs), budget)
        if not budget.more:
            self.graph_id = None
        result: GraphResult = self._answers(timeout_s)
        return result

    def ready(self, timeout_s: float) -> bool:
        """Whether all that was asked for is done within ``timeout_s``; else it goes on with it.

        Raises:
            MeasureError: the process died, or failed at something.
        """
        until = time.monotonic() + timeout_s
        while self._pending:
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                return False
            self._answer(timeout_s)
        return True

    def let_go(self) -> None:
        """Have the graph that was kept for more programs forgotten: its memory is the caller's.

        Raises:
            MeasureError: the process is gone.
        """
        if self.graph_id is not None:
            self.graph_id = None
            self._send("let_go")

    def time_kernels(
        self,
        program: ProgramJob,
        effort: Effort,
        timeout_s: float,
        skipped: frozenset[tuple[str, int]] = frozenset(),
        blocks: BlockSizesOf | None = None,
        flags: frozenset[str] = frozenset(),
    ) -> list[CallTimes]:
        """Time the kernels of a program of the graph that was prepared last, in launch order.

        Args:
            program: to run.
            effort: how well to time each call.
            timeout_s: seconds for all of it.
            skipped: calls to leave untimed, by kernel name ("" for extern calls) and occurrence.
            blocks: compiled block sizes that kernels are timed with besides, by kernel name.
            flags: names of variables that C++ kernels are timed on drawn flags in the place of.

        Raises:
            MeasureError: as for :meth:`measure`.
        """
        self._send("time_kernels", program, effort, skipped, blocks, flags)
        result: list[CallTimes] = self._answers(timeout_s)
        return result

    def slowness(self, threads: int, timeout_s: float) -> float:
        """How much longer standard arithmetic takes on so many threads than at full pace.

        Raises:
            MeasureError: as for :meth:`measure`.
        """
        self._send("slowness", threads)
        result: float = self._answers(timeout_s)
        return result

    def _send(self, name: str, *arguments: Any) -> None:
        if not self.alive:
            self.kill()
            raise self._gone()
        self._outgoing.put(pickle.dumps((name, arguments)))
        self._pending += 1

    def _write(self) -> None:
        """Write what is to be sent, one after the other, until that is not possible any more."""
        # Who waits for an answer finds out.
        with contextlib.suppress(OSError, ValueError):
            while data := self._outgoing.get():
                self._connection.send_bytes(data)

    def _answers(self, timeout_s: float) -> Any:
        """The answer to the last request, those before it having succeeded."""
        answer: Any = None
        while self._pending:
            if not self._connection.poll(timeout_s):
                self.kill()
                raise MeasureError(
                    f"no answer within {timeout_s:.0f} s",
                    subject=f"measuring process of {self.device}",
                    remedy="raise fusewise.budget_s if the graph is that slow",
                )
            answer = self._answer(timeout_s)
        return answer

    def _answer(self, timeout_s: float) -> Any:
        """The answer that is there; where the request failed, those after it are dropped."""
        try:
            succeeded, answer, last, held_s = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            self.kill()
            raise self._gone() from error
        self._pending -= 1
        self.unproven = False
        self.answered = True
        self.held_s += held_s
        if not succeeded:
            if last:
                self.kill()
            while not last and self._pending and self._connection.poll(timeout_s):
                self._connection.recv_bytes()
                self._pending -= 1
            raise MeasureError(
                str(answer),
                subject=f"measuring process of {self.device}",
                remedy="mode predict chooses without measuring",
            )
        return answer

    def _gone(self) -> MeasureError:
        code = self._process.wait()
        return MeasureError(
            f"died with exit status {code}",
            subject=f"measuring process of {self.device}",
            remedy="the next measurement starts a new one",
        )

    def stop(self) -> None:
        """Have the process killed, from any thread: who waits for an answer finds it gone."""
        self._process.kill()

    def kill(self) -> None:
        """End the process now. For the thread that measures."""
        if self.unproven:
            give_up_copies()
        self._outgoing.put(b"")
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._connection.close()


def _copied(descriptor: int) -> Copy | None:
    """A copy of this process that measures; None where there can be none."""
    if not can_copy():
        return None
    try:
        return copy_to_measure(descriptor)
    except OSError:
        give_up_copies()
        return None


def _started(
    device: str, environment: Mapping[str, str], module: str, descriptor: int
) -> subprocess.Popen[bytes]:
    """A process of its own that runs a module, with its end of a socket."""
    # The child finds fusewise, and the caller's modules, where this process does.
    found = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    # Nor does it need processes that wait for kernels to compile before there are any.
    found["TORCH_WARM_POOL"] = "0"
    if device == "cpu":
        found |= pinned(torch.get_num_threads(), {**os.environ, **environment})
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _START, module, str(descriptor), kept_folder()],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **found, **environment},
    )


_lock = threading.Lock()
_processes: dict[str, tuple[int, MeasuringProcess]] = {}


def measuring_process(device: str) -> MeasuringProcess:
    """The process that measures on ``device``; started if there is none alive.

    A fork of the caller does not inherit it: two parents on one pipe would read each other's
    answers.
    """
    with _lock:
        owner, process = _processes.get(device, (0, None))
        if process is None or owner != os.getpid() or not process.alive:
            process = MeasuringProcess(device, copied=device == "cpu")
            _processes[device] = (os.getpid(), process)
        return process


def running_process(device: str) -> MeasuringProcess | None:
    """The process that measures on ``device``; None where there is none alive."""
    with _lock:
        owner, process = _processes.get(device, (0, None))
        return process if process is not None and owner == os.getpid() and process.alive else None


@atexit.register
def close_all() -> None:
    """End all measuring processes of this one."""
    with _lock:
        for owner, process in _processes.values():
            if owner == os.getpid():
                process.kill()
        _processes.clear()
