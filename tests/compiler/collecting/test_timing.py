"""Timing prepared graphs with measuring processes that follow a script."""

from __future__ import annotations

import dataclasses
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fusewise.compiler.collecting import timing as timing_module
from fusewise.compiler.collecting.timing import Timer
from fusewise.compiler.collecting.work import Batch, Call, KernelRun, PreparedGraph
from fusewise.compiler.inductor.block_draw import KernelBlocks
from fusewise.compiler.measuring.job import ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes
from fusewise.compiler.measuring.sampling import BlockTimes
from fusewise.costmodel.device import DeviceProfile
from fusewise.datasets.rows import BlocksRow, KernelRow, MeasurementRow
from fusewise.schedule.block_sizes import BlockSizes

PROFILE = DeviceProfile(
    key="cpu-x-1t",
    kind="cpu",
    name="x",
    threads=1,
    copy_gbs=1,
    gather_gbs=1,
    flops_gfs=1,
    transcendental_gops=1,
    launch_us=1,
    cache_bytes=1,
    cores=1,
)


def call(kernel: str, *nodes: str, wanted: bool = True) -> Call:
    features = (1.0,) if kernel and wanted else None
    kind: Any = "kernel" if kernel else "extern"
    return Call(kind, kernel, f"signature of {nodes[0]}", nodes, features, wanted)


def times(kernel: str, *samples: float, failure: str = "") -> CallTimes:
    return CallTimes(kernel, list(samples), failure=failure)


def graph(acting: Any, *runs: str) -> PreparedGraph:
    """A graph with programs of one kernel each, named as given."""
    made = tuple(KernelRun(ProgramJob(n, n, {}, {}), "problem", (call(n, n),)) for n in runs)
    job: Any = SimpleNamespace(graph_id="key")
    return PreparedGraph(acting.item(), "sample", "key", job, (), made, ())


def answer(value: Any, *, succeeded: bool = True, last: bool = False) -> tuple[str, bytes]:
    return "send", pickle.dumps((succeeded, value, last, 0.25))


@pytest.fixture
def timer(
    request: pytest.FixtureRequest, scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Timer]:
    monkeypatch.setattr(timing_module, "_MEASURING", scripts.module)
    made = Timer("cpu", PROFILE, passes=getattr(request, "param", 1))
    yield made
    made.close()
    assert scripts.running() == []


class Counted:
    """Counts how often the device was asked for."""

    def __init__(self) -> None:
        self.entered = 0

    def __call__(self) -> AbstractContextManager[None]:
        self.entered += 1
        return nullcontext()


def measurements(batch: Batch) -> dict[str, MeasurementRow]:
    return {row.subject_id: row for row in batch.rows if isinstance(row, MeasurementRow)}


def test_kernel_that_was_timed(timer: Timer, scripts: Any, acting: Any) -> None:
    samples = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0, 2.0]
    timed = answer([times("k", *samples)])
    scripts.give([acting.RECEIVE, answer(None), acting.RECEIVE, timed, acting.FOREVER])
    batch = timer.time(graph(acting, "k"))
    (kernel,) = [row for row in batch.rows if isinstance(row, KernelRow)]
    assert (kernel.signature, kernel.graph_key, kernel.nodes) == (
        "signature of k",
        "problem",
        ("k",),
    )
    row = measurements(batch)["signature of k"]
    assert (row.status, row.median_us, row.rounds, row.threads) == ("ok", 2.0, len(samples), 1)
    assert row.interval is not None and row.interval[0] <= 2.0 <= row.interval[1]
    assert (batch.kernels, batch.failures, batch.signatures) == (1, [], ["signature of k"])
    assert timer.held_s == 0.5


def with_sizes(acting: Any) -> PreparedGraph:
    """A graph of one kernel that is compiled with two block sizes, and fails with a third."""
    sizes = tuple(BlockSizes((("XBLOCK", size),), 4, 1) for size in (64, 128, 256))
    blocks = KernelBlocks("h", "k", "source of k", 1, sizes, frozenset(sizes[2:]))
    prepared = graph(acting, "k")
    run = dataclasses.replace(prepared.runs[0], blocks={"k": blocks})
    return dataclasses.replace(prepared, runs=(run,))


