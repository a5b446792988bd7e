"""What is said of pairs in situations that small graphs seldom get into: traces made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fusewise.compiler.explaining.fusions import Fate, Fates
from fusewise.compiler.explaining.outcomes import Outcome, outcome_of
from fusewise.compiler.inductor.fusion_trace import Asked, Fused, FusionTrace
from fusewise.compiler.inductor.refusals import Refusal


def _asked(first: str, second: str, **changes: Any) -> Asked:
    fields: dict[str, Any] = {
        "round": 1,
        "phase": "search",
        "first": first,
        "second": second,
        "first_nodes": tuple(first.split("_")),
        "second_nodes": tuple(second.split("_")),
        "reorder": False,
        "vertical": True,
        "legal": True,
    }
    return Asked(**(fields | changes))


def _fused(first: str, second: str, round_: int = 1) -> Fused:
    return Fused(round_, 0, first, second, (*first.split("_"), *second.split("_")))


def _fate(asked: Sequence[Asked], fused: Sequence[Fused], pair: tuple[str, str]) -> Fate:
    trace = FusionTrace(asked=list(asked), fused=list(fused))
    return Fates(trace).of([question for question in asked if question.pair == pair])


def test_taken() -> None:
    asked = [_asked("a", "b"), _asked("a", "b", phase="try", fused=True)]
    assert _fate(asked, [_fused("a", "b")], ("a", "b")) == Fate(True, True, None)


def test_refused_whatever_the_round() -> None:
    no = {"legal": False, "reason": Refusal.TILING, "detail": "tiling mismatch"}
    asked = [_asked("a", "b", **no), _asked("a", "b", round=2, **no)]
    fate = _fate(asked, [], ("a", "b"))
    assert fate == Fate(False, False, Refusal.TILING, "tiling mismatch")


def test_what_was_legal_once_and_is_no_longer() -> None:
    no = {"legal": False, "reason": Refusal.INTERMEDIATE, "detail": "intermediate nodes"}
    asked = [_asked("a", "b"), _asked("a", "b", round=2, **no)]
    fate = _fate(asked, [], ("a", "b"))
    assert (fate.legal, fate.reason) == (True, Refusal.INTERMEDIATE)


def test_a_cycle_names_the_groups_it_goes_through() -> None:
    asked = [_asked("a", "b"), _asked("a", "b", phase="try", cycle=("c_d",))]
    fate = _fate(asked, [], ("a", "b"))
    assert fate.reason is Refusal.CYCLE and fate.blocked_by == ("c_d",)
    assert "c_d" in fate.detail


def test_a_benchmark_that_found_it_slower() -> None:
    asked = [_asked("a", "b", phase="try", reason=Refusal.SLOWER, detail="slower")]
    assert _fate(asked, [], ("a", "b")).reason is Refusal.SLOWER
    # Inductor asks once more when the benchmark is through.
    asked.append(_asked("a", "b", phase="try"))
    assert _fate(asked, [], ("a", "b")).reason is Refusal.SLOWER


def test_a_higher_score_came_first_and_what_it_became_was_refused() -> None:
    asked = [
        _asked("a", "b", score=(1, 5)),
        _asked("a", "c", score=(1, 9)),
        _asked("a", "c", phase="try", score=(1, 9), fused=True),
        _asked("a_c", "b", phase="try", legal=False, reason=Refusal.TOO_FAR, detail="too far"),
    ]
    fate = _fate(asked, [_fused("a", "c")], ("a", "b"))
    assert (fate.legal, fate.taken, fate.reason) == (True, False, Refusal.FUSED_ELSEWHERE)
    assert fate.blocked_by == ("c",)
    assert "score 1/9" in fate.detail and "a_c with b: too far" in fate.detail


def test_a_higher_score_came_first_and_then_a_cycle() -> None:
    asked = [
        _asked("a", "b"),
        _asked("a", "c", phase="try", fused=True),
        _asked("a_c", "b", phase="try", cycle=("d",), reason=Refusal.CYCLE),
    ]
    fate = _fate(asked, [_fused("a", "c")], ("a", "b"))
    assert fate.reason is Refusal.FUSED_ELSEWHERE and fate.blocked_by == ("c", "d")


@pytest.mark.parametrize(
    "fused", [[_fused("a", "c"), _fused("a_c", "b")], [_fused("b", "c"), _fused("a", "b_c")]]
)
def test_both_came_together_by_way_of_others(fused: list[Fused]) -> None:
    fate = _fate([_asked("a", "b")], fused, ("a", "b"))
    assert fate.reason is Refusal.ALREADY_TOGETHER and fate.blocked_by == ("c",)


def test_a_pair_that_had_to_wait_for_higher_kinds() -> None:
    fate = _fate([_asked("a", "b"), _asked("c", "d", fused=True)], [_fused("c", "d")], ("a", "b"))
    assert fate.reason is Refusal.LOWER_PRIORITY


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"taken": True, "reason": "", "together": True}, Outcome.TAKEN),
        ({"reason": "rule"}, Outcome.RULE),
        ({"reason": "rule", "legal": False}, Outcome.RULE),
        ({"legal": False, "reason": "tiling"}, Outcome.REFUSED),
        ({"legal": False, "reason": "tiling", "together": True}, Outcome.REFUSED),
        ({"together": True}, Outcome.TOGETHER),
        ({}, Outcome.MISSED),
        ({"predicted_gain_us": 0.0}, Outcome.APART),
    ],
)
def test_every_pair_has_one_outcome(changes: dict[str, Any], outcome: Outcome) -> None:
    pair: dict[str, Any] = {
        "taken": False,
        "legal": True,
        "reason": "fused_elsewhere",
        "together": False,
        "predicted_gain_us": 1.0,
    }
    assert outcome_of(**(pair | changes)) is outcome
