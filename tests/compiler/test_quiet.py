"""A quiet CPU: real-time priority for a window, threads on cores of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fusewise.compiler.measuring import quiet as quiet_module
from fusewise.compiler.measuring.quiet import Quiet, pinned


def policies() -> set[int]:
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return {os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK for thread in threads}


def test_real_time_priority_lasts_as_long_as_the_window() -> None:
    torch.ones(1 << 20).sum()
    quiet = Quiet()
    quiet.expect(1e-3)
    with quiet:
        inside = policies()
    assert policies() == {os.SCHED_OTHER}
    assert inside == {os.SCHED_RR if quiet._threads else os.SCHED_OTHER}
    quiet.expect(10.0)
    with quiet:
        assert policies() == {os.SCHED_OTHER}
    quiet.expect(1e-3)
    with pytest.raises(ValueError, match="inside"), quiet:
        raise ValueError("inside")
    assert policies() == {os.SCHED_OTHER}


def test_a_window_is_as_good_after_another_one() -> None:
    torch.ones(1 << 20).sum()
    first = Quiet()
    first.expect(1e-3)
    with first:
        inside = policies()
    second = Quiet()
    second.expect(1e-3)
    with second:
        assert policies() == inside
    assert policies() == {os.SCHED_OTHER}


def test_window_without_permission_only_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise PermissionError

    quiet = Quiet()
    monkeypatch.setattr(os, "sched_setscheduler", refused)
    quiet.expect(1e-3)
    with quiet:
        sum(range(1000))
    assert quiet.disturbed in {True, False} and not quiet._threads
    monkeypatch.setattr(quiet_module, "_switches", iter((1, 2)).__next__)
    with quiet:
        pass
    assert quiet.disturbed


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("torch/lib/libgomp.so.1", {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}),
        # Kernels would bring in another, which pins all its threads to one core.
        ("torch/lib/libgomp-a34b3233.so.1", {}),
        ("torch.libs/libgomp-a34b3233.so.1", {}),
    ],
)
def test_threads_are_pinned_where_there_is_one_openmp_library(
    library: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Path(torch.__file__).parent.parent
    mapped = [site / library, site / "sklearn.libs/libgomp-1.so", site / "torch/lib/libc10.so"]
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f r-xp 0 fe:00 1  {path}\n" for path in mapped) + "7f rw-p 0 0\n")
    monkeypatch.setattr(quiet_module, "_MAPS", maps)
    assert pinned(1, {}) == expected
    assert pinned(1, {"OMP_PLACES": "threads"}) == pinned(1 << 20, {}) == {}
