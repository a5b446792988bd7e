"""Losses and other outputs of few elements: what is right by luck holds nobody else to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusewise.compiler.contest import graph_job
from fusewise.compiler.inductor.program import load_program
from fusewise.compiler.measuring.draws import judge_few
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.measuring.job import ProgramResult
from fusewise.compiler.measuring.prepared import Loaded, judge, resolution
from fusewise.compiler.measuring.runs import CpuRun, private_inputs
from fusewise.compiler.measuring.worker import Worker
from fusewise.search.gate import outputs_off

Off = Callable[[int], tuple[float, float]]


def loss_and_square(x: Any, target: Any) -> Any:
    return ((x - target) ** 2).mean(), x * x


def outcome(live: Any, *programs: Off, seconds: float = 60.0) -> tuple[list[list[int]], list[int]]:
    """Outputs in which programs are off, the first held to be the default; calls of each.

    Each program says by how much its two results are off, relative, at its n-th call.
    """
    make = live.Make("cpu", torch.float32)
    args = (make.tensor(40, 30), make.tensor(40, 30))
    (graph,) = live.capture(live.UserProgram(loss_and_square, args))
    job = graph_job(
        graph.compile, key="g", device="cpu", observed=observe(graph.inputs), forward_key=None
    )
    worker = Worker()
    worker.prepare(job)
    prepared = worker._graph
    assert prepared is not None and prepared.reference is not None
    stock = load_program(graph.stock.source, graph.stock.constants, graph.stock.settings)
    counts = [0] * len(programs)

    def wrapped(place: int, off: Off) -> Callable[[list[Any]], Any]:
        def call(inputs: list[Any]) -> Any:
            loss, square = stock(inputs)
            by = off(counts[place])
            counts[place] += 1
            return loss * (1 + by[0]), square * (1 + by[1])

        return call

    calls: list[Any] = [wrapped(i, off) for i, off in enumerate(programs)]
    run = CpuRun(stock, prepared.inputs, [])
    loaded = [Loaded(run, [*call(private_inputs(prepared.inputs))]) for call in calls]
    results = [ProgramResult(str(i)) for i in range(len(calls))]
    judge(prepared, loaded, results)
    judge_few(prepared, calls, loaded, results, seconds)
    resolutions = [resolution(v) for v in loaded[0].outputs]
    own = results[0].errors
    return [outputs_off(result.errors, own, resolutions) for result in results[1:]], counts


def lucky_once(call: int) -> tuple[float, float]:
    return (0.0 if call == 0 else 1e-3, 0.0)


def test_a_default_that_was_right_by_luck_is_drawn_again(live: Any) -> None:
    off, counts = outcome(live, lucky_once, lambda _: (1e-3, 0.0), lambda _: (1e-2, 0.0))
    # Losses of two draws differ by more than that: each is held against its own reference.
    assert off == [[], [0]]
    assert counts == [8, 8, 8]


def test_what_is_off_in_large_outputs_is_not_drawn_again(live: Any) -> None:
    off, counts = outcome(live, lucky_once, lambda _: (1e-3, 1e-3))
    assert off == [[0, 1]] and counts == [1, 1]


def test_without_time_the_first_draw_counts(live: Any) -> None:
    off, counts = outcome(live, lucky_once, lambda _: (1e-3, 0.0), seconds=-1.0)
    assert off == [[0]] and counts == [1, 1]


def test_what_fails_on_other_values_is_judged_as_it_was(live: Any) -> None:
    def fails(call: int) -> tuple[float, float]:
        if call:
            raise ValueError("not these")
        return 1e-3, 0.0

    off, _ = outcome(live, lucky_once, fails)
    assert off == [[0]]
