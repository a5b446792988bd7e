"""The second contest: what stood has to win again, and what is built on it has to beat it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fusewise.compiler.finishing import finished, settle_finish
from fusewise.compiler.measuring.job import GraphResult, ProgramResult
from fusewise.compiler.reports import GraphReport
from fusewise.schedule.kernel_choices import blocks_choice, combo_choice
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.offers import Offer

PLAN = unfused(["op0", "op1", "op2"])


def candidate(origin: str, *codegen: Choice, us: float | None = None) -> Candidate:
    return Candidate(
        schedule=Schedule(plan=PLAN, codegen=codegen),
        origin=origin,
        groups=3,
        predicted_us=50.0,
        measured_us=us,
        accepted=True,
        status="predicted" if us is None else "measured",
    )


DEFAULT = candidate("default", us=100.0)
STOOD = candidate("beam", Choice("loop_ordering", False), us=90.0)
TUNED = finished(STOOD, Offer((blocks_choice("op1", "descent"),), 2.0, "tuned"))
BOTH = finished(STOOD, Offer((combo_choice(["op0", "op2"]),), 2.0, "together"))


def outcome(*us: float, errors: Sequence[float] | None = None, failure: str = "") -> GraphResult:
    """What the measuring process would say of programs that take these times."""
    noise = random.Random(1)
    errors = errors or [1e-6] * len(us)
    programs = [
        ProgramResult(str(i), [value * noise.uniform(0.999, 1.001) for _ in range(40)], [error])
        for i, (value, error) in enumerate(zip(us, errors, strict=True))
    ]
    if failure:
        programs[-1] = ProgramResult(str(len(us)), failure=failure)
    return GraphResult(programs, "fp64", "cuda graph", [1e-7], {}, {})


def settled(
    result: GraphResult, *made: Candidate, stood: bool = True, measured: bool = True
) -> GraphReport:
    default = DEFAULT if measured else candidate("default")
    report = GraphReport("inference", "measure", candidates=[default, *([STOOD] if stood else [])])
    report.chosen = report.candidates[-1]
    report.source = "measured" if measured else "predicted"
    settle_finish(report, [*report.candidates, *made], 1 + stood, result)
    assert report.chosen in report.candidates and report.chosen.accepted
    assert len({c.schedule for c in report.candidates}) == len(report.candidates)
    return report


def test_the_fastest_is_taken_and_times_are_of_the_first_contest() -> None:
    # The device has slowed down by half since.
    report = settled(outcome(150, 135, 120, 105), TUNED, BOTH)
    assert report.chosen is not None and report.chosen.schedule == BOTH.schedule
    assert [c.origin for c in report.candidates] == ["default", "beam", "finish", "finish"]
    assert [c.measured_us for c in report.candidates] == pytest.approx([100, 90, 80, 70], rel=0.01)
    assert report.chosen.predicted_us == STOOD.predicted_us


def test_what_is_hardly_faster_is_left() -> None:
    report = settled(outcome(100, 90, 89.7), TUNED)
    assert report.chosen == STOOD
    assert "not faster than what it is built on" in report.candidates[-1].reason


def test_what_stood_has_to_win_again() -> None:
    report = settled(outcome(100, 100, 100), TUNED)
    assert report.chosen == DEFAULT
    assert not report.candidates[1].accepted
    assert report.candidates[1].reason.startswith("timed again: not faster")
    # What is built on it may be faster all the same.
    report = settled(outcome(100, 100, 80), TUNED)
    assert report.chosen is not None and report.chosen.schedule == TUNED.schedule


def test_on_the_default_alone() -> None:
    report = settled(outcome(100, 90), TUNED, stood=False, measured=False)
    assert report.chosen is not None and report.chosen.schedule == TUNED.schedule
    assert report.source == "measured" and report.candidates[0].measured_us is not None
    report = settled(outcome(100, 101), TUNED, stood=False)
    assert report.chosen == DEFAULT


def test_errors_are_held_against_the_defaults() -> None:
    report = settled(outcome(100, 90, 50, errors=[1e-6, 1.9e-6, 3e-6]), TUNED)
    assert report.chosen == STOOD
    assert "error" in report.candidates[-1].reason


def test_what_fails_is_left_with_the_reason() -> None:
    report = settled(outcome(100, 90, 50, failure="out of resource"), TUNED)
    assert report.chosen == STOOD
    assert (report.candidates[-1].status, report.candidates[-1].reason) == (
        "failed",
        "out of resource",
    )


def test_nothing_changes_where_the_default_fails() -> None:
    result = outcome(100, 90, 50)
    result.programs[0] = ProgramResult("default", failure="died")
    with pytest.warns(match="died"):
        report = settled(result, TUNED)
    assert report.chosen == STOOD and report.candidates == [DEFAULT, STOOD]
