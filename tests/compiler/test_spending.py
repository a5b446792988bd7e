"""What a compile may cost: how seconds are held against Inductor's own, and what then is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler import spending
from fusewise.compiler.inductor import cpp_batch
from fusewise.compiler.spending import (
    AWAITED,
    FORWARD_PART,
    LEAST_S,
    MOST_SHARE,
    NOT_AWAITED,
    PROMISE,
    SHARE,
    START_S,
    WAITED,
    GraphSpending,
    Spending,
)

Compile = Callable[..., Any]


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(given_s: float | None = None, traced_s: float = 0.0) -> tuple[Clock, GraphSpending]:
    clock = Clock()
    program = Spending(given_s, clock)
    program.begin()
    clock.now += traced_s
    return clock, program.graph()


def test_a_share_of_the_own_work_may_go_beside_it() -> None:
    clock, purse = begun(traced_s=10.0)
    clock.now += 25.0
    purse.own(20.0, again=True)
    assert purse.extra_s == pytest.approx(5.0)
    assert purse.allowed_s == pytest.approx(SHARE * 30.0)
    assert purse.left() == pytest.approx(SHARE * 30.0 - 5.0)
    # What is chosen may have to be lowered once more.
    assert purse.fits(purse.left() - 10.0) and not purse.fits(purse.left() - 5.0)
    clock.now += 1000.0
    assert purse.left() == 0.0 and not purse.fits(0.0)


def test_small_programs_may_take_what_a_process_takes_to_start() -> None:
    clock, purse = begun()
    purse.own(0.1)
    assert purse.left() < LEAST_S["cpu"]
    # The gate would not take what gains less.
    purse.promise = PROMISE
    assert purse.left() == pytest.approx(LEAST_S["cpu"])
    purse.promise = PROMISE / 2
    assert purse.left() == pytest.approx(LEAST_S["cpu"] / 2)
    clock.now += LEAST_S["cpu"] + 0.1
    purse.end()
    # Once, not for each graph.
    assert purse.program.graph().left() == pytest.approx(0.0)


def test_what_a_graph_leaves_is_the_next_ones_and_its_debts_are_not() -> None:
    clock, purse = begun()
    clock.now += 10.0
    purse.own(10.0)
    purse.end()
    second = purse.program.graph()
    clock.now += 10.0
    second.own(10.0)
    assert second.left() == pytest.approx(2 * SHARE * 10.0)
    clock.now += 500.0
    second.end()
    third = second.program.graph()
    clock.now += 10.0
    third.own(10.0)
    assert third.left() == pytest.approx(SHARE * 10.0)


def test_more_is_allowed_where_a_gain_is_promised() -> None:
    _, purse = begun()
    purse.own(10.0)
    allowed = []
    for promise in (0.0, 0.05, 0.2, 1.0, 10.0):
        purse.promise = promise
        allowed.append(purse.allowed_s)
    assert allowed == sorted(allowed) and len(set(allowed)) > 3
    assert allowed[0] == pytest.approx(SHARE * 10.0)
    assert allowed[-1] == pytest.approx(MOST_SHARE * 10.0)


def test_seconds_of_the_user_are_what_is_left_of_them() -> None:
    clock, purse = begun(60.0, traced_s=10.0)
    clock.now += 25.0
    purse.own(20.0, again=True)
    assert purse.given and purse.left() == pytest.approx(55.0)
    assert purse.looking_s == 15.0
    # Who says how long it may take gets all that he asked for.
    assert purse.fits(1e9)


def test_a_forward_graph_leaves_some_of_the_least_to_its_backward() -> None:
    clock = Clock()
    program = Spending(clock=clock)
    forward = program.graph()
    forward.kind, forward.forward, forward.promise = "cuda", True, PROMISE
    assert forward.left() == pytest.approx(FORWARD_PART * LEAST_S["cuda"])
    clock.now += forward.left()
    forward.end()
    backward = program.graph()
    backward.kind, backward.promise = "cuda", PROMISE
    assert backward.left() == pytest.approx((1 - FORWARD_PART) * LEAST_S["cuda"])


def test_a_process_is_waited_for_where_enough_is_promised() -> None:
    purse = Spending(clock=Clock()).graph()
    # A copy of this process is there at once.
    assert purse.awaits_start
    purse.kind = "cuda"
    waits = []
    for promise in (0.0, NOT_AWAITED, (NOT_AWAITED + AWAITED) / 2, AWAITED, 1.0):
        purse.promise = promise
        waits.append(purse.starting_s / START_S["cuda"])
        assert purse.awaits_start == (promise > NOT_AWAITED)
    assert waits == pytest.approx([0.0, 0.0, 0.5, 1.0, 1.0])


def test_waiting_for_a_process_to_start_is_spent_once_and_half_of_it_beside_the_rest() -> None:
    clock = Clock()
    program = Spending(clock=clock)
    forward = program.graph()
    forward.kind, forward.forward = "cuda", True
    assert forward.starting_s == 0.0
    forward.promise = AWAITED
    assert forward.starting_s == pytest.approx(START_S["cuda"])
    before = forward.left()
    with forward.waiting():
        clock.now += 5.0
    assert 0.0 < forward.left() == pytest.approx(before - WAITED * 5.0)
    assert "5.0 s waited" in forward.end()
    backward = program.graph()
    backward.kind, backward.promise = "cuda", AWAITED
    assert backward.starting_s == pytest.approx(START_S["cuda"] - 5.0)
    left = backward.left()
    with backward.waiting():
        clock.now += 60.0
    # No longer than a start may take: the rest is its own.
    assert backward.starting_s == 0.0
    assert backward.left() == pytest.approx(max(0.0, left - 53.0))


def two_sums(x: torch.Tensor) -> Any:
    y = (x.sin() * x.cos()).softmax(-1)
    return y.sum(0), (y * x.exp()).amax(-1)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The kernels of each translation unit that a compiler was started for."""
    kernels: list[list[str]] = []
    compile_some = cpp_batch._compile

    def counted(library: Any, some: Any, *rest: Any) -> bool:
        kernels.append([kernel.key for kernel in some])
        return compile_some(library, some, *rest)

    monkeypatch.setattr(cpp_batch, "_compile", counted)
    return kernels


