"""A GPU that is kept awake: by whom, until when, and never while somebody times on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch

from fusewise.compiler.measuring import cuda_clock
from fusewise.compiler.measuring.device import device_lock

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fusewise-awake"]


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A GPU of which only the calls are there: what was launched, in order."""
    launches: list[str] = []

    class Stream:
        def synchronize(self) -> None:
            time.sleep(0.001)

        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(cuda_clock, "_something", lambda: "work")
    monkeypatch.setattr(cuda_clock, "_work_on", launches.append)
    lock = tmp_path / "device.lock"
    monkeypatch.setattr(cuda_clock, "device_lock", lambda _: filelock.FileLock(lock))
    monkeypatch.setattr(cuda_clock, "_last_used", {})
    monkeypatch.setattr(cuda_clock, "_WAKE_S", 0.02)
    yield launches
    assert keepers() == []


def until(happened: Any) -> None:
    for _ in range(500):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen in five seconds")


def test_a_device_works_until_it_may_rest(worked: list[str]) -> None:
    with cuda_clock.waking(GPU):
        until(lambda: 0 in cuda_clock._last_used)
        assert set(worked) == {"work"}
        # Whoever comes to wait for the same device changes nothing of it.
        cuda_clock.wake_meanwhile(GPU)
        assert len(keepers()) == 1
    assert keepers() == []


def test_a_device_that_somebody_times_on_is_left_alone(worked: list[str], tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / "device.lock"), cuda_clock.waking(GPU):
        # It is awake for that.
        until(lambda: 0 in cuda_clock._last_used)
        assert worked == []


def test_what_fails_is_nobodys_error(worked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(work: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(cuda_clock, "_work_on", lost)
    with cuda_clock.waking(GPU):
        until(lambda: not any(thread.is_alive() for thread in keepers()))
    assert cuda_clock._last_used == {}


def test_nothing_is_launched_beside_what_is_captured(
    worked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with cuda_clock.waking(GPU):
        assert keepers() == []
    assert worked == []


def test_a_cpu_needs_no_waking() -> None:
    with cuda_clock.waking(CPU):
        assert keepers() == []


@pytest.mark.gpu
def test_a_gpu_that_was_kept_awake_is_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_clock, "_last_used", {})
    torch.ones(1, device="cuda")
    with cuda_clock.waking(GPU):
        until(lambda: 0 in cuda_clock._last_used)
    # It is held no more, but by whoever else measures there now, and nothing runs on it.
    with device_lock("cuda:0").acquire(timeout=120):
        before = cuda_clock._last_used[0]
        cuda_clock.wake()
    assert cuda_clock._last_used[0] >= before
    assert keepers() == []
