"""What is worth timing of a graph, in which order, and what it promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fusewise.compiler.asking import Asked, Offers, worth_timing
from fusewise.costmodel.gains import Kernel
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.offers import Offer

MATH, GRAIN = Choice("vector_math", True), Choice("parallel_grain", 2048)
STORED, INLINED = Choice("node:a", "store"), Choice("inline_ops", 8)
OWN_US = 100.0


def candidate(us: float, *lowering: Choice) -> Candidate:
    schedule = Schedule(lowering=lowering)
    return Candidate(schedule=schedule, origin="test", groups=1, predicted_us=us)


def kernel(us: float, doubt: float) -> Counter[Kernel]:
    """One kernel that takes ``us``, or by so many times less or more."""
    return Counter([Kernel(f"{us}", us, us / doubt, us * doubt)])


class Looked:
    """A survey of one lowering of which only times of single kernels are known."""

    def __init__(self, candidates: Sequence[Candidate], doubt: float) -> None:
        self.candidates = tuple(candidates)
        self._doubt = doubt

    def kernels(self, one: Candidate, _: object) -> Counter[Kernel]:
        assert one.predicted_us is not None
        return kernel(one.predicted_us, self._doubt)


def asked(others: Sequence[Candidate], offers: Offers, doubt: float = 1.0) -> Asked:
    default = candidate(OWN_US)
    surveys: list[Any] = [Looked([one], doubt) for one in (default, *others)]
    predictor: Any = SimpleNamespace(profile=SimpleNamespace(kind="cpu"), tunes=False)
    return worth_timing(default, others, surveys, predictor, offers, 0.0)


def nothing(_: Candidate, __: float) -> list[Offer]:
    return []


def choices(found: Asked) -> list[tuple[Choice, ...]]:
    """The choices of each candidate, in their order."""
    return [(*c.schedule.lowering, *c.schedule.codegen) for c in found.candidates]


def test_what_makes_nothing_slower_goes_with_what_is_timed() -> None:
    def sure(_: Candidate, __: float) -> list[Offer]:
        return [Offer((MATH,), 10.0, "", 10.0), Offer((GRAIN, MATH), 15.0, "", 10.0)]

    found = choices(asked([candidate(70.0, STORED), candidate(80.0, INLINED)], sure))
    # There may be time for one.
    assert found[:3] == [(STORED, MATH), (MATH,), (GRAIN, MATH)]
    assert (INLINED,) in found


def test_what_may_be_slower_is_timed_by_itself_too() -> None:
    def unsure(_: Candidate, __: float) -> list[Offer]:
        return [Offer((GRAIN,), 10.0, "")]

    found = asked([candidate(70.0, STORED)], unsure)
    assert choices(found) == [(STORED, GRAIN), (STORED,), (GRAIN,)]


@pytest.mark.parametrize(
    ("us", "doubt", "promise"),
    [
        pytest.param(90.0, 1.0, 0.1, id="little, for sure"),
        pytest.param(30.0, 1.0, 0.7, id="much, for sure"),
        pytest.param(90.0, 3.0, 0.0, id="little, unsure"),
        pytest.param(30.0, 3.0, 0.4, id="much, however unsure"),
    ],
)
def test_much_that_is_predicted_is_promised_however_unsure(
    us: float, doubt: float, promise: float
) -> None:
    found = asked([candidate(us, STORED)], nothing, doubt)
    assert found.promise == pytest.approx(promise)