def plain_sums(x: torch.Tensor) -> Any:
    """Nothing in it can be foretold, unlike the exponentials of ``two_sums``."""
    y = (x * 2 - x.abs()).relu()
    return y.sum(0), (y * x).amax(-1)


@pytest.fixture
def no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "SHARE", 0.0)
    monkeypatch.setattr(spending, "SHARE_OF_PROMISE", 0.0)
    monkeypatch.setattr(spending, "LEAST_S", {"cpu": 0.0})


def test_a_budget_that_is_too_small_takes_what_is_predicted(
    compile_with: Compile, live: Any, no_budget: None
) -> None:
    x = torch.randn(64, 96)
    live.difference(list(compile_with(two_sums, "measure")(x)), list(two_sums(x)))
    torch._dynamo.reset()
    compile_with(two_sums, "predict")(x)
    hurried, predicted = fusewise.reports()
    assert hurried.chosen is not None and predicted.chosen is not None
    assert hurried.chosen.schedule == predicted.chosen.schedule
    assert hurried.chosen is not hurried.default and hurried.source == "predicted"
    assert hurried.untried


def test_a_budget_that_is_too_small_for_anything_keeps_the_default(
    compile_with: Compile, live: Any, built: list[list[str]], no_budget: None
) -> None:
    x = torch.randn(64, 96)
    live.difference(list(compile_with(plain_sums, "measure")(x)), list(plain_sums(x)))
    (report,) = fusewise.reports()
    assert report.chosen is report.default and report.source == "predicted"
    assert all(candidate.measured_us is None for candidate in report.candidates)
    assert report.untried and "nothing else was timed" in report.chosen.reason
    assert report.cost
    # The kernels of the default, and of nothing else, were built.
    assert len(built) == 1
    # It was a decision, and holds.
    torch._dynamo.reset()
    compile_with(plain_sums, "measure")(x)
    assert fusewise.reports()[-1].source == "store"


def test_a_kernel_that_candidates_share_with_the_default_is_built_once(
    compile_with: Compile, live: Any, built: list[list[str]]
) -> None:
    x = torch.randn(64, 96)
    live.difference(
        list(compile_with(two_sums, "measure", top_k=3, budget_s=60)(x)), list(two_sums(x))
    )
    (report,) = fusewise.reports()
    measured = [c for c in report.candidates if c.status == "measured"]
    assert len(measured) > 1
    # One compiler for the default's, one for all that the others have besides, one for a second
    # contest at the most.
    assert 1 <= len(built) <= 3
    every = [key for keys in built for key in keys]
    assert len(every) == len(set(every))
