"""The measuring process: what it runs on, what it finds wrong, and that nothing in it is fatal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fusewise.compiler.contest import (
    announce,
    draws_random_numbers,
    graph_job,
    input_names,
    output_names,
)
from fusewise.compiler.inductor.program import load_program
from fusewise.compiler.measuring import worker as worker_module
from fusewise.compiler.measuring.client import MeasuringProcess, measuring_process
from fusewise.compiler.measuring.device import release_much
from fusewise.compiler.measuring.inputs import observe
from fusewise.compiler.measuring.job import Budget, GraphJob, ProgramJob
from fusewise.compiler.measuring.quiet import Quiet
from fusewise.compiler.measuring.runs import CpuRun, private_inputs
from fusewise.compiler.measuring.worker import Worker
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule
from fusewise.search.gate import judge

QUICK = Budget(seconds=0.2, min_rounds=12, max_rounds=30)


def job_of(graph: Any, device: str, *, forward_key: str | None = None) -> GraphJob:
    """What the pipeline would send of a graph."""
    seen = observe(graph.inputs)
    return graph_job(
        graph.compile, key=graph.kind, device=device, observed=seen, forward_key=forward_key
    )


def program_job(name: str, program: Any) -> ProgramJob:
    return ProgramJob(name, program.source, program.constants, program.settings)


def alone(graph: Any) -> Any:
    """Program of the plan that fuses nothing."""
    names = [node.name for node in graph.surveyed.problem.nodes]
    return graph.generate(Schedule(plan=unfused(names)))


@pytest.fixture(scope="module")
def process() -> Iterator[MeasuringProcess]:
    """A measuring process for the CPU."""
    started = MeasuringProcess("cpu")
    yield started
    started.kill()


def test_candidates_are_checked_and_timed_in_one_run(live: Any, device: str) -> None:
    (graph,) = live.captured("layer_norm", device)
    worker = Worker()
    worker.prepare(job_of(graph, device))
    jobs = [program_job("default", graph.stock), program_job("alone", alone(graph))]
    result = worker.measure(jobs, QUICK)
    assert [program.id for program in result.programs] == ["default", "alone"]
    assert (result.reference, result.clock) == (
        "fp64",
        "calls" if device == "cpu" else "cuda graph",
    )
    assert result.resolutions == [torch.finfo(torch.float32).eps]
    default, other = result.programs
    # One that is clearly slower drops out early.
    assert len(default.samples) >= len(other.samples) > 0
    for program in result.programs:
        assert program.failure == "" and 0 < program.errors[0] < 1e-6
        assert min(program.samples) > 0
    assert {"inputs", "reference", "compile", "timing"} <= set(result.seconds)


def test_program_that_computes_something_else_is_never_taken(live: Any, device: str) -> None:
    def right(x: Any, y: Any) -> Any:
        return (x * 0.5).exp(), (x + y).sum(1)

    def wrong(x: Any, y: Any) -> Any:
        return (x * 0.5).exp(), (x + y * 1.01).sum(1)

    make = live.Make(device, torch.float32)
    args = (make.tensor(40, 30), make.tensor(40, 30) + 2)
    (graph,), (other,) = (live.capture(live.UserProgram(f, args)) for f in (right, wrong))
    worker = Worker()
    worker.prepare(job_of(graph, device))
    result = worker.measure(
        [program_job("default", graph.stock), program_job("wrong", other.stock)], QUICK
    )
    default, candidate = result.programs
    assert candidate.errors[0] == default.errors[0] and candidate.errors[1] > 1e-3
    # However fast it is.
    times = [[100.0] * 50, [1.0] * 50]
    gate = judge(times, [default.errors, candidate.errors], resolutions=result.resolutions)
    assert gate.chosen == 0 and "error" in gate.rulings[1].reason


def test_overwritten_inputs_are_checked_as_outputs(live: Any, device: str) -> None:
    (graph,) = live.captured("adam_step", device)
    worker = Worker()
    worker.prepare(job_of(graph, device))
    result = worker.measure(
        [program_job("default", graph.stock), program_job("alone", alone(graph))], QUICK
    )
    changed = [
        i
        for i, (a, b) in enumerate(
            zip(graph.inputs, graph.eager()[-len(graph.inputs) :], strict=True)
        )
        if not torch.equal(a, b)
    ]
    for program in result.programs:
        assert len(program.errors) >= len(changed) > 0
        assert max(program.errors) < 1e-5


def test_every_round_starts_from_the_same_values(live: Any) -> None:
    (graph,) = live.captured("adam_step")
    call = load_program(graph.stock.source, graph.stock.constants, graph.stock.settings)
    given = private_inputs(graph.inputs)
    before = private_inputs(given)
    overwritten = [
        i
        for i, (a, b) in enumerate(zip(before, graph.eager()[-len(before) :], strict=True))
        if not torch.equal(a, b)
    ]
    seen: list[list[torch.Tensor]] = []

    def watched(inputs: list[Any]) -> Any:
        seen.append(private_inputs(inputs))
        return call(inputs)

    run = CpuRun(watched, given, overwritten)
    seen.clear()
    for _ in range(3):
        assert run() > 0
    # A round that another program disturbed is taken again.
    assert len(seen) >= 3 * run.repeats and len(seen) % run.repeats == 0
    for first in seen[:: run.repeats]:
        assert all(torch.equal(a, b) for a, b in zip(first, before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_a_window_is_for_what_a_round_takes_when_nobody_disturbs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected: list[float] = []

    def hindered(_: list[Any]) -> tuple[()]:
        time.sleep(others_s)
        return ()

    monkeypatch.setattr(Quiet, "expect", lambda _, seconds: expected.append(seconds))
    others_s = 0.06
    run = CpuRun(hindered, [], [])
    assert len(expected) == 1
    others_s = 0.0
    run()
    assert len(expected) == 2 and expected[1] < expected[0]


def test_a_call_that_takes_long_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def slow(_: list[Any]) -> None:
        calls.append(time.monotonic())
        time.sleep(0.2)

    # Somebody else runs in every window.
    monkeypatch.setattr(
        Quiet, "disturbed", property(lambda _: True, lambda *_: None), raising=False
    )
    run = CpuRun(slow, [], [])
    assert (len(calls), run.repeats) == (1, 1)
    assert 0.2 <= run.takes_s < 2.0
    assert 0.2 <= run() < 2.0
    assert len(calls) == 2


def test_programs_that_there_is_no_time_to_compare_are_not_run(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_LEAST_CALLING_S", 0.0)
    (graph,) = live.captured("layer_norm", "cpu")
    worker = Worker()
    jobs = [program_job("default", graph.stock), program_job("alone", alone(graph))]
    for within_s, times in ((0.0, 1), (60.0, 2)):
        worker.prepare(job_of(graph, "cpu"))
        result = worker.measure(jobs, Budget(seconds=1e-9, within_s=within_s))
        assert sum(bool(program.samples) for program in result.programs) == times
        assert ("too long to compare it in 0 s" in result.programs[1].failure) == (times == 1)


def test_overwritten_indices_are_put_back_before_every_call(live: Any) -> None:
    def f(ids: Any, table: Any) -> Any:
        rows = table[ids]
        ids.add_(1)
        return rows

    make = live.Make("cpu", torch.float32)
    # A second call on what the first one left would be out of bounds.
    (graph,) = live.capture(live.UserProgram(f, (torch.arange(10), make.tensor(10, 8))))
    worker = Worker()
    worker.prepare(job_of(graph, "cpu"))
    jobs = [program_job("default", graph.stock), program_job("alone", alone(graph))]
    for program in worker.measure(jobs, QUICK).programs:
        assert program.failure == "" and program.errors == [0.0, 0.0]
        assert program.samples


def test_backward_runs_on_what_the_forward_saved(live: Any, device: str) -> None:
    forward, backward = live.captured("cross_entropy", device)
    worker = Worker()
    worker.prepare(job_of(forward, device))
    worker.measure([program_job("default", forward.stock)], QUICK)
    worker.prepare(job_of(backward, device, forward_key="forward"))
    made = dict(zip(input_names(backward.compile.gm), worker._graph.inputs, strict=True))
    outputs = forward.eager()
    known = dict(zip(output_names(forward.compile.gm), outputs, strict=False))
    known |= dict(zip(input_names(forward.compile.gm), forward.inputs, strict=True))
    shared = [name for name in made if name in known]
    assert len(shared) >= 3
    integers = [name for name in shared if not made[name].dtype.is_floating_point]
    assert integers
    for name in integers:
        assert torch.equal(made[name], known[name])
    result = worker.measure(
        [program_job("default", backward.stock), program_job("alone", alone(backward))], QUICK
    )
    assert all(max(program.errors) < 1e-5 for program in result.programs)


@pytest.mark.parametrize(
    ("window", "padding"),
    [
        ((5, 3), (2, 0)),
        pytest.param(3, 1, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
    ],
)
def test_pooling_is_measured_though_nothing_is_known_of_its_forward(
    live: Any, device: str, window: Any, padding: Any
) -> None:
    """What was saved of it says where in its window each element was, padding left out."""

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x.sin(), window, 2, padding).exp().sum()

    x = live.Make(device, torch.float32).tensor(2, 3, 12, 16).requires_grad_()
    _, backward = live.capture(live.UserProgram(pooled, (x,), training=True))
    worker = Worker()
    worker.prepare(job_of(backward, device))
    (program,) = worker.measure([program_job("default", backward.stock)], QUICK).programs
    assert program.failure == "" and program.samples


def test_random_graphs_are_compared_with_the_default(live: Any, device: str) -> None:
    forward, backward = live.captured("dropout", device)
    assert draws_random_numbers(forward.compile.gm)
    assert not draws_random_numbers(backward.compile.gm)
    worker = Worker()
    worker.prepare(job_of(forward, device))
    result = worker.measure(
        [program_job("default", forward.stock), program_job("alone", alone(forward))], QUICK
    )
    assert result.reference == "default"
    default, candidate = result.programs
    assert max(default.errors) == 0
    assert max(candidate.errors) < 1e-6


@pytest.mark.parametrize(("p", "random"), [(0.0, False), (0.2, True)])
def test_attention_draws_numbers_only_with_dropout(live: Any, p: float, random: bool) -> None:
    def f(q: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=p)

    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    forward, _ = live.capture(live.UserProgram(f, (q,), training=True))
    assert draws_random_numbers(forward.compile.gm) is random


def test_candidate_that_fails_costs_only_itself(live: Any, process: MeasuringProcess) -> None:
    (graph,) = live.captured("layer_norm")
    process.prepare(job_of(graph, "cpu"))
    good = program_job("default", graph.stock)
    bad = ProgramJob("bad", "raise ValueError('no such thing')", {}, {})
    result = process.measure([good, bad, program_job("alone", alone(graph))], QUICK, 60)
    assert [program.failure for program in result.programs] == [
        "",
        "ValueError: no such thing",
        "",
    ]
    assert [bool(program.samples) for program in result.programs] == [True, False, True]


def test_request_that_cannot_be_met_is_told_and_survived(
    live: Any, process: MeasuringProcess
) -> None:
    (graph,) = live.captured("layer_norm")
    job = job_of(graph, "cpu")
    process.prepare(GraphJob(**(vars(job) | {"device": "nowhere"})))
    with pytest.raises(MeasureError, match="nowhere") as refused:
        process.measure([program_job("default", graph.stock)], QUICK, 60)
    assert "cpu" in refused.value.subject and "predict" in refused.value.remedy
    process.prepare(job)
    assert process.measure([program_job("default", graph.stock)], QUICK, 60).programs[0].errors


@pytest.fixture
def doomed() -> Iterator[MeasuringProcess]:
    """The measuring process of the CPU, gone after the test whatever becomes of it there."""
    process = measuring_process("cpu")
    yield process
    process.kill()


def test_process_that_hangs_is_given_up(live: Any, doomed: MeasuringProcess) -> None:
    (graph,) = live.captured("layer_norm")
    os.kill(doomed._process.pid, signal.SIGSTOP)
    announce(job_of(graph, "cpu"))
    with pytest.raises(MeasureError, match="no answer within 0 s"):
        doomed.measure([program_job("default", graph.stock)], QUICK, 0.2)
    assert not doomed.alive
    assert measuring_process("cpu") is not doomed


def test_process_that_died_is_told_and_replaced(live: Any, doomed: MeasuringProcess) -> None:
    (graph,) = live.captured("layer_norm")
    assert measuring_process("cpu") is doomed
    doomed.prepare(job_of(graph, "cpu"))
    os.kill(doomed._process.pid, signal.SIGKILL)
    doomed._process.wait()
    with pytest.raises(MeasureError, match="exit status -9"):
        doomed.measure([program_job("default", graph.stock)], QUICK, 60)
    second = measuring_process("cpu")
    assert second is not doomed and second.alive


@pytest.mark.gpu
def test_memory_that_is_much_is_given_back() -> None:
    total = torch.cuda.get_device_properties().total_memory

    def kept_after(share: float) -> int:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.empty(int(share * total), dtype=torch.uint8, device="cuda")
        release_much("cuda:0")
        return torch.cuda.memory_reserved() - before

    assert kept_after(0.01) > 0
    assert kept_after(0.05) <= 0
