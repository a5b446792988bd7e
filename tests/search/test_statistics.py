"""Samples, interleaving and the acceptance gate."""

from __future__ import annotations

import math
import random

import pytest

from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.gate import judge
from fusewise.search.interleave import interleave
from fusewise.search.samples import interval_rank, median_interval, summary


class Clock:
    """Time that passes only when a run takes some."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[int] = []

    def __call__(self) -> float:
        return self.now

    def run(self, i: int, us: float, noise: float = 0.0):
        rng = random.Random(i)

        def once() -> float:
            taken = us * (1 + noise * rng.gauss(0, 1))
            self.now += taken
            self.order.append(i)
            return taken

        return once


@pytest.mark.parametrize(("count", "rank"), [(5, 0), (6, 1), (8, 1), (9, 2), (20, 6), (100, 40)])
def test_interval_ranks_are_those_of_the_tables(count: int, rank: int) -> None:
    assert interval_rank(count, 0.95) == rank


def test_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(1000):
        low, high = median_interval([rng.expovariate(1) for _ in range(15)])
        hits += low <= math.log(2) <= high
    assert hits >= 940


def test_summary_of_known_samples() -> None:
    s = summary([4.0, 1.0, 3.0, 2.0, 5.0, 100.0])
    assert (s.count, s.median, s.low, s.high) == (6, 3.5, 1.0, 100.0)
    with pytest.raises(MeasureError):
        summary([])
    with pytest.raises(MeasureError):
        summary([1.0, math.nan])


def test_interleave_times_each_once_a_round_in_changing_order() -> None:
    clock = Clock()
    runs = [clock.run(i, 1.0) for i in range(3)]
    times = interleave(runs, budget_s=1e9, min_rounds=8, max_rounds=10, clock=clock)
    rounds = [tuple(clock.order[at : at + 3]) for at in range(0, len(clock.order), 3)]
    assert all(sorted(r) == [0, 1, 2] for r in rounds)
    assert len(set(rounds)) > 1
    assert len({len(t) for t in times}) == 1


def test_interleave_stops_when_settled_when_spent_and_at_the_most_rounds() -> None:
    settled, spent, capped = Clock(), Clock(), Clock()
    assert len(interleave([settled.run(0, 1.0)], budget_s=1e9, clock=settled)[0]) == 12
    runs = [spent.run(i, 1.0, 0.3) for i in range(2)]
    assert len(interleave(runs, budget_s=9.0, clock=spent)[0]) <= 5
    runs = [capped.run(i, 1.0, 0.3) for i in range(2)]
    assert len(interleave(runs, budget_s=1e9, max_rounds=30, clock=capped)[0]) == 30
    once = Clock()
    assert len(interleave([once.run(0, 5.0)], budget_s=0.0, clock=once)[0]) == 1


def test_interleave_drops_the_clearly_slower_and_never_the_baseline() -> None:
    clock = Clock()
    runs = [clock.run(0, 10.0, 0.01), clock.run(1, 20.0, 0.01), clock.run(2, 5.0, 0.01)]
    times = interleave(runs, budget_s=1e9, max_rounds=40, clock=clock)
    assert len(times[1]) == 5
    assert len(times[0]) == len(times[2]) > 5


def test_interleave_goes_on_without_those_that_cannot_win_and_ends_with_the_last() -> None:
    # The second is sure to miss the threshold, of the third it takes longer to tell.
    clock = Clock()
    runs = [clock.run(0, 10.0, 0.01), clock.run(1, 10.5, 0.01), clock.run(2, 9.9, 0.1)]
    times = interleave(runs, budget_s=1e9, max_rounds=60, threshold=0.99, clock=clock)
    assert 12 <= len(times[1]) < len(times[0]) == len(times[2])
    alone = Clock()
    # However little is known of the baseline's own time.
    lost = [alone.run(0, 10.0, 0.1), alone.run(1, 12.0, 0.1)]
    times = interleave(lost, budget_s=1e9, max_rounds=400, threshold=0.99, clock=alone)
    assert len(times[0]) == len(times[1]) < 400


def test_interleave_races_where_only_the_fastest_is_wanted() -> None:
    clock = Clock()
    runs = [
        clock.run(0, 10.0, 0.01),
        clock.run(1, 5.0, 0.01),
        clock.run(2, 9.0, 0.01),
        clock.run(3, 5.2, 0.01),
        clock.run(4, 1.0, 0.01),
    ]
    sound = [True, True, True, True, False]
    times = interleave(
        runs, budget_s=1e9, max_rounds=60, threshold=0.99, may_win=sound, clock=clock
    )
    rounds = [len(taken) for taken in times]
    # Far behind the best is out at once, near to it once that is sure; what may not win is looked
    # at once and beats nobody.
    assert rounds[2] == 5 and rounds[4] == 1
    assert rounds[0] == rounds[1] >= rounds[3] >= 12
    # Whose times are all wanted gets them.
    again = Clock()
    runs = [again.run(0, 10.0, 0.01), again.run(1, 5.0, 0.01), again.run(2, 9.0, 0.01)]
    every = interleave(runs, budget_s=1e9, max_rounds=60, threshold=0.99, clock=again)
    assert len({len(taken) for taken in every}) == 1


def test_interleave_sees_what_is_plainly_faster_however_little_time_there_is() -> None:
    clock = Clock()
    runs = [clock.run(0, 10.0, 0.01), clock.run(1, 2.0, 0.01), clock.run(2, 9.0, 0.01)]
    times = interleave(runs, budget_s=0.0, threshold=0.99, clock=clock)
    assert [len(taken) for taken in times] == [3, 3, 1]
    gate = judge(times, [[0.0]] * 3, resolutions=[0.0])
    assert gate.chosen == 1
    none = Clock()
    runs = [none.run(0, 10.0, 0.01), none.run(1, 7.0, 0.01)]
    times = interleave(runs, budget_s=0.0, threshold=0.99, clock=none)
    assert [len(taken) for taken in times] == [1, 1]


def test_interleave_refuses_times_that_are_none() -> None:
    with pytest.raises(MeasureError, match="run 1"):
        interleave([lambda: 1.0, lambda: math.nan], budget_s=1.0)


def _rounds(rng: random.Random, ratios: list[float], rounds: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in ratios]
    drift = 1.0
    for _ in range(rounds):
        drift *= 1 + rng.gauss(0, 0.02)
        for i, ratio in enumerate(ratios):
            tail = rng.expovariate(10) if rng.random() < 0.1 else 0
            times[i].append(100 * ratio * drift * (1 + abs(rng.gauss(0, 0.02)) + tail))
    return times


def test_gate_seldom_accepts_what_is_no_faster() -> None:
    rng = random.Random(2)
    wrong = sum(
        judge(_rounds(rng, [1.0] * 8, 20), [[0.0]] * 8, resolutions=[0.0], margin=0.0).chosen != 0
        for _ in range(400)
    )
    assert wrong <= 400 * 0.05


def test_gate_finds_what_is_faster() -> None:
    rng = random.Random(3)
    right = sum(
        judge(_rounds(rng, [1.0, 0.99, 0.9, 1.1], 20), [[0.0]] * 4, resolutions=[0.0]).chosen == 2
        for _ in range(100)
    )
    assert right >= 95


@pytest.mark.parametrize(
    ("rounds", "accepted"),
    [([4.0, 4.9, 3.0], True), ([4.0, 5.1, 3.0], False), ([1.0, 1.0], False)],
    ids=["less than half", "a round of half", "two rounds"],
)
def test_a_few_rounds_are_enough_where_the_gain_is_plain(
    rounds: list[float], *, accepted: bool
) -> None:
    times = [[10.0] * len(rounds), rounds]
    result = judge(times, [[0.0]] * 2, resolutions=[0.0])
    assert (result.chosen == 1) is accepted
    assert ("in the slowest" if accepted else "too few") in result.rulings[1].reason


def test_gate_reasons() -> None:
    fast, slow = [8.0] * 12, [11.0] * 12
    times = [[10.0] * 12, fast, fast, fast, slow, [], [9.95] * 12, [8.0] * 4]
    errors = [[0.1, e] for e in (1e-3, 2.4e-3, 3e-3, math.nan, 1e-3, 1e-3, 1e-3, 1e-3)]
    result = judge(times, errors, resolutions=[5e-4, 5e-4])
    assert result.chosen == 1
    assert [r.accepted for r in result.rulings] == [True, True] + [False] * 6
    words = ["own schedule", "0.800 of", "error 3", "error nan", "not faster: ", "not measured"]
    words += ["not faster by 1%", "too few"]
    for ruling, word in zip(result.rulings, words, strict=True):
        assert word in ruling.reason
    candidates = [Candidate(schedule=Schedule(), origin="beam", groups=1) for _ in times]
    marked = result.mark(candidates, times)
    assert marked[1].accepted and marked[1].measured_us == 8.0 and marked[1].rounds == 12
    assert marked[5].status == "predicted" and marked[5].reason == "was not measured"


def test_gate_needs_the_default_and_judges_each_output() -> None:
    with pytest.raises(MeasureError):
        judge([[], [1.0]], [[0.0], [0.0]], resolutions=[0.0])
    times = [[2.0] * 12, [1.0] * 12]
    fewer = judge(times, [[0.0, 0.0], [0.0]], resolutions=[0.0, 0.0])
    assert fewer.chosen == 0 and "1 outputs" in fewer.rulings[1].reason
    # Where the default itself gives no number, a candidate is not judged by that output.
    assert judge(times, [[math.nan, 0.0], [math.nan, 0.0]], resolutions=[0.0, 0.0]).chosen == 1
    assert judge(times, [[math.nan, 0.0], [0.0, 0.5]], resolutions=[0.0, 0.0]).chosen == 0
