"""The fastest of many is told from the lucky, and from what was there before only beyond noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from fusewise.schedule.errors import MeasureError
from fusewise.search.blocks import fastest


def timers(
    us: Sequence[float], noise: float, seed: int = 0, drift: float = 0.0
) -> list[Callable[[], float]]:
    """One clock for each of these times; all drift together, each is off by up to ``noise``."""
    generator = random.Random(seed)
    slowness = 1.0

    def sample(own: float) -> float:
        nonlocal slowness
        slowness += drift
        return own * slowness * generator.uniform(1 - noise, 1 + noise)

    return [lambda own=own: sample(own) for own in us]  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_plainly_faster_is_found(seed: int) -> None:
    us = [10.0, 12.0, 30.0, 8.0, 9.5, 10.0, 11.0]
    assert fastest(timers(us, 0.02, seed, drift=0.001), 5.0) == 3


@pytest.mark.parametrize("seed", range(20))
def test_of_many_that_are_as_good_the_first_stays(seed: int) -> None:
    us = [10.0] * 30
    assert fastest(timers(us, 0.05, seed), 5.0) == 0


def test_one_that_looks_lucky_is_looked_at_again() -> None:
    lucky = iter([1.0] * 3)
    samples = [lambda: 10.0, lambda: next(lucky, 10.0)]
    assert fastest(samples, 5.0) == 0


def test_the_first_is_timed_beside_the_best_however_slow_it_looks() -> None:
    calls = [0, 0]

    def sample(i: int, value: float) -> float:
        calls[i] += 1
        return value

    assert fastest([lambda: sample(0, 100.0), lambda: sample(1, 1.0)], 5.0) == 1
    assert calls[0] > 2


def test_one_alone_is_not_timed() -> None:
    def never() -> float:
        raise AssertionError

    assert fastest([never], 5.0) == 0


def test_a_time_that_is_none_is_an_error() -> None:
    with pytest.raises(MeasureError, match="a time of nan"):
        fastest([lambda: float("nan"), lambda: 1.0], 5.0)
