"""The pace of the processor: full on a machine at rest, not full against a better best."""

from __future__ import annotations

import pytest

from fusewise.compiler.measuring import pace
from fusewise.compiler.measuring.pace import SLOW, Pace


def test_the_best_seen_is_full_pace() -> None:
    found = Pace()
    assert found.slowness() == 1.0
    assert all(found.slowness() >= 1.0 for _ in range(5))


def test_more_work_than_before_looks_like_a_slow_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Pace()
    found.slowness()
    monkeypatch.setattr(pace, "_WORK", bytes(8 << 17))
    assert found.slowness() > SLOW
    assert not found.recovered(0.05)
    monkeypatch.undo()
    # Whatever else runs here, one of many tries in ten seconds is left alone.
    assert found.recovered(10.0)
