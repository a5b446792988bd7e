"""Interrupts that come where Python cannot raise anything."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fusewise.compiler.interrupts import Interrupts
from fusewise.compiler.offline import Standing, search_program
from fusewise.compiler.searched import Effort
from fusewise.datasets.target import load_target

_TARGET = """\
import torch


def small():
    return lambda x: torch.softmax(x * 2 + 1, -1).sum(0), (torch.randn(64, 96),)
"""


class Careless:
    """An object at whose end an interrupt comes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        # Python looks for signals between its own instructions.
        for _ in range(3):
            time.sleep(0)


def lose_an_interrupt() -> None:
    """Nothing is raised here."""
    Careless()


@pytest.mark.usefixtures("interruptible")
def test_one_that_is_lost_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with Interrupts() as interrupts:
        assert not interrupts.came
        lose_an_interrupt()
        assert interrupts.came
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
    assert printed == []


def test_what_else_cannot_be_raised_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("at its end")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(str(what.exc_value)))
    with Interrupts():
        Broken()
    assert told == ["at its end"]


@pytest.mark.usefixtures("interruptible")
def test_others_are_raised_as_ever() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.came


def test_who_has_a_handler_of_his_own_keeps_it() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT] and not interrupts.came
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("uninterruptible")
def test_who_ignores_them_from_the_start_goes_on_to() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not interrupts.came
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("interruptible")
def test_a_search_ends_though_its_interrupt_was_lost(tmp_path: Path, profiled: Path) -> None:
    (tmp_path / "devices").symlink_to(profiled)
    (tmp_path / "target.py").write_text(_TARGET)
    effort = Effort(trials=500, budget_s=600.0, top_k=1, store=tmp_path / "s.duckdb", name="lost")
    told: list[str] = []

    def watch(standing: Standing) -> None:
        told.append(standing.doing)
        if len(told) == 1:
            lose_an_interrupt()

    found = search_program(load_target(f"{tmp_path / 'target.py'}:small"), effort, watch)
    assert found.interrupted
    (graph,) = found.graphs
    assert graph.trials <= 1
    assert found.plan_file().graphs[0].schedule.id
