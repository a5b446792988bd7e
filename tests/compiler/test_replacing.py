"""What is replaced once a process, and what a context variable holds for a while."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from fusewise.compiler.inductor.replacing import holding, once


def test_it_is_replaced_once_whoever_asks_at_the_same_time() -> None:
    together = threading.Barrier(4)
    began: list[int] = []
    ended: list[int] = []
    seen: list[int] = []

    @once
    def replace() -> None:
        began.append(threading.get_ident())
        # Leaves the others time to come by.
        threading.Event().wait(0.2)
        ended.append(threading.get_ident())

    def run() -> None:
        together.wait()
        replace()
        # Nobody goes on before it is done.
        seen.append(len(ended))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(began) == 1
    assert seen == [1] * 4


def test_what_failed_is_tried_again() -> None:
    calls: list[str] = []

    @once
    def replace() -> None:
        calls.append("tried")
        if len(calls) == 1:
            raise RuntimeError("not there yet")

    with pytest.raises(RuntimeError, match="not there yet"):
        replace()
    replace()
    replace()
    assert calls == ["tried"] * 2


def test_a_variable_holds_again_what_it_held_before() -> None:
    variable: ContextVar[str] = ContextVar("tested", default="nothing")

    def fail() -> None:
        with holding(variable, "inner"):
            assert variable.get() == "inner"
            raise KeyError

    with holding(variable, "outer"):
        with pytest.raises(KeyError):
            fail()
        assert variable.get() == "outer"
    assert variable.get() == "nothing"