def test_kernel_that_was_timed_with_several_block_sizes(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    timed = times("k", *[2.0] * 9)
    timed.blocks = BlockTimes((2.0, 1.5), 5, 0.01)
    scripts.give([acting.RECEIVE, answer(None), acting.RECEIVE, answer([timed]), acting.FOREVER])
    batch = timer.time(with_sizes(acting))
    (row,) = [row for row in batch.rows if isinstance(row, BlocksRow)]
    assert (row.source_hash, row.name, row.graph_key, row.own) == ("h", "k", "problem", 1)
    assert [size.constants[0][1] for size in row.sizes] == [64, 128, 256]
    assert (row.us, row.rounds, row.device_key) == ((2.0, 1.5, None), 5, PROFILE.key)
    assert (batch.kernels, batch.blocks) == (1, 1)
    assert batch.signatures == ["signature of k", "blocks h"]


def test_block_sizes_that_end_the_process_are_not_tried_again(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    scripts.give([acting.RECEIVE, answer(None), acting.RECEIVE, ("exit", 7)])
    batch = timer.time(with_sizes(acting))
    assert set(batch.signatures) == {"signature of k", "blocks h"} and batch.blocks == 0
    assert not any(isinstance(row, BlocksRow) for row in batch.rows)


@pytest.mark.parametrize("timer", [3], indirect=True)
def test_of_several_passes_the_fastest_samples_count(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    disturbed = CallTimes("k", [1.0] * 9, disturbed=True)
    passes = [times("k", *[3.0] * 9), times("k", *[2.0] * 5, *[4.0] * 4), disturbed]
    script = [acting.RECEIVE, answer(None)]
    for one in passes:
        script += [acting.RECEIVE, answer([one])]
    scripts.give([*script, acting.FOREVER])
    batch = timer.time(graph(acting, "k"))
    row = measurements(batch)["signature of k"]
    # A third of them, and so many that their median has an interval.
    assert (row.median_us, row.rounds, row.interval) == (2.0, 6, (2.0, 3.0))
    assert (row.clock["passes"], row.clock["disturbed"]) == (2, False)
    assert (batch.kernels, batch.signatures) == (1, ["signature of k"])


@pytest.mark.parametrize("timer", [2], indirect=True)
def test_what_was_slowed_down_is_gone_over_again_at_full_pace(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    slow, fast = CallTimes("k", [3.0] * 9, disturbed=True), times("k", *[2.0] * 9)
    script = [acting.RECEIVE, answer(None), acting.RECEIVE, answer([slow])]
    script += [acting.RECEIVE, answer([fast])]
    # The pace is looked at until it is full.
    script += [acting.RECEIVE, answer(1.6), acting.RECEIVE, answer(1.0)]
    scripts.give([*script, acting.RECEIVE, answer([fast]), acting.FOREVER])
    alone = Counted()
    batch = timer.time(graph(acting, "k"), alone)
    row = measurements(batch)["signature of k"]
    assert (row.median_us, row.clock["passes"], row.clock["disturbed"]) == (2.0, 2, False)
    # While it waits others may go on.
    assert alone.entered == 2


@pytest.mark.parametrize("timer", [2], indirect=True)
def test_slowness_that_never_passes_is_told(
    timer: Timer, scripts: Any, acting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing_module, "_REST_AT_ONCE_S", -1.0)
    slow = CallTimes("k", [3.0] * 9, disturbed=True, slowness=1.5)
    script = [acting.RECEIVE, answer(None)]
    for _ in range(2):
        script += [acting.RECEIVE, answer([slow])]
    scripts.give([*script, acting.FOREVER])
    row = measurements(timer.time(graph(acting, "k")))["signature of k"]
    assert (row.status, row.median_us) == ("ok", 3.0)
    assert (row.clock["disturbed"], row.clock["slowness"]) == (True, 1.5)


@pytest.mark.parametrize("timer", [2], indirect=True)
def test_program_that_fails_the_second_time_is_lost(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    refusal = answer("RuntimeError: at k: bad index", succeeded=False)
    script = [acting.RECEIVE, answer(None)]
    for each in (times("bad", 1.0), times("good", 1.0, 1.0)):
        script += [acting.RECEIVE, answer([each])]
    script += [acting.RECEIVE, refusal, acting.RECEIVE, answer([times("good", 1.0, 1.0)])]
    scripts.give([*script, acting.FOREVER])
    batch = timer.time(graph(acting, "bad", "good"))
    rows = measurements(batch)
    assert "bad index" in rows["signature of bad"].reason
    assert (rows["signature of good"].rounds, batch.kernels) == (3, 1)
    assert sorted(batch.signatures) == ["signature of bad", "signature of good"]


def test_kernel_that_could_not_be_timed(timer: Timer, scripts: Any, acting: Any) -> None:
    timed = answer([times("k", failure="timing it: out of memory")])
    scripts.give([acting.RECEIVE, answer(None), acting.RECEIVE, timed, acting.FOREVER])
    batch = timer.time(graph(acting, "k"))
    row = measurements(batch)["signature of k"]
    assert (row.status, row.reason, row.graph_key) == (
        "failed",
        "timing it: out of memory",
        "problem",
    )
    assert (batch.kernels, batch.signatures) == (0, ["signature of k"])


@pytest.mark.parametrize(
    ("ending", "reason"),
    [(("exit", 9), "died with exit status 9"), (("sleep", 600), "no answer within 1 s")],
    ids=["dies", "hangs"],
)
def test_process_that_is_lost_costs_the_program_that_it_was_at(
    timer: Timer,
    scripts: Any,
    acting: Any,
    monkeypatch: pytest.MonkeyPatch,
    ending: tuple[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(timing_module, "_KERNELS_S", 0.7)
    start = [acting.RECEIVE, answer(None), acting.RECEIVE]
    scripts.give([*start, ending], [*start, answer([times("good", 1.0, 1.0)]), acting.FOREVER])
    batch = timer.time(graph(acting, "bad", "good"))
    rows = measurements(batch)
    assert rows["signature of bad"].status == "failed"
    assert reason in rows["signature of bad"].reason
    assert rows["signature of good"].status == "ok"
    assert reason in batch.failures[0] and batch.failures[0].startswith("sample: ")
    # What was tried is not tried again by others.
    assert batch.signatures == ["signature of bad", "signature of good"]
    assert (timer.lost, scripts.started()) == (1, 2)


def test_failure_of_a_program_keeps_the_process(timer: Timer, scripts: Any, acting: Any) -> None:
    refusal = answer("RuntimeError: at k: bad index", succeeded=False)
    good = answer([times("good", 1.0, 1.0)])
    script = [acting.RECEIVE, answer(None), acting.RECEIVE, refusal, acting.RECEIVE, good]
    scripts.give([*script, acting.FOREVER])
    batch = timer.time(graph(acting, "bad", "good"))
    assert "bad index" in measurements(batch)["signature of bad"].reason
    assert batch.kernels == 1
    assert (timer.lost, scripts.started()) == (0, 1)


def test_stopping_does_not_wait_and_starts_no_other(
    timer: Timer, scripts: Any, acting: Any
) -> None:
    scripts.give([acting.RECEIVE, acting.FOREVER])
    found: list[Batch] = []
    work = graph(acting, *(f"k{i}" for i in range(5)))
    thread = threading.Thread(target=lambda: found.append(timer.time(work)))
    thread.start()
    acting.until(lambda: scripts.started() == 1)
    begin = time.monotonic()
    timer.stop()
    thread.join(60)
    assert found and time.monotonic() - begin < 30
    assert (scripts.started(), scripts.running()) == (1, [])
