"""Work in copies of this process, whatever becomes of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.hub import tqdm

from fusewise.compiler.inductor import aside
from fusewise.schedule.errors import PlanError


def _done_aside(
    jobs: Sequence[Callable[[], Any]], timeout_s: float | None = None
) -> list[Any | Exception | None]:
    with aside.Copies(jobs) as copies:
        found = copies.wait(range(len(jobs)), timeout_s)
    return [found.get(at) for at in range(len(jobs))]


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no process is copied here")
    monkeypatch.setattr(aside, "_LEAST_CORES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {pid, 1, 2})
    monkeypatch.setattr(aside._useless, "is_set", lambda: False)


def test_each_job_is_done_in_a_process_that_is_not_this_one() -> None:
    kept: list[int] = []
    jobs = [lambda i=i: (kept.append(i), i, os.getpid())[1:] for i in range(5)]
    found = _done_aside(jobs)
    assert [value[0] for value in found] == list(range(5))  # type: ignore[index]
    assert os.getpid() not in {value[1] for value in found}  # type: ignore[index]
    assert kept == []


def test_errors_come_back_as_they_are() -> None:
    def refuses() -> None:
        raise PlanError("a", subject="b", remedy="c")

    def fails() -> None:
        raise KeyError("x")

    refused, failed = _done_aside([refuses, fails])
    assert isinstance(refused, PlanError) and refused.remedy == "c"
    assert isinstance(failed, RuntimeError) and "KeyError" in str(failed)


def test_a_copy_that_dies_or_hangs_costs_only_its_own_jobs() -> None:
    dies, fine = _done_aside([lambda: os._exit(3), lambda: "fine"])
    assert (dies, fine) == (None, "fine")
    before = time.monotonic()
    hangs, fine = _done_aside([lambda: time.sleep(60), lambda: "fine"], timeout_s=1.0)
    assert (hangs, fine) == (None, "fine")
    assert time.monotonic() - before < 30


def test_only_what_is_wanted_is_waited_for() -> None:
    jobs: list[Any] = [lambda: time.sleep(60), lambda: 1, lambda: 2, lambda: 3]
    # Two copies share them.
    with aside.Copies(jobs) as copies:
        assert copies.wait([1])[1] == 1
        assert copies.wait([1, 3])[3] == 3
        assert 2 not in copies.wait([2], timeout_s=0.2)
        running = [pid for pid, _ in copies._running.values()]
    assert not any(psutil.pid_exists(pid) for pid in running)


def test_a_copy_goes_on_with_what_it_found() -> None:
    def fails() -> None:
        raise KeyError("x")

    kept: list[int] = []
    jobs: list[Any] = [lambda: kept.append(1) or 20, fails, lambda: 30]
    with aside.Copies(jobs, lambda found: (found + 1, sum(kept))) as copies:
        assert copies.wait([0, 2])[0] == 20
        found = copies.wait([3, 5])
    # In the same copies, of which there are two; what failed is not gone on with.
    assert found[3] == (21, 1) and found[5] == (31, 1) and 4 not in found


def test_what_needs_the_device_is_left_to_the_caller() -> None:
    def asks() -> None:
        raise RuntimeError("CUDA error: initialization error")

    with aside.Copies([asks, lambda: 1]) as copies:
        assert copies.wait([0, 1]) == {1: 1}
        assert copies.in_vain


def test_what_cannot_be_sent_is_left_to_the_caller() -> None:
    assert _done_aside([lambda: lambda: 1, lambda: 2]) == [None, 2]


def test_no_process_is_left(tmp_path: Path) -> None:
    marks = [tmp_path / str(i) for i in range(2)]

    def marking(path: Path) -> None:
        path.write_text(str(os.getpid()))
        time.sleep(60)

    _done_aside([lambda p=p: marking(p) for p in marks], timeout_s=2.0)
    for mark in marks:
        with pytest.raises(ProcessLookupError):
            os.kill(int(mark.read_text()), 0)


def _bar_drawn() -> bool:
    """Whether a progress bar can be made here, in a thread that is given up where it cannot."""
    drawing = threading.Thread(target=lambda: tqdm(range(1), disable=True), daemon=True)
    drawing.start()
    drawing.join(20.0)
    return not drawing.is_alive()


def test_a_copy_does_not_wait_for_a_lock_that_is_held_here() -> None:
    with tqdm.get_lock():
        assert _done_aside([_bar_drawn]) == [True]


def test_a_copy_that_is_ended_takes_no_lock_with_it(tmp_path: Path) -> None:
    """Inductor makes progress bars all the time, and their lock is one of several processes."""
    held = tmp_path / "held"

    def draws() -> None:
        with tqdm.get_lock():
            held.touch()
            time.sleep(60)

    assert _bar_drawn()
    _done_aside([draws], timeout_s=2.0)
    assert held.exists()
    assert _bar_drawn()
