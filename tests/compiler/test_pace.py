"""The pace of the processor: full on a machine at rest, not full against a better best."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from fusewise.compiler.measuring import pace
from fusewise.compiler.measuring.pace import SLOW, Moment, Pace, at_usual_pace


@pytest.fixture(autouse=True)
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A best that is a few percent off will do: what is held against it differs by far more."""
    monkeypatch.setattr(pace, "_LEARNING_S", 0.1)


def kept(folder: Path) -> Path:
    """The one file there."""
    (path,) = folder.iterdir()
    return path


def best(folder: Path) -> list[float]:
    """Seconds of both pieces of work, as they are kept."""
    return [float(seconds) for seconds in kept(folder).read_text().split()]


def keep(folder: Path, seconds: list[float]) -> None:
    kept(folder).write_text(" ".join(map(repr, seconds)))


def test_pace_is_told_against_the_best_that_was_seen(tmp_path: Path) -> None:
    found = Pace(tmp_path)
    assert all(min(found.moment()) >= 1.0 for _ in range(5))


def test_more_work_than_before_looks_like_a_slow_processor(tmp_path: Path) -> None:
    Pace(tmp_path).moment()
    was = best(tmp_path)
    # Of a machine that is far faster, and of one that is far slower than this.
    keep(tmp_path, [seconds / 100 for seconds in was])
    found = Pace(tmp_path)
    assert found.moment().slowness > SLOW
    assert not found.recovered(0.05)
    keep(tmp_path, [seconds * 1000 for seconds in was])
    # Whatever else runs here, one of many tries in ten seconds is left alone.
    assert Pace(tmp_path).recovered(10.0)


def test_a_processor_that_stays_slow_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pace(tmp_path).moment()
    was = best(tmp_path)
    keep(tmp_path, [seconds / 100 for seconds in was])
    monkeypatch.setattr(pace, "_PATIENCE_S", 0.05)
    found = Pace(tmp_path)
    assert not found.recovered(1e6)
    assert found.stays_slow
    keep(tmp_path, [seconds * 1000 for seconds in was])
    assert not Pace(tmp_path).stays_slow


def test_better_best_is_kept_for_others(tmp_path: Path) -> None:
    Pace(tmp_path).moment()
    was = best(tmp_path)
    keep(tmp_path, [seconds * 1000 for seconds in was])
    Pace(tmp_path).moment()
    now = best(tmp_path)
    assert all(0 < seconds < 1000 * before for seconds, before in zip(now, was, strict=True))


def test_old_or_broken_best_counts_no_more(tmp_path: Path) -> None:
    Pace(tmp_path).moment()
    path = kept(tmp_path)
    path.write_text("1e-12 1e-12")
    os.utime(path, (0, time.time() - 1e6))
    assert max(Pace(tmp_path).moment()) < 1000
    for broken in ("not a num", "1e-12", "1e-12 0.0"):
        path.write_text(broken)
        assert max(Pace(tmp_path).moment()) < 1000
        assert min(best(tmp_path)) > 1e-9


def test_another_number_of_threads_has_another_best(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    found = Pace(tmp_path)
    found.moment()
    try:
        torch.set_num_threads(before + 1)
        assert min(found.moment()) >= 1.0
        assert len(list(tmp_path.iterdir())) == 2
    finally:
        torch.set_num_threads(before)


def test_what_a_slow_processor_adds_is_taken_off_in_part() -> None:
    slower = (1.0, 1.1, 1.2, SLOW)
    for moments in (
        [Moment(each, 1.0) for each in slower],
        [Moment(1.0, each) for each in slower],
        [Moment(each, each) for each in slower],
    ):
        taken = [at_usual_pace(10.0, moment) for moment in moments]
        assert taken == sorted(taken, reverse=True)
        # Not all that a kernel takes is slowed down: not all of it is taken off.
        assert taken[0] / SLOW < taken[-1] < taken[0] < 10.0 * 1.12
    # What is this slow is no matter of pace any more.
    assert at_usual_pace(10.0, Moment(3.0, 3.0)) == at_usual_pace(10.0, Moment(SLOW, SLOW))
