"""Every choice by itself, then the good ones together: on a real graph, with times made up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch

from fusewise.compiler.finishing_search import finish_search
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor
from fusewise.costmodel.device import device_profile
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.store import default_store_path
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate, Choice, Schedule

FASTER = {Choice("multiply_add", True): 0.9, Choice("parallel_grain", 8192): 0.95}


class Contests:
    """Times every candidate at the product of what its choices are worth."""

    def __init__(self, own: Candidate, broken: Choice | None = None) -> None:
        self.own = own
        self.broken = broken
        self.held: list[list[tuple[Choice, ...]]] = []

    def __call__(self, pairs: Sequence[tuple[Candidate, Program]], seconds: float) -> GraphReport:
        assert seconds > 0
        self.held.append([candidate.schedule.codegen for candidate, _ in pairs])
        if any(self.broken in codegen for codegen in self.held[-1]):
            raise MeasureError("died", subject="test", remedy="none")
        marked = [self.own]
        for candidate, _ in pairs:
            us = 100.0
            for choice in candidate.schedule.codegen:
                us *= FASTER.get(choice, 1.0)
            marked.append(
                msgspec.structs.replace(
                    candidate, measured_us=us, status="measured", accepted=us < 99.0
                )
            )
        return GraphReport("inference", "measure", candidates=marked)

    @property
    def tried(self) -> set[frozenset[Choice]]:
        return {frozenset(codegen) for contest in self.held for codegen in contest}


@pytest.fixture
def loops(live: Any) -> Any:
    """Loops that run on both threads, where there are two, and multiply and add."""

    def f(x: Any, y: Any) -> Any:
        return torch.nn.functional.gelu(x * y + x), (x * 3 + y).sum(1)

    make = live.Make("cpu", torch.float32)
    (graph,) = live.capture(live.UserProgram(f, (make.tensor(80, 100), make.tensor(80, 100))))
    return graph


def searched(graph: Any, contest: Contests, *, together: int = 4, seconds: float = 60.0) -> None:
    profile = device_profile(torch.device("cpu"), default_store_path().parent)
    with graph.context():
        finish_search(
            graph.compile,
            graph.stock,
            contest.own,
            Predictor(Roofline(profile), profile, {}),
            key="test",
            contest=contest,
            default_us=100.0,
            together=together,
            contest_s=1.0,
            until=time.monotonic() + seconds,
        )


def own(graph: Any, *codegen: Choice) -> Candidate:
    return Candidate(
        schedule=Schedule(plan=graph.surveyed.default, codegen=codegen),
        origin="default",
        groups=len(graph.surveyed.default.groups),
        measured_us=100.0,
        accepted=True,
        status="measured",
    )


def test_what_gains_by_itself_is_put_together(loops: Any, profiled: Any) -> None:
    contest = Contests(own(loops))
    searched(loops, contest)
    assert {frozenset({choice}) for choice in FASTER} <= contest.tried
    assert set(contest.held[-1][-1]) == set(FASTER)


def test_one_at_a_time_and_no_longer_than_there_is_time(loops: Any, profiled: Any) -> None:
    contest = Contests(own(loops))
    searched(loops, contest, together=1)
    assert all(len(held) == 1 for held in contest.held) and len(contest.held) >= 2
    hurried = Contests(own(loops))
    searched(loops, hurried, seconds=-1.0)
    assert hurried.held == []


def test_what_is_chosen_already_is_not_tried_again(loops: Any, profiled: Any) -> None:
    chosen = Choice("multiply_add", True)
    contest = Contests(own(loops, chosen))
    searched(loops, contest)
    assert contest.tried and all(chosen in codegen for codegen in contest.tried)
    assert frozenset({chosen}) not in contest.tried


def test_a_candidate_that_breaks_the_process_costs_nobody_else(loops: Any, profiled: Any) -> None:
    contest = Contests(own(loops), broken=Choice("vector_bits", 256))
    searched(loops, contest, together=1)
    assert frozenset({Choice("multiply_add", True)}) in contest.tried
