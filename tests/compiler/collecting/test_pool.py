"""The pool with workers that follow a script: death, silence, standing still, the end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from fusewise.compiler.collecting import pool as pool_module
from fusewise.compiler.collecting.pool import Pool
from fusewise.compiler.collecting.work import Item, PreparedGraph, Settings
from fusewise.schedule.errors import MeasureError, ModelError


class Heard:
    """Notes what a pool tells."""

    def __init__(self) -> None:
        self.graphs: list[PreparedGraph] = []
        self.items: list[tuple[str, list[str]]] = []
        self.errors: list[Exception] = []
        #: What a graph has to wait for.
        self.gate = threading.Event()
        self.gate.set()

    def prepared(self, graph: PreparedGraph) -> None:
        self.gate.wait(20)
        self.graphs.append(graph)

    def done(self, item: Item, failures: Sequence[str]) -> None:
        self.items.append((item.name, list(failures)))

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


Start = Callable[..., tuple[Pool, Heard]]


@pytest.fixture
def start(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts pools of scripted workers, which are closed at the end of the test."""
    monkeypatch.setattr(pool_module, "_WORKER", scripts.module)
    pools = []

    def make(*given: Any, workers: int = 1, patience_s: float = 20.0) -> tuple[Pool, Heard]:
        scripts.give(*given)
        heard = Heard()
        settings = Settings(workers=workers, patience_s=patience_s)
        pools.append(Pool(settings, {}, heard, subject="collecting on x"))
        return pools[-1], heard

    yield make
    for pool in pools:
        pool.close()
    assert scripts.running() == []


def test_worker_does_items_one_after_the_other(start: Start, acting: Any, scripts: Any) -> None:
    a, b = acting.item("a"), acting.item("b")
    do_a = [acting.RECEIVE, acting.prepared(a), acting.finished(a, "one thing")]
    pool, heard = start(
        [acting.RECEIVE, acting.READY, *do_a, acting.RECEIVE, acting.finished(b), acting.FOREVER]
    )
    assert scripts.started() == 0
    pool.add([a, b])
    acting.until(lambda: len(heard.items) == 2)
    assert heard.items == [("a", ["one thing"]), ("b", [])]
    assert [graph.item for graph in heard.graphs] == [a]
    assert (pool.lost, pool.waiting(), heard.errors) == (0, 0, [])


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (("exit", 5), "the compile worker died (exit status 5)"),
        (("send", b"garbage"), "the compile worker UnpicklingError"),
        (("sleep", 600), "said nothing for 1 s (exit status -9)"),
        (("half", None), "said nothing for 1 s (exit status -9)"),
        (("stop", None), "said nothing for 1 s (exit status -9)"),
    ],
    ids=["died", "garbage", "silent", "half a message", "stopped"],
)
def test_worker_that_is_lost_costs_its_item(
    start: Start, acting: Any, scripts: Any, ending: tuple[str, Any], reason: str
) -> None:
    a, b = acting.item("a"), acting.item("b")
    pool, heard = start(
        [acting.RECEIVE, acting.READY, acting.RECEIVE, ending, acting.FOREVER],
        [acting.RECEIVE, acting.READY, acting.RECEIVE, acting.finished(b), acting.FOREVER],
        patience_s=0.7,
    )
    pool.add([a, b])
    acting.until(lambda: len(heard.items) == 2)
    assert heard.items[0][0] == "a"
    assert reason in heard.items[0][1][0]
    assert heard.items[1] == ("b", [])
    assert (pool.lost, scripts.started(), heard.errors) == (1, 2, [])


def test_workers_that_never_start_end_it(start: Start, acting: Any) -> None:
    pool, heard = start([("exit", 3)])
    pool.add([acting.item()])
    acting.until(lambda: heard.errors)
    (error,) = heard.errors
    assert isinstance(error, MeasureError)
    assert "3 compile workers died as they started, the last one with exit status 3" in str(error)
    assert (heard.items, pool.lost) == ([], 3)


