"""A measuring process that is a copy of this one: it works, and what does not is given up."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.hub import tqdm

from fusewise.compiler.measuring import client, forked, serving
from fusewise.compiler.measuring.client import MeasuringProcess, measuring_process
from fusewise.compiler.measuring.job import GraphJob
from fusewise.schedule.errors import MeasureError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no process is copied here")


@pytest.fixture(autouse=True)
def _nothing_given_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    was = forked._useless.is_set()
    forked._useless.clear()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    client.close_all()
    yield
    client.close_all()
    forked._useless.clear()
    if was:
        forked._useless.set()


def with_threads_at_work() -> None:
    """Have this process's own OpenMP threads started, which a copy does not have."""
    a = torch.randn(512, 512)
    torch.softmax(a @ a, -1)


def tasks(process: int | str = "self") -> int:
    return len(list(Path(f"/proc/{process}/task").iterdir()))


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="torch runs on one thread")
def test_threads_that_a_copy_would_count_and_not_have_are_ended() -> None:
    """libgomp lets threads sleep where it counts more of them than cores."""
    with_threads_at_work()
    before = tasks()
    without = before - (torch.get_num_threads() - 1)
    forked._let_threads_go()
    deadline = time.monotonic() + 30.0
    while tasks() > without and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tasks() <= without
    with_threads_at_work()
    assert tasks() == before


def test_a_copy_has_several_threads_and_one_core_for_each() -> None:
    with_threads_at_work()
    process = measuring_process("cpu")
    assert process.unproven
    assert process.ready(120.0)
    assert process.alive and not process.unproven
    assert isinstance(process._process, forked.Copy)
    # The one that was copied, the one that serves, and those that it works with.
    assert tasks(process._process.pid) >= 1 + torch.get_num_threads()
    assert measuring_process("cpu") is process


def test_a_copy_ends_with_what_it_was_told_by_and_leaves_no_file_open() -> None:
    reading, writing = os.pipe()
    process = measuring_process("cpu")
    os.close(writing)
    # Were the other end open in the copy, this would wait for it.
    assert os.read(reading, 1) == b""
    os.close(reading)
    assert process.ready(120.0)
    process._connection.close()
    assert process._process.wait() == 0


def test_a_copy_does_not_wait_for_the_lock_of_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor makes one for each program that it loads."""

    def serves(connection: object) -> int:
        tqdm(range(1), disable=True)
        return 0

    monkeypatch.setattr(serving, "serve", serves)
    ours, theirs = socket.socketpair()
    with ours, theirs, tqdm.get_lock():
        copy = forked.copy_to_measure(theirs.fileno())
        deadline = time.monotonic() + 30.0
        while copy.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        copy.kill()
    assert copy.wait() == 0


def test_after_a_copy_that_hung_another_kind_of_process_is_started() -> None:
    hung = measuring_process("cpu")
    assert isinstance(hung._process, forked.Copy)
    os.kill(hung._process.pid, signal.SIGSTOP)
    assert not hung.ready(0.2)
    hung.kill()
    assert not hung.alive
    started = measuring_process("cpu")
    assert not isinstance(started._process, forked.Copy)
    started.kill()


def test_one_that_died_later_is_copied_again() -> None:
    process = measuring_process("cpu")
    assert process.ready(120.0)
    os.kill(process._process.pid, signal.SIGKILL)
    process._process.wait()
    with pytest.raises(MeasureError, match="died with exit status -9"):
        process.let_go() if process.graph_id else process.prepare(_job(4))
    again = measuring_process("cpu")
    assert isinstance(again._process, forked.Copy)
    assert again.ready(120.0)


def _job(numbers: int) -> GraphJob:
    return GraphJob("g", bytes(numbers), (), (), (), (), "cpu", 1, random=False, saved_from=None)


def test_nobody_waits_for_a_process_to_read_what_it_is_told() -> None:
    process = MeasuringProcess("cpu", copied=True)
    os.kill(process._process.pid, signal.SIGSTOP)
    # Far more than fits into a socket.
    process.prepare(_job(64 << 20))
    assert not process.ready(0.0)
    process.kill()
