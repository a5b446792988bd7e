"""From prepared graphs to timings: each kernel by itself, then whole programs against each other.

Talks to one measuring process and outlives it: what kills the process costs the program that was
in it, and the next one gets a new process. Compiles nothing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Literal

import torch

from fusewise.compiler.collecting.blocks import blocks_row
from fusewise.compiler.collecting.passes import known, lacking, match, skipped
from fusewise.compiler.collecting.work import Batch, KernelRun, PreparedGraph
from fusewise.compiler.measuring.client import MeasuringProcess
from fusewise.compiler.measuring.job import Budget, GraphResult, ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.compiler.measuring.pace import SLOW
from fusewise.compiler.measuring.sampling import together
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.datasets.rows import KernelRow, MeasurementRow, blocks_signature
from fusewise.schedule.errors import MeasureError
from fusewise.search.samples import Summary, summary

#: Seconds for all kernels of one program, loading included.
_KERNELS_S = 90.0
#: Seconds more for each kernel that is timed with several block sizes.
_BLOCKS_S = 5.0
#: The kernels of a graph are gone over so often, with this effort each time. A GPU, too, is in one
#: of several states for a while: in some each launch takes 0.35 microseconds more, in few 3.
_PASSES: Final = 3
_OF_A_PASS: Final = {
    "cpu": Effort(seconds=0.0125, min_samples=6, max_samples=10),
    "cuda": Effort(seconds=0.025, min_samples=7, max_samples=20),
}
#: Passes more where one did not find the processor at its full pace, or they differ.
_MORE_PASSES = 12
#: How much longer than the fastest the third fastest pass over a kernel may take, relative, before
#: there is another. On a CPU where buffers lie makes up to a fifth: each pass has them elsewhere.
_ALIKE: Final = {"cpu": 0.02, "cuda": math.inf}
#: Seconds before each of these in which the processor may come to its full pace again, and seconds
#: between two looks.
_REST_S, _LOOK_S = 2.0, 0.05
#: Seconds of rest in all: so many at any time, and this share of those since the first graph.
_REST_AT_ONCE_S, _REST_SHARE = 10.0, 0.35
#: Seconds in which nothing was timed at full pace, after which that is not waited for any more:
#: what is timed then says that it was disturbed.
_PATIENCE_S = 20.0
#: Seconds of timing for each whole program at most, and rounds at least. On a CPU a tenth of this
#: leaves intervals of 4 %, wider than many schedules lie apart; a GPU rarely needs as much.
_WHOLE_S = 1.0
_WHOLE_ROUNDS = 12
#: Beyond the timing itself: loading the programs and capturing their launches.
_WHOLE_WAIT_S = 90.0
#: Half-width of the interval of a whole program's median, relative, that is good enough.
_WHOLE_INTERVAL = 0.01
#: Programs are loaded from caches: compilers of their own would only be in the way.
_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
_MEASURING = "fusewise.compiler.collecting.measuring"


class Timer:
    """Times prepared graphs on one device."""

    def __init__(
        self,
        device: str,
        profile: DeviceProfile,
        effort: Effort | None = None,
        environment: Mapping[str, str] | None = None,
        passes: int | None = None,
    ) -> None:
        """Start no process yet.

        Args:
            device: to time on.
            profile: of it.
            effort: for each kernel in each pass; None for what the device needs.
            environment: variables for the measuring process, beside those of this one.
            passes: how often the kernels of a graph are gone over; None for as often as it needs.
        """
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._device = device
        self._profile = profile
        self._passes = passes or _PASSES
        # Whoever says how often wants no more than that.
        self._alike = math.inf if passes else _ALIKE[profile.kind]
        self._effort = effort or _OF_A_PASS[profile.kind]
        self._process: MeasuringProcess | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._since: float | None = None
        self._rested_s = 0.0
        #: When a kernel was timed at full pace last, or the first was timed at all.
        self._full_at: float | None = None
        #: Measuring processes that died or were killed.
        self.lost = 0
        self._held_before_s = 0.0

    def time(
        self,
        graph: PreparedGraph,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Batch:
        """Time the kernels and the whole programs of a graph; failures are in the result.

        Args:
            graph: what to time.
            alone: keeps others off the device while something is timed. Where something beyond
                this machine was in the way of a kernel, others get some seconds before the kernel
                is gone over again.
        """
        batch = Batch(graph.item, rows=list(graph.rows), graphs=1)
        taken: dict[int, list[list[CallTimes]]] = {number: [] for number in range(len(graph.runs))}
        with alone():
            for _ in range(self._passes):
                self._pass(graph, taken, batch)
        for _ in range(_MORE_PASSES):
            lacks = any(lacking(passes, self._alike) for passes in taken.values())
            if not lacks or not self._rest():
                break
            with alone():
                self._pass(graph, taken, batch)
        for number, passes in taken.items():
            calls = together(passes, self._effort.target_interval) if len(passes) > 1 else passes[0]
            self._kernel_rows(graph.runs[number], calls, batch)
        if graph.contest:
            with alone():
                self._whole(graph, batch)
        return batch

    def _pass(
        self, graph: PreparedGraph, taken: dict[int, list[list[CallTimes]]], batch: Batch
    ) -> None:
        """Go over the kernels of a graph once, but for those that are known by now.

        Args:
            graph: the graph.
            taken: what was taken of each of its programs; gets one pass more. Programs that fail
                are taken out.
            batch: takes failures.
        """
        for number in list(taken):
            run, passes = graph.runs[number], taken[number]
            left_out = skipped(run.calls)
            if len(passes) >= self._passes:
                if not lacking(passes, self._alike):
                    continue
                left_out |= known(passes, self._alike)
            # Block sizes are held against each other, once.
            blocks = {} if passes else run.blocks
            try:
                calls = self._ready(graph).time_kernels(
                    run.program,
                    self._effort,
                    _KERNELS_S + _BLOCKS_S * len(blocks),
                    left_out,
                    {name: of_it.compiled for name, of_it in blocks.items()},
                    run.flags,
                )
            except MeasureError as error:
                self._failed(graph, run, error, batch)
                del taken[number]
            else:
                passes.append(calls)
                free = any(call.samples and not call.disturbed for call in calls)
                if free or self._full_at is None:
                    self._full_at = time.monotonic()

    def _rest(self) -> bool:
        """Wait for the processor to be at its full pace, for some seconds at most.

        A neighbour that never goes would take most of the time of a collection.

        Returns:
            False where too much of it has gone into waiting already, or there was none for long.
        """
        start = time.monotonic()
        self._since = self._since or start
        if self._full_at is None or start - self._full_at > _PATIENCE_S:
            return False
        if self._rested_s > _REST_AT_ONCE_S + _REST_SHARE * (start - self._since):
            return False
        # What became of a process that is gone is found out by the next pass.
        with contextlib.suppress(MeasureError):
            while time.monotonic() - start < _REST_S and not self._stopped.wait(_LOOK_S):
                if self._pace() <= SLOW:
                    break
        self._rested_s += time.monotonic() - start
        return not self._stopped.is_set()

    @property
    def held_s(self) -> float:
        """Seconds that the device was held for timing, inputs and tuning included."""
        process = self._process
        return self._held_before_s + (process.held_s if process is not None else 0.0)

    def stop(self) -> None:
        """Have the measuring process killed and start no other; any thread may."""
        with self._lock:
            self._stopped.set()
            if self._process is not None:
                self._process.stop()

    def close(self) -> None:
        """End the measuring process. For the thread that times."""
        self.stop()
        if self._process is not None:
            self._process.kill()

    def look(self) -> None:
        """Look at the pace of a CPU while there is nothing to time, to know the best later on."""
        if self._profile.kind == "cpu":
            # What is wrong with the process, the next graph tells.
            with contextlib.suppress(MeasureError):
                self._pace()

    def _pace(self) -> float:
        return self._running().slowness(self._profile.threads, _KERNELS_S)

    def _ready(self, graph: PreparedGraph) -> MeasuringProcess:
        """The process, with the graph in hand."""
        process = self._running()
        if process.graph_id != graph.key:
            process.prepare(graph.job)
        return process

    def _running(self) -> MeasuringProcess:
        """The process; another one where that is gone."""
        if self._process is None or not self._process.alive:
            with self._lock:
                if self._stopped.is_set():
                    raise MeasureError(
                        "it was stopped", subject="collection", remedy="collect again"
                    )
                if self._process is not None:
                    self.lost += 1
                    self._held_before_s += self._process.held_s
                self._process = MeasuringProcess(self._device, self._environment, _MEASURING)
        return self._process

    def _kernel_rows(self, run: KernelRun, calls: Sequence[CallTimes], batch: Batch) -> None:
        for call, times in match(run.calls, calls):
            if not call.wanted:
                continue
            batch.signatures.append(call.signature)
            if not times.samples:
                batch.rows.append(
                    self._measurement(
                        call.kind,
                        call.signature,
                        run.problem_key,
                        reason=times.failure or "no samples",
                    )
                )
                continue
            if call.features is not None:
                batch.kernels += 1
                batch.rows.append(
                    KernelRow(
                        signature=call.signature,
                        device_key=self._profile.key,
                        graph_key=run.problem_key,
                        nodes=call.nodes,
                        features_version=FEATURES_VERSION,
                        features=list(call.features),
                    )
                )
            batch.rows.append(
                self._measurement(
                    call.kind,
                    call.signature,
                    run.problem_key,
                    timing=summary(times.samples),
                    clock=_conditions(times),
                )
            )
            self._blocks_row(run, times, batch)
        # Nobody need try those again that could not be timed.
        batch.signatures += [blocks_signature(b.source_hash) for b in run.blocks.values()]

    def _blocks_row(self, run: KernelRun, times: CallTimes, batch: Batch) -> None:
        blocks = run.blocks.get(times.kernel)
        if blocks is None or times.blocks is None:
            return
        row = blocks_row(blocks, times.blocks, self._profile.key, run.problem_key)
        if row is not None:
            batch.blocks += 1
            batch.rows.append(row)

    def _failed(
        self, graph: PreparedGraph, run: KernelRun, error: MeasureError, batch: Batch
    ) -> None:
        """The process is gone or has given up: which kernel did it, nobody knows."""
        batch.failures.append(f"{graph.sample}: {error}")
        batch.signatures += [blocks_signature(b.source_hash) for b in run.blocks.values()]
        for call in run.calls:
            if call.wanted:
                batch.signatures.append(call.signature)
                batch.rows.append(
                    self._measurement(call.kind, call.signature, run.problem_key, reason=str(error))
                )

    def _whole(self, graph: PreparedGraph, batch: Batch) -> None:
        budget = Budget(
            seconds=_WHOLE_S * len(graph.contest),
            min_rounds=_WHOLE_ROUNDS,
            target_interval=_WHOLE_INTERVAL,
        )
        try:
            result = self._ready(graph).measure(
                graph.contest, budget, budget.seconds + _WHOLE_WAIT_S
            )
        except MeasureError as error:
            batch.failures.append(f"{graph.sample}: {error}")
            batch.rows += [
                self._measurement("schedule", job.id, graph.key, reason=str(error), job=job)
                for job in graph.contest
            ]
            return
        batch.rows += self._schedule_rows(graph, result, batch)

    def _schedule_rows(
        self, graph: PreparedGraph, result: GraphResult, batch: Batch
    ) -> Iterator[MeasurementRow]:
        for job, found in zip(graph.contest, result.programs, strict=True):
            samples = [us for us in found.samples if math.isfinite(us)]
            if found.failure or not samples:
                reason = found.failure or "Inductor's own program failed"
                yield self._measurement("schedule", job.id, graph.key, reason=reason, job=job)
                continue
            batch.schedules += 1
            yield self._measurement(
                "schedule",
                job.id,
                graph.key,
                timing=summary(samples),
                clock={"clock": result.clock, "cache": "warm", **result.conditions},
                job=job,
                error=max(found.errors, default=None),
            )

    def _measurement(
        self,
        subject: Literal["kernel", "schedule", "extern"],
        subject_id: str,
        graph_key: str,
        *,
        timing: Summary | None = None,
        reason: str = "",
        clock: dict[str, object] | None = None,
        job: ProgramJob | None = None,
        error: float | None = None,
    ) -> MeasurementRow:
        return MeasurementRow(
            subject=subject,
            subject_id=subject_id,
            graph_key=graph_key,
            device_key=self._profile.key,
            threads=self._profile.threads if self._profile.kind == "cpu" else 0,
            status="failed" if timing is None else "ok",
            reason=reason,
            median_us=timing.median if timing else None,
            spread=timing.spread if timing else None,
            rounds=timing.count if timing else 0,
            interval=_interval(timing) if timing else None,
            error=error if error is not None and math.isfinite(error) else None,
            clock=clock or {},
            code_hash=job.code_hash if job else "",
            torch_version=str(torch.__version__),
        )


def _conditions(times: CallTimes) -> dict[str, object]:
    """How a kernel was timed, and what of it tuning had decided."""
    told: dict[str, object] = {
        "clock": times.clock,
        "cache": "warm",
        "settled": times.settled,
        "disturbed": times.disturbed,
        "slowness": round(times.slowness, 3),
        "drag": round(times.drag, 3),
    }
    if times.passes > 1:
        told["passes"] = times.passes
    return told | ({"config": times.config} if times.config else {})


def _interval(timing: Summary) -> tuple[float, float] | None:
    return (timing.low, timing.high) if math.isfinite(timing.low) else None
