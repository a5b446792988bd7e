"""The measuring process of an ablation: programs of several captures of one graph, timed together.

A stage that rewrites the captured graph is left out before the graph is cut into forward and
backward, so that its program takes other inputs and saves other values. Each capture is prepared
with inputs and a reference of its own; the programs of all are timed in one interleaved run. Also
measures how much memory each needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch

from fusewise.compiler.inductor.program import Call
from fusewise.compiler.measuring import cuda_clock
from fusewise.compiler.measuring.client import MeasuringProcess
from fusewise.compiler.measuring.device import conditions, release
from fusewise.compiler.measuring.job import Budget, GraphJob, ProgramJob, ProgramResult
from fusewise.compiler.measuring.peak import peak_bytes
from fusewise.compiler.measuring.prepared import Loaded, Prepared, judge, resolution
from fusewise.compiler.measuring.serving import serve
from fusewise.compiler.measuring.worker import Worker
from fusewise.search.interleave import interleave

#: Seconds to wait for a device that others time on.
_WAIT_S = 600.0


@dataclass(frozen=True)
class StageJob:
    """One program, and of which capture it is."""

    graph_id: str
    program: ProgramJob
    #: Whether its time is wanted, too, and not only what its results are off by.
    timed: bool = True


@dataclass
class StageTimes(ProgramResult):
    """What was found out about one program."""

    #: Most bytes that were allocated at one time, inputs included; None where it did not run.
    peak_bytes: int | None = None
    #: Resolution of the dtype of each output that ``errors`` speaks of.
    resolutions: list[float] = field(default_factory=list)


@dataclass
class StagesResult:
    """What was found out about all programs, in their order."""

    programs: list[StageTimes]
    reference: str
    clock: str
    conditions: dict[str, float]


class StageWorker(Worker):
    """A worker that has several captures in hand."""

    def __init__(self) -> None:
        super().__init__()
        self._captures: dict[str, Prepared] = {}

    def prepare_beside(self, job: GraphJob) -> None:
        """Make the inputs of a capture, those of the others staying where they are."""
        self.prepare(job)
        assert self._graph is not None
        self._captures[job.graph_id] = self._graph

    def measure_stages(self, jobs: Sequence[StageJob], budget: Budget) -> StagesResult:
        """Run, check and time programs; the first is what the others are compared with.

        All captures are let go of afterwards.
        """
        captures, self._captures, self._graph = self._captures, {}, None
        # A backward graph has taken its values from here; a forward one puts its own here.
        self._kept = {}
        device = captures[jobs[0].graph_id].job.device
        results = [StageTimes(job.program.id) for job in jobs]
        calls = [self._load(j.program, r) for j, r in zip(jobs, results, strict=True)]
        try:
            with self._alone(device, _WAIT_S):
                return self._time(captures, jobs, calls, results, budget)
        finally:
            release(device)

    def _time(
        self,
        captures: dict[str, Prepared],
        jobs: Sequence[StageJob],
        calls: Sequence[Call | None],
        results: list[StageTimes],
        budget: Budget,
    ) -> StagesResult:
        first = captures[jobs[0].graph_id]
        device = first.job.device
        loaded: list[Loaded | None] = []
        for job, call, result in zip(jobs, calls, results, strict=True):
            graph = captures[job.graph_id]
            ready = None if call is None else self._ready(graph, call, result)
            if call is not None and ready is not None:
                result.resolutions = [resolution(value) for value in ready.outputs]
                result.peak_bytes = peak_bytes(call, graph.inputs, torch.device(device))
            loaded.append(ready)
        self._judge_captures(captures, jobs, loaded, results)
        state = conditions(device)
        cuda = torch.device(device).type == "cuda"
        if cuda:
            cuda_clock.wake()
        timed = [
            (ready.run, result)
            for job, ready, result in zip(jobs, loaded, results, strict=True)
            if ready is not None and job.timed
        ]
        if loaded[0] is not None:
            times = interleave(
                [run for run, _ in timed],
                budget_s=budget.seconds,
                min_rounds=budget.min_rounds,
                max_rounds=budget.max_rounds,
                target_interval=budget.target_interval,
            )
            for (_, result), samples in zip(timed, times, strict=True):
                result.samples = [s * 1e6 for s in samples]
        return StagesResult(
            programs=results,
            reference="default" if first.reference is None else "fp64",
            clock="cuda graph" if cuda else "calls",
            conditions=state,
        )

    def _judge_captures(
        self,
        captures: dict[str, Prepared],
        jobs: Sequence[StageJob],
        loaded: Sequence[Loaded | None],
        results: Sequence[StageTimes],
    ) -> None:
        kept: dict[str, dict[str, torch.Tensor]] = {}
        for name, graph in captures.items():
            own = [i for i, job in enumerate(jobs) if job.graph_id == name]
            outputs = next((ready.outputs for i in own if (ready := loaded[i])), None)
            if outputs is None:
                continue
            if graph.job.keep_values:
                self._keep(graph, outputs)
                kept |= self._kept
            # Without a reference there is nothing to hold another capture's programs to.
            if loaded[own[0]] is not None and (graph.reference is not None or own[0] == 0):
                judge(graph, [loaded[i] for i in own], [results[i] for i in own])
        self._kept = kept


class StageProcess(MeasuringProcess):
    """The caller's end."""

    def __init__(self, device: str) -> None:
        super().__init__(device, module=__name__)

    def prepare_beside(self, job: GraphJob) -> None:
        """Have a capture prepared.

        Raises:
            MeasureError: the process is gone.
        """
        self._send("prepare_beside", job)

    def measure_stages(
        self, jobs: Sequence[StageJob], budget: Budget, timeout_s: float
    ) -> StagesResult:
        """Measure programs of the captures that were prepared.

        Raises:
            MeasureError: the process died, did not answer within ``timeout_s``, or failed.
        """
        self._send("measure_stages", list(jobs), budget)
        result: StagesResult = self._answers(timeout_s)
        return result


def main(descriptor: int) -> int:
    """Serve whoever is at the other end of a socket; exit status of the process."""
    return serve(Connection(descriptor), StageWorker())
