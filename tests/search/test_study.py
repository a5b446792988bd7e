"""The study over choices, and the shortlist."""

from __future__ import annotations

import pytest

from fusewise.schedule.errors import MeasureError, OptionError, StoreError
from fusewise.schedule.plan import Step, build_plan
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.shortlist import distance, shortlist
from fusewise.search.study import Choices, ChoiceSpace, run_study

SPACE = ChoiceSpace(
    {"threshold": (4, 8, 16), "tiling": (True, False), "mode": ("a", "b", "c")},
    {"threshold": 4, "tiling": True, "mode": "a"},
)


def _time(choices: Choices) -> float:
    return (
        100
        - int(choices["threshold"])
        + 5 * bool(choices["tiling"])
        + "cab".index(str(choices["mode"]))
    )


class Evaluate:
    def __init__(self) -> None:
        self.seen: list[Choices] = []

    def __call__(self, choices: Choices) -> list[Candidate]:
        self.seen.append(choices)
        lowering = tuple(Choice(n, v) for n, v in choices.items())
        return [
            Candidate(
                schedule=Schedule(lowering=lowering),
                origin="lowering",
                groups=1,
                measured_us=_time(choices),
                status="measured",
            )
        ]


def test_small_space_is_tried_in_full_default_first() -> None:
    evaluate = Evaluate()
    result = run_study(SPACE, evaluate, name="full", n_trials=50)
    assert evaluate.seen[0] == SPACE.default
    assert len(result.trials) == SPACE.size == 18
    assert result.best is not None
    assert result.best.choices == {"threshold": 16, "tiling": False, "mode": "c"}


def test_large_space_starts_at_the_default_and_repeats_nothing() -> None:
    evaluate = Evaluate()
    result = run_study(SPACE, evaluate, name="sampled", n_trials=10, seed=1)
    assert evaluate.seen[0] == SPACE.default
    assert len(evaluate.seen) == result.fresh == 10
    assert len({str(c) for c in evaluate.seen}) == 10
    again = Evaluate()
    run_study(SPACE, again, name="sampled", n_trials=10, seed=1)
    assert again.seen == evaluate.seen


def test_what_is_asked_for_first_is_tried_before_anything_is_proposed() -> None:
    first = [{**SPACE.default, "mode": mode} for mode in "ca"]
    evaluate = Evaluate()
    run_study(SPACE, evaluate, name="first", n_trials=4, seed=1, first=first)
    # What is the default is not tried twice.
    asked = [SPACE.default, *(choices for choices in first if choices != SPACE.default)]
    assert evaluate.seen[: len(asked)] == asked
    assert len({str(choices) for choices in evaluate.seen}) == len(evaluate.seen) == 4
    few = Evaluate()
    run_study(SPACE, few, name="few", n_trials=2, first=first)
    assert few.seen == asked[:2]


def test_study_resumes_by_name(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    first = run_study(SPACE, Evaluate(), name="kept", storage=storage, n_trials=4)
    evaluate = Evaluate()
    second = run_study(SPACE, evaluate, name="kept", storage=storage, n_trials=18)
    assert second.fresh == 14 and len(second.trials) == 18
    assert not {str(t.choices) for t in first.trials} & {str(c) for c in evaluate.seen}
    assert second.best is not None and second.best.candidate is not None
    other = ChoiceSpace({"threshold": (4, 8)}, {"threshold": 4})
    with pytest.raises(OptionError, match="another space"):
        run_study(other, evaluate, name="kept", storage=storage, n_trials=3)
    with pytest.raises(StoreError):
        run_study(SPACE, evaluate, name="x", storage=f"sqlite:///{tmp_path}/no/x.db", n_trials=1)


def test_failed_trials_are_kept_with_their_reason() -> None:
    def evaluate(choices: Choices) -> list[Candidate]:
        if choices["threshold"] != 8:
            raise MeasureError("no compiler", subject="candidate", remedy="install one")
        return Evaluate()(choices)

    result = run_study(SPACE, evaluate, name="failing", n_trials=18)
    assert sum("no compiler" in t.failure for t in result.trials) == 12
    assert result.best is not None and result.best.choices["threshold"] == 8
    nothing = run_study(SPACE, lambda _: [], name="nothing", n_trials=2)
    assert nothing.best is None


def test_interrupt_keeps_the_best_and_other_errors_pass() -> None:
    calls = Evaluate()

    def interrupted(choices: Choices) -> list[Candidate]:
        if len(calls.seen) == 3:
            raise KeyboardInterrupt
        return calls(choices)

    result = run_study(SPACE, interrupted, name="stopped", n_trials=18)
    assert result.interrupted and len(result.trials) == 3 and result.best is not None

    def broken(choices: Choices) -> list[Candidate]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_study(SPACE, broken, name="broken", n_trials=2)
    assert run_study(SPACE, calls, name="late", n_trials=5, seconds=-1.0).fresh == 0


def test_space_must_hold_its_default() -> None:
    with pytest.raises(OptionError, match="threshold"):
        ChoiceSpace({"threshold": (4, 8)}, {"threshold": 5})


def _candidate(us: float | None, *steps: tuple[str, str], threshold: int = 4) -> Candidate:
    plan = build_plan([f"n{i}" for i in range(60)], [Step("fuse", a, b) for a, b in steps])
    schedule = Schedule(lowering=(Choice("threshold", threshold),), plan=plan)
    return Candidate(schedule=schedule, origin="beam", groups=len(plan.groups), predicted_us=us)


def test_shortlist_prefers_differing_groups() -> None:
    default = _candidate(100.0, ("n0", "n1"))
    best = _candidate(80.0, ("n0", "n1"), ("n2", "n3"), ("n4", "n5"), ("n6", "n7"))
    copy = _candidate(80.1, ("n0", "n1"), ("n2", "n3"), ("n4", "n5"), ("n6", "n7"), ("n8", "n9"))
    unlike = _candidate(83.0, *((f"n{i}", f"n{i + 1}") for i in range(20, 40, 2)))
    lowered = _candidate(84.0, ("n0", "n1"), threshold=8)
    unknown = _candidate(None, ("n10", "n11"))
    pool = [unknown, copy, lowered, unlike, best, best, default]
    chosen = shortlist(default, pool, 4)
    assert chosen == (default, best, unlike, lowered)
    assert shortlist(default, reversed(pool), 4) == chosen
    assert len(shortlist(default, pool, 99)) == 6
    assert shortlist(default, [], 3) == (default,)
    assert shortlist(default, pool, 1) == (default,)
    assert distance(best, best) == 0 and distance(best, lowered) == 1


def test_orders_of_the_same_groups_are_worth_measuring() -> None:
    one = _candidate(80.0, ("n0", "n1"), ("n0", "n2"))
    other = _candidate(80.0, ("n1", "n2"), ("n0", "n1"))
    assert 0 < distance(one, other) < 1