def test_worker_says_why_it_cannot_work(start: Start, acting: Any) -> None:
    refusal = ModelError("no model 'm'", subject="model", remedy="train one")
    pool, heard = start([acting.RECEIVE, ("send", pickle.dumps(refusal))])
    pool.add([acting.item()])
    acting.until(lambda: heard.errors)
    assert [str(error) for error in heard.errors] == [str(refusal)]


def test_worker_that_waits_for_the_device_is_not_silent(start: Start, acting: Any) -> None:
    a = acting.item()
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, acting.prepared(a)]
    pool, heard = start([*script, acting.finished(a), acting.FOREVER], patience_s=0.4)
    heard.gate.clear()
    pool.add([a])
    time.sleep(1.5)
    heard.gate.set()
    acting.until(lambda: heard.items)
    assert heard.items == [("a", [])]
    # What it waited is not what it worked.
    assert pool.seconds() < 1.0


def test_waiting_for_the_device_while_it_stands_still_is_one_wait(
    start: Start, acting: Any
) -> None:
    a = acting.item()
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, ("sleep", 0.5), acting.prepared(a)]
    pool, heard = start([*script, acting.finished(a), acting.FOREVER])
    heard.gate.clear()
    pool.add([a])
    time.sleep(1.5)
    with pool.standing_still():
        time.sleep(1.0)
    heard.gate.set()
    acting.until(lambda: heard.items)
    assert 0.4 < pool.seconds() < 1.4


def test_pool_stands_still(start: Start, acting: Any, scripts: Any) -> None:
    a, b = acting.item("a"), acting.item("b")
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, ("sleep", 0.3)]
    pool, heard = start([*script, acting.finished(a), acting.FOREVER], workers=2, patience_s=0.8)
    pool.add([a])
    acting.until(lambda: scripts.started() == 1)
    with pool.standing_still():
        acting.until(lambda: [p.status() for p in scripts.running()] == [psutil.STATUS_STOPPED])
        pool.add([b])
        time.sleep(1.5)
        # Neither taken for silent nor joined by another.
        assert (scripts.started(), heard.items) == (1, [])
    acting.until(lambda: len(heard.items) == 2)
    assert [failures for _, failures in heard.items] == [[], []]


@pytest.mark.parametrize("at", ["sleep", "stop", "half"])
def test_closing_takes_no_time_and_leaves_nothing(
    start: Start, acting: Any, scripts: Any, at: str
) -> None:
    script = [acting.RECEIVE, acting.READY, acting.RECEIVE, (at, 600), acting.FOREVER]
    pool, _ = start(script, workers=2)
    pool.add([acting.item(name) for name in "abcdef"])
    acting.until(lambda: scripts.started() == 2)
    time.sleep(0.3)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 30
    assert scripts.running() == []
    assert not [t for t in threading.enumerate() if t.name == "pool" and t.is_alive()]


def test_closing_while_workers_start(start: Start, acting: Any, scripts: Any) -> None:
    pool, heard = start([acting.FOREVER], workers=2)
    pool.add([acting.item("a"), acting.item("b")])
    acting.until(lambda: scripts.started() == 2)
    pool.close()
    assert (heard.items, heard.errors, scripts.running()) == ([], [], [])


_ABANDONED = """
import os, signal, subprocess, sys
from fusewise.compiler.collecting.child import Guard

guard = Guard()
child, gone = (
    subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    for _ in range(2)
)
for process in (child, gone):
    guard.watch(process.pid)
guard.forget(gone.pid)
os.kill(child.pid, signal.SIGSTOP)
print(child.pid, gone.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_stands_still_does_not_outlive_a_killed_parent(acting: Any) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", _ABANDONED], stdout=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == -signal.SIGKILL
    child, gone = map(int, run.stdout.split())
    try:
        acting.until(lambda: not psutil.pid_exists(child) or _is_dead(child))
        assert psutil.pid_exists(gone)
    finally:
        os.kill(gone, signal.SIGKILL)


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
