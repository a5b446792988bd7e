"""What a search is for: which candidates may be taken, and which one is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.objective import acceptable, figures, front, listed, picked


def made(name: str, us: float, peak: int | None, *, accepted: bool = False) -> Candidate:
    return Candidate(
        schedule=Schedule(lowering=(Choice(name, True),)),
        origin="beam",
        groups=1,
        measured_us=us,
        peak_bytes=peak,
        status="measured",
        accepted=accepted,
    )


DEFAULT = replace(made("default", 100.0, 1000), origin="default")


def test_the_front_is_what_none_beats_in_both() -> None:
    fast, lean = made("fast", 80.0, 1200), made("lean", 150.0, 500)
    middle, beaten = made("middle", 90.0, 900), made("beaten", 95.0, 950)
    alike = made("alike", 90.5, 900)
    unknown = made("unknown", 1.0, None)
    found = front([DEFAULT, beaten, alike, lean, middle, unknown, fast])
    assert found == (fast, middle, lean)
    assert front([unknown]) == ()


@pytest.mark.parametrize(
    ("candidate", "may"),
    [
        # Faster beyond noise, and not leaner.
        (made("a", 80.0, 1200, accepted=True), {"time", "pareto"}),
        # Leaner, and not faster.
        (made("b", 120.0, 800), {"memory", "pareto"}),
        (made("c", 80.0, 800, accepted=True), {"time", "memory", "pareto"}),
        # Neither, beyond what allocators round.
        (made("d", 99.9, 1000), set()),
        (made("e", 80.0, None, accepted=True), {"time", "pareto"}),
        (replace(made("f", 1.0, 1), status="failed"), set()),
    ],
)
def test_what_may_take_the_place_of_the_default(candidate: Candidate, may: set[str]) -> None:
    objectives = ("time", "memory", "pareto")
    assert {o for o in objectives if acceptable(candidate, DEFAULT, o, sound=True)} == may
    # What is less accurate never may; the gate has not accepted it either.
    wrong = replace(candidate, accepted=False)
    assert not any(acceptable(wrong, DEFAULT, o, sound=False) for o in objectives)


def test_what_is_picked() -> None:
    fast, lean = made("fast", 80.0, 1200), made("lean", 150.0, 500)
    middle = made("middle", 90.0, 900)
    every = [lean, middle, fast]
    assert picked(every, DEFAULT, "time") is fast
    assert picked(every, DEFAULT, "memory") is lean
    # 0.75 of the product, against 0.81 and 0.96.
    assert picked(every, DEFAULT, "pareto") is lean
    assert picked([fast, middle], DEFAULT, "pareto") is middle
    # What gives up more than it gains is no better than the default.
    assert picked([made("dear", 99.0, 1100)], DEFAULT, "pareto") is None
    assert picked([], DEFAULT, "memory") is None


def test_of_equal_peaks_the_faster() -> None:
    slow, fast = made("slow", 90.0, 700), made("fast", 80.0, 700)
    assert picked([slow, fast], DEFAULT, "memory") is fast
    assert picked([made("a bit less", 1.0, 710), slow], DEFAULT, "memory") is slow


def test_figures_without_a_measurement() -> None:
    predicted = Candidate(schedule=Schedule(), origin="beam", groups=1, predicted_us=7.0)
    assert figures(predicted, "time") == (7.0,)
    assert figures(predicted, "memory") == (float("inf"),)
    assert figures(replace(predicted, predicted_us=None, peak_bytes=3), "memory") == (3.0,)


def test_what_is_listed_first() -> None:
    quick, lean, both = made("quick", 80.0, 1), made("lean", 150.0, 1), made("both", 90.0, 1)
    peaks = {quick.schedule.id: 900, lean.schedule.id: 500, both.schedule.id: 600}
    every = [quick, lean, both]
    by_time = [quick, both]
    assert listed(every, peaks, by_time, "time") == by_time
    assert listed(every, peaks, by_time, "memory") == [lean, both, quick]
    assert listed(every, peaks, by_time, "pareto") == [quick, lean, both]
