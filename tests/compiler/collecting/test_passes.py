"""The calls of a program and the passes over them: whose is whose, and which need another one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fusewise.compiler.collecting.passes import known, lacking, match
from fusewise.compiler.collecting.work import Call
from fusewise.compiler.measuring.sampling import CallTimes


def call(kernel: str, node: str) -> Call:
    kind: Any = "kernel" if kernel else "extern"
    return Call(kind, kernel, f"signature of {node}", (node,), None, True)


def took(us: float, *, disturbed: bool = False, kernel: str = "k") -> list[CallTimes]:
    """A pass over a program of one call."""
    return [CallTimes(kernel, [us] * 9, disturbed=disturbed)]


def test_what_cannot_be_told_apart_is_left_out() -> None:
    calls = [call("k0", "a"), call("", "mm"), call("k1", "b")]
    found = [CallTimes("k0", [1.0]), CallTimes("", [1.0]), CallTimes("k1", [1.0])]
    assert [pair[0].nodes for pair in match(calls, found)] == [("a",), ("b",), ("mm",)]
    # One kind in disorder does not spoil the other.
    assert [pair[0].nodes for pair in match(calls, found[:2])] == [("mm",)]
    assert [pair[0].nodes for pair in match(calls, [found[0], found[2]])] == [("a",), ("b",)]
    assert list(match(calls, [found[2], CallTimes(""), found[0], CallTimes("")])) == []


@pytest.mark.parametrize("alike", [0.03, math.inf])
def test_two_free_passes_of_three_or_more_are_needed(alike: float) -> None:
    slow = took(2.0, disturbed=True)
    assert lacking([slow, slow, took(1.0)], alike)
    assert not lacking([slow, took(1.0), took(1.0), took(1.0)], alike)


def test_the_fastest_three_are_to_be_alike_where_that_is_asked_for() -> None:
    passes = [took(1.0), took(1.02), took(1.2)]
    assert not lacking(passes)
    assert lacking(passes, 0.03)
    assert lacking([*passes, took(1.04)], 0.03)
    assert not lacking([*passes, took(1.04), took(1.01)], 0.03)
    # A faster one shows that all others had been in something's way.
    assert lacking([*passes, took(1.01), took(0.9)], 0.03)
    # A disturbed pass is like nothing.
    assert lacking([*passes, took(1.0, disturbed=True)], 0.03)


def test_passes_that_never_are_alike_come_to_an_end() -> None:
    passes = [took(1.1**number) for number in range(9)]
    assert lacking(passes[:8], 0.03)
    assert not lacking(passes, 0.03)


def test_what_cannot_be_timed_needs_no_other_pass() -> None:
    failed = [CallTimes("k", failure="it failed")]
    assert not lacking([failed, failed, failed], 0.03)


def test_calls_are_known_by_name_and_occurrence() -> None:
    passes = [[*took(1.0), *took(third), *took(5.0, kernel="other")] for third in (1.0, 1.2, 1.5)]
    assert known(passes) == {("k", 0), ("k", 1), ("other", 0)}
    assert known(passes, 0.03) == {("k", 0), ("other", 0)}
