"""The pace of the processor: full on a machine at rest, not full against a better best."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from fusewise.compiler.measuring import pace
from fusewise.compiler.measuring.pace import SLOW, Pace, at_usual_pace


def kept(folder: Path) -> Path:
    """The one file there."""
    (path,) = folder.iterdir()
    return path


def test_pace_is_told_against_the_best_that_was_seen(tmp_path: Path) -> None:
    found = Pace(tmp_path)
    assert all(found.slowness() >= 1.0 for _ in range(5))


def test_more_work_than_before_looks_like_a_slow_processor(tmp_path: Path) -> None:
    Pace(tmp_path).slowness()
    best = float(kept(tmp_path).read_text())
    # Of a machine that is far faster, and of one that is far slower than this.
    kept(tmp_path).write_text(repr(best / 100))
    found = Pace(tmp_path)
    assert found.slowness() > SLOW
    assert not found.recovered(0.05)
    kept(tmp_path).write_text(repr(best * 1000))
    # Whatever else runs here, one of many tries in ten seconds is left alone.
    assert Pace(tmp_path).recovered(10.0)


def test_a_processor_that_stays_slow_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pace(tmp_path).slowness()
    best = float(kept(tmp_path).read_text())
    kept(tmp_path).write_text(repr(best / 100))
    monkeypatch.setattr(pace, "_PATIENCE_S", 0.05)
    found = Pace(tmp_path)
    assert not found.recovered(1e6)
    assert found.stays_slow
    kept(tmp_path).write_text(repr(best * 1000))
    assert not Pace(tmp_path).stays_slow


def test_better_best_is_kept_for_others(tmp_path: Path) -> None:
    Pace(tmp_path).slowness()
    best = float(kept(tmp_path).read_text())
    kept(tmp_path).write_text(repr(best * 1000))
    Pace(tmp_path).slowness()
    assert 0 < float(kept(tmp_path).read_text()) < best * 1000


def test_old_or_broken_best_counts_no_more(tmp_path: Path) -> None:
    Pace(tmp_path).slowness()
    path = kept(tmp_path)
    path.write_text("1e-12")
    os.utime(path, (0, time.time() - 1e6))
    assert Pace(tmp_path).slowness() < 1000
    path.write_text("not a num")
    assert Pace(tmp_path).slowness() < 1000
    assert float(path.read_text()) > 1e-9


def test_another_number_of_threads_has_another_best(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = Pace(tmp_path)
    found.slowness()
    try:
        torch.set_num_threads(before + 1)
        assert found.slowness() >= 1.0
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        torch.set_num_threads(before)


def test_what_a_slow_processor_adds_is_taken_off_in_part() -> None:
    taken = [at_usual_pace(10.0, slowness) for slowness in (1.0, 1.1, 1.2, SLOW)]
    assert taken == sorted(taken, reverse=True)
    # Memory is not slowed down with the cores: not all of it is taken off.
    assert 10.0 / SLOW < taken[-1] < 10.0 < taken[0] < 10.0 * 1.08
    # What is this slow is no matter of pace any more.
    assert at_usual_pace(10.0, 3.0) == taken[-1]
