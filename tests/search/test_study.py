"""The study over choices, and the shortlist."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from msgspec.structs import replace

from fusewise.schedule.errors import MeasureError, OptionError, StoreError
from fusewise.schedule.plan import Step, build_plan
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.shortlist import distance, shortlist
from fusewise.search.study import Choices, ChoiceSpace, Study, StudyResult

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


def run_study(space: ChoiceSpace, evaluate: Any, *, n_trials: int, **given: Any) -> StudyResult:
    """A study that is begun or taken up, and run once."""
    opening = {k: given.pop(k) for k in ("name", "storage", "seed", "objective") if k in given}
    return Study(space, **opening).run(evaluate, n_trials=n_trials, **given)


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
    with pytest.raises(OptionError, match="another objective"):
        Study(SPACE, name="kept", storage=storage, objective="pareto")
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


def test_a_study_goes_on_with_more_and_with_fewer_choices(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    small = ChoiceSpace({"threshold": (4, 8, 16)}, {"threshold": 4})
    full = {"tiling": True, "mode": "a"}

    def evaluate(choices: Choices) -> list[Candidate]:
        return Evaluate()({**full, **choices})

    first = run_study(small, evaluate, name="grows", storage=storage, n_trials=3)
    rest = Evaluate()
    second = run_study(SPACE, rest, name="grows", storage=storage, n_trials=18)
    # What was tried with a choice not yet there was tried with it at its default.
    assert len(second.trials) == 18 and second.fresh == 15
    assert not [c for c in rest.seen if c["tiling"] is True and c["mode"] == "a"]
    again = run_study(small, evaluate, name="grows", storage=storage, n_trials=18)
    assert again.fresh == 0 and len(again.trials) == 18
    assert {t.us for t in first.trials} < {t.us for t in again.trials}


def test_what_a_killed_process_left_is_no_trial(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    run_study(SPACE, Evaluate(), name="killed", storage=storage, n_trials=3, seed=1)
    left = optuna.load_study(study_name="killed", storage=storage)
    # Asked and never told, as in the middle of a trial; and enqueued before that.
    left.ask()
    left.enqueue_trial({"threshold": 16, "tiling": False, "mode": "c"})
    result = run_study(SPACE, Evaluate(), name="killed", storage=storage, n_trials=5, seed=1)
    assert result.fresh == 2 and len(result.trials) == 5


def test_times_of_an_earlier_sitting_are_told_by_its_default(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    study = Study(SPACE, name="scaled", storage=storage)
    assert study.baseline_us is None
    lessons = iter(("one", ""))
    study.run(Evaluate(), n_trials=2, baseline=lambda: 123.0, learned=lambda: next(lessons))
    again = Study(SPACE, name="scaled", storage=storage)
    assert again.baseline_us == 123.0 and again.learned == ("one",)


def test_pruned_trials_are_no_best_ones_and_are_not_tried_again() -> None:
    seen: list[Choices] = []

    def evaluate(choices: Choices) -> list[Candidate]:
        seen.append(choices)
        (candidate,) = Evaluate()(choices)
        if choices["threshold"] == 4:
            return [candidate]
        # By prediction better than all, but only by prediction.
        return [replace(candidate, status="predicted", measured_us=None, predicted_us=1.0)]

    result = run_study(SPACE, evaluate, name="pruned", n_trials=18)
    assert len(seen) == 18
    assert sum(trial.pruned for trial in result.trials) == 12
    assert result.best is not None and result.best.choices["threshold"] == 4
    assert not result.best.pruned


def test_what_may_give_more_is_tried_again_and_keeps_its_best() -> None:
    small = ChoiceSpace({"threshold": (4, 8)}, {"threshold": 4})
    times = iter((50.0, 40.0, 45.0, 30.0, 60.0))
    seen: list[Choices] = []

    def evaluate(choices: Choices) -> list[Candidate]:
        seen.append(choices)
        lowering = (Choice("threshold", choices["threshold"]), Choice("turn", len(seen)))
        (candidate,) = Evaluate()({"threshold": 4, "tiling": True, "mode": "a"})
        return [
            replace(candidate, schedule=Schedule(lowering=lowering), measured_us=next(times)),
        ]

    result = run_study(
        small, evaluate, name="again", n_trials=9, again=lambda _: len(seen) < 5, seed=0
    )
    assert result.fresh == len(seen) == 5
    assert len(result.trials) == 2
    assert result.best is not None and result.best.us == 30.0


def test_no_trial_is_begun_that_would_be_late() -> None:
    now = [0.0]

    def evaluate(choices: Choices) -> list[Candidate]:
        now[0] += 10.0
        return Evaluate()(choices)

    result = run_study(SPACE, evaluate, name="late", n_trials=9, seconds=34, clock=lambda: now[0])
    assert result.fresh == 3


def test_two_objectives() -> None:
    def evaluate(choices: Choices) -> list[Candidate]:
        (candidate,) = Evaluate()(choices)
        # The fastest needs the most memory.
        return [replace(candidate, peak_bytes=int(200 - (candidate.measured_us or 0)))]

    both = run_study(SPACE, evaluate, name="both", n_trials=12, objective="pareto", seed=3)
    assert len(both.trials) == 12
    lean = run_study(SPACE, evaluate, name="lean", n_trials=18, objective="memory")
    fast = run_study(SPACE, evaluate, name="fast", n_trials=18)
    assert lean.best is not None and fast.best is not None
    assert lean.best.us == max(t.us for t in lean.trials)
    assert fast.best.us == min(t.us for t in fast.trials)
    # Without a measured peak there is nothing to go by.
    failed = run_study(SPACE, Evaluate(), name="none", n_trials=2, objective="memory")
    assert failed.best is None


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
