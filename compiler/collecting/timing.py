"""From prepared graphs to timings: each kernel by itself, then whole programs against each other.

Talks to one measuring process and outlives it: what kills the process costs the program that was
in it, and the next one gets a new process. Compiles nothing.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import torch

from fusewise.compiler.collecting.work import Batch, Call, KernelRun, PreparedGraph
from fusewise.compiler.measuring.client import MeasuringProcess
from fusewise.compiler.measuring.job import Budget, GraphResult, ProgramJob
from fusewise.compiler.measuring.kernels import CallTimes, Effort
from fusewise.compiler.measuring.sampling import together
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.datasets.rows import KernelRow, MeasurementRow
from fusewise.schedule.errors import MeasureError
from fusewise.search.samples import Summary, summary

#: Seconds for all kernels of one program, loading included.
_KERNELS_S = 90.0
#: On a CPU the kernels of a graph are gone over so often, with this effort each time.
_PASSES: Final = 4
_OF_A_PASS: Final = Effort(seconds=0.0125, min_samples=6, max_samples=10)
#: Seconds of timing for each whole program, and rounds at least.
_WHOLE_S = 0.12
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
            passes: how often the kernels of a graph are gone over; None for what the device needs.
        """
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._device = device
        self._profile = profile
        cpu = profile.kind == "cpu"
        self._passes = passes or (_PASSES if cpu else 1)
        self._effort = effort or (_OF_A_PASS if cpu else Effort())
        self._process: MeasuringProcess | None = None
        self._lock = threading.Lock()
        self._stopped = False
        #: Measuring processes that died or were killed.
        self.lost = 0
        self._held_before_s = 0.0

    def time(self, graph: PreparedGraph) -> Batch:
        """Time the kernels and the whole programs of a graph; failures are in the result."""
        batch = Batch(graph.item, rows=list(graph.rows), graphs=1)
        taken: dict[int, list[list[CallTimes]]] = {number: [] for number in range(len(graph.runs))}
        for _ in range(self._passes):
            for number in list(taken):
                run = graph.runs[number]
                try:
                    calls = self._ready(graph).time_kernels(
                        run.program, self._effort, _KERNELS_S, _skipped(run.calls)
                    )
                except MeasureError as error:
                    self._failed(graph, run, error, batch)
                    del taken[number]
                else:
                    taken[number].append(calls)
        for number, passes in taken.items():
            calls = together(passes, self._effort.target_interval) if len(passes) > 1 else passes[0]
            self._kernel_rows(graph.runs[number], calls, batch)
        if graph.contest:
            self._whole(graph, batch)
        return batch

    @property
    def held_s(self) -> float:
        """Seconds that the device was held for timing, inputs and tuning included."""
        process = self._process
        return self._held_before_s + (process.held_s if process is not None else 0.0)

    def stop(self) -> None:
        """Have the measuring process killed and start no other; any thread may."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.stop()

    def close(self) -> None:
        """End the measuring process. For the thread that times."""
        self.stop()
        if self._process is not None:
            self._process.kill()

    def _ready(self, graph: PreparedGraph) -> MeasuringProcess:
        """The process, with the graph in hand."""
        if self._process is None or not self._process.alive:
            with self._lock:
                if self._stopped:
                    raise MeasureError(
                        "it was stopped", subject="collection", remedy="collect again"
                    )
                if self._process is not None:
                    self.lost += 1
                    self._held_before_s += self._process.held_s
                self._process = MeasuringProcess(self._device, self._environment, _MEASURING)
        if self._process.graph_id != graph.key:
            self._process.prepare(graph.job)
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

    def _failed(
        self, graph: PreparedGraph, run: KernelRun, error: MeasureError, batch: Batch
    ) -> None:
        """The process is gone or has given up: which kernel did it, nobody knows."""
        batch.failures.append(f"{graph.sample}: {error}")
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


def match(calls: Sequence[Call], times: Sequence[CallTimes]) -> Iterator[tuple[Call, CallTimes]]:
    """Pair the calls of a program with what was timed, each kind in its order.

    Where the two do not agree on what was called, nothing of that kind is given: a time under the
    wrong name is worse than none.
    """
    kernels = [call for call in calls if call.kind == "kernel"]
    timed = [time for time in times if time.kernel]
    if [call.kernel for call in kernels] == [time.kernel for time in timed]:
        yield from zip(kernels, timed, strict=True)
    externs = [call for call in calls if call.kind == "extern"]
    extern_times = [time for time in times if not time.kernel]
    if len(externs) == len(extern_times):
        yield from zip(externs, extern_times, strict=True)


def _skipped(calls: Sequence[Call]) -> frozenset[tuple[str, int]]:
    """Calls that are not to be timed, by kernel name and occurrence."""
    seen: Counter[str] = Counter()
    skipped = set()
    for call in calls:
        if not call.wanted:
            skipped.add((call.kernel, seen[call.kernel]))
        seen[call.kernel] += 1
    return frozenset(skipped)


def _conditions(times: CallTimes) -> dict[str, object]:
    """How a kernel was timed, and what of it tuning had decided."""
    told: dict[str, object] = {
        "clock": times.clock,
        "cache": "warm",
        "settled": times.settled,
        "disturbed": times.disturbed,
        "slowness": round(times.slowness, 3),
    }
    if times.passes > 1:
        told["passes"] = times.passes
    return told | ({"config": times.config} if times.config else {})


def _interval(timing: Summary) -> tuple[float, float] | None:
    return (timing.low, timing.high) if math.isfinite(timing.low) else None
