"""What a measuring process does: makes inputs, checks outputs, times candidates in rounds.

Which of it, and when, its parent asks for: see :mod:`fusewise.compiler.measuring.serving`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.code_keys import CodeKeys, take_code_keys
from fusewise.compiler.inductor.configurations import offer_blocks, tune_warm
from fusewise.compiler.inductor.program import (
    Call,
    forget_kernels,
    load_module,
    load_program,
)
from fusewise.compiler.inductor.toolchain import trust_probes
from fusewise.compiler.measuring import cuda_clock, cuda_timing
from fusewise.compiler.measuring.block_timing import BlockSizesOf, LoadedBlocks
from fusewise.compiler.measuring.device import (
    conditions,
    device_lock,
    release,
    release_much,
    synchronize,
)
from fusewise.compiler.measuring.draws import judge_few
from fusewise.compiler.measuring.heap import keep_freed, lying_elsewhere, note_threshold, under_both
from fusewise.compiler.measuring.inputs import build
from fusewise.compiler.measuring.job import (
    Budget,
    GraphJob,
    GraphResult,
    ProgramJob,
    ProgramResult,
)
from fusewise.compiler.measuring.kernels import CallTimes, Effort, KernelTimer
from fusewise.compiler.measuring.operators import make_known
from fusewise.compiler.measuring.pace import Pace
from fusewise.compiler.measuring.prepared import (
    Loaded,
    Prepared,
    judge,
    reference_outputs,
    resolution,
    weigh,
)
from fusewise.compiler.measuring.quiet import pin_threads
from fusewise.compiler.measuring.runs import (
    CpuRun,
    CudaRun,
    overwritten_inputs,
    private_inputs,
    put_back,
)
from fusewise.schedule.errors import first_line
from fusewise.search.gate import MARGIN, as_good
from fusewise.search.interleave import PLAIN_ROUNDS, interleave

log = logging.getLogger(__name__)

#: Values of a forward graph that are kept for its backward, at most.
_MOST_KEPT_BYTES = 2 << 30
#: Elements that torch does not leave to one thread.
_WORK_FOR_ALL = 1 << 20
#: Calls that a program takes, if they are slow ones, to be made ready to be timed.
_READY_CALLS = 2
#: Seconds that calls of all programs may take in any case.
_LEAST_CALLING_S = 3.0
#: Part of the time for timing that what is no slower may have on top, under another heap.
_AGAIN_SHARE = 0.5
#: Part of it that may go into judging results of few elements more closely.
_DRAWING_SHARE = 0.25
#: Seconds to wait for a device that others time on, and seconds between two looks.
_WAIT_S, _LEAST_WAIT_S, _POLL_S = 600.0, 30.0, 0.002


class Worker:
    """State of the process: the graph in hand, and values kept for backward graphs."""

    def __init__(self) -> None:
        self._graph: Prepared | None = None
        #: That the last graph ran on.
        self.device = "cpu"
        #: Seconds that the device was this process's alone, since it was last asked.
        self.held_s = 0.0
        self._kept: dict[str, dict[str, torch.Tensor]] = {}
        self._pace = Pace()

    def wake(self, threads: int) -> None:
        """Have several threads do something, in a process that was not started for this."""
        note_threshold()
        torch.set_num_threads(threads)
        pin_threads(threads)
        torch.ones(_WORK_FOR_ALL).add_(1)

    def trust(self, variables: Mapping[str, str]) -> None:
        """Take over what the parent found out about the C++ compiler after this was started."""
        trust_probes(variables)

    def take_keys(self, keys: CodeKeys) -> None:
        """Take over what the parent's packages are, by which it finds what was compiled."""
        take_code_keys(keys)

    def prepare(self, job: GraphJob) -> None:
        """Make the inputs of a graph and its reference outputs."""
        self._graph = None
        make_known(job.operators)
        forget_kernels()
        torch.set_num_threads(job.threads)
        device = torch.device(job.device)
        self.device = job.device
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)
            release_much(job.device)
            # What was compiled elsewhere is found only by who compiles with the same assembler.
            use_pools_assembler()
            tune_warm(cuda_timing.samples)
        start = time.perf_counter()
        with self._alone(job.device, _WAIT_S):
            inputs = build(job.inputs, self._kept.get(job.saved_from or "", {}))
            synchronize(job.device)
            made = time.perf_counter()
            reference: list[Any] | None = None
            overwritten: list[int] = []
            if job.graph is not None and not job.random:
                reference, overwritten = reference_outputs(job, inputs)
        # Candidates come when they were generated, and are timed at once.
        cuda_clock.wake_meanwhile(device)
        seconds = {"inputs": made - start, "reference": time.perf_counter() - made}
        self._graph = Prepared(job, inputs, reference, overwritten, seconds)

    def measure(self, programs: Sequence[ProgramJob], budget: Budget) -> GraphResult:
        """Run, check and time the programs of the graph in hand; the first is the default.

        The graph is let go of afterwards, unless more of it is to come: the memory is the caller's
        program's to use.
        """
        graph = self._graph
        if graph is None:
            raise RuntimeError("no graph was prepared")
        # What these hold on to is memory of the programs' that are weighed.
        graph.timed.clear()
        if not budget.more:
            self._graph = None
            if graph.job.saved_from is not None:
                self._kept.clear()
        results = [ProgramResult(program.id) for program in programs]
        start = time.perf_counter()
        calls = [self._load(p, result) for p, result in zip(programs, results, strict=True)]
        graph.seconds["compile"] = time.perf_counter() - start
        try:
            with self._alone(graph.job.device, max(_LEAST_WAIT_S, budget.seconds)):
                return self._contest(graph, calls, results, budget)
        finally:
            release(graph.job.device)

    def let_go(self) -> None:
        """Forget the graph in hand; no more programs of it will come."""
        graph, self._graph = self._graph, None
        if graph is not None:
            cuda_clock.let_rest(torch.device(graph.job.device))
            if graph.job.saved_from is not None:
                self._kept.clear()
            release(graph.job.device)

    @contextmanager
    def _alone(self, device: str, timeout_s: float) -> Iterator[None]:
        """The device without others that time on it, or make ready to."""
        with device_lock(device).acquire(timeout=timeout_s, poll_interval=_POLL_S):
            start = time.perf_counter()
            try:
                yield
            finally:
                self.held_s += time.perf_counter() - start

    def _contest(
        self,
        graph: Prepared,
        calls: Sequence[Call | None],
        results: list[ProgramResult],
        budget: Budget,
    ) -> GraphResult:
        seconds = dict(graph.seconds)
        start = time.perf_counter()
        loaded: list[Loaded | None] = []
        for call, result in zip(calls, results, strict=True):
            result.failure = result.failure or _too_long(loaded, budget)
            ready = None if call is None or result.failure else self._ready(graph, call, result)
            loaded.append(ready)
        seconds["compile"] += time.perf_counter() - start
        start = time.perf_counter()
        state: dict[str, float] = {}
        default = loaded[0]
        resolutions = [resolution(v) for v in default.outputs] if default else []
        if default is not None:
            judge(graph, loaded, results)
            judge_few(graph, calls, loaded, results, _DRAWING_SHARE * budget.seconds)
            if graph.job.keep_values:
                self._keep(graph, default.outputs)
            if budget.memory:
                # What keeps the device awake has memory of its own.
                cuda_clock.let_rest(torch.device(graph.job.device))
                weigh(graph, calls, loaded, results)
            state = conditions(graph.job.device)
            if torch.device(graph.job.device).type == "cuda":
                cuda_clock.wake()
            ran = [
                (program, result)
                for program, result in zip(loaded, results, strict=True)
                if program is not None
            ]
            sound = as_good([result.errors for _, result in ran], resolutions)
            times = _timed([program.run for program, _ in ran], sound, budget)
            for (_, result), samples in zip(ran, times, strict=True):
                result.samples = [s * 1e6 for s in samples]
        seconds["timing"] = time.perf_counter() - start
        return GraphResult(
            programs=results,
            reference="default" if graph.reference is None else "fp64",
            clock="cuda graph" if torch.device(graph.job.device).type == "cuda" else "calls",
            resolutions=resolutions,
            conditions=state,
            seconds=seconds,
        )

    def time_kernels(
        self,
        program: ProgramJob,
        effort: Effort,
        skipped: frozenset[tuple[str, int]],
        blocks: BlockSizesOf | None = None,
        flags: frozenset[str] = frozenset(),
    ) -> list[CallTimes]:
        """Run a program of the graph in hand, timing the kernels and extern calls in it.

        Args:
            program: to run.
            effort: how well to time each call.
            skipped: calls to leave untimed, by kernel name ("" for extern) and occurrence.
            blocks: compiled block sizes that kernels are timed with besides, by kernel name.
            flags: names of variables that C++ kernels are timed on drawn flags in the place of.

        Raises:
            RuntimeError: a kernel failed, so that the program could not go on; names it.
        """
        graph = self._graph
        if graph is None:
            raise RuntimeError("no graph was prepared")
        module = graph.timed.get(program.id)
        known = module is not None
        if module is None:
            module = load_module(
                program.source,
                program.constants,
                program.settings,
                program.library,
                in_process=True,
            )
        device = torch.device(graph.job.device)
        loaded = LoadedBlocks(module, blocks) if blocks else None
        timer = KernelTimer(
            module, program.source, device, effort, skipped, self._pace, loaded, flags
        )
        with self._alone(graph.job.device, _WAIT_S), lying_elsewhere():
            try:
                self._go_through(graph, module.call, timer, known=known)
            except Exception as error:
                name = (timer.calls[-1].kernel or "an extern call") if timer.calls else "its start"
                raise RuntimeError(f"at {name}: {first_line(error)}") from error
            finally:
                timer.leave()
            # Others wait for the device, with graphs of their own in hand.
            release_much(graph.job.device)
        # All of its kernels are tuned by now.
        graph.timed[program.id] = module
        return timer.calls

    def _go_through(self, graph: Prepared, call: Call, timer: KernelTimer, *, known: bool) -> None:
        """Run a program whose calls are timed; ``known`` where its kernels are tuned by now."""
        inputs = private_inputs(graph.inputs)
        if graph.job.device != "cpu" and not known:
            # Kernels tune themselves, and what fails does so before anything is timed.
            timer.rehearse(lambda: call(list(inputs)))
            put_back(inputs, graph.inputs)
        outputs = call(inputs)
        synchronize(graph.job.device)
        if graph.job.keep_values:
            self._keep(graph, outputs)

    def slowness(self, threads: int) -> float:
        """How much longer standard arithmetic takes on so many threads than at full pace."""
        torch.set_num_threads(threads)
        return self._pace.moment().slowness

    def _load(self, program: ProgramJob, result: ProgramResult) -> Call | None:
        offer_blocks(program.blocks)
        try:
            # Processes of its own would only be in the way of what is compiled already.
            return load_program(
                program.source,
                program.constants,
                program.settings,
                program.library,
                in_process=program.compiled,
            )
        except Exception as error:
            log.debug("candidate %s does not compile", program.id, exc_info=True)
            result.failure = first_line(error)
            return None

    def _ready(self, graph: Prepared, call: Call, result: ProgramResult) -> Loaded | None:
        try:
            inputs = private_inputs(graph.inputs)
            torch.manual_seed(0)
            outputs = list(call(list(inputs)))
            synchronize(graph.job.device)
            outputs += [inputs[i] for i in graph.overwritten]
            # What a later round overwrites must not change what is compared now.
            outputs = [v.clone() if isinstance(v, torch.Tensor) else v for v in outputs]
            clobbered = overwritten_inputs(graph.inputs, inputs)
            kind = CudaRun if torch.device(graph.job.device).type == "cuda" else CpuRun
            return Loaded(kind(call, graph.inputs, clobbered), outputs)
        except Exception as error:
            log.debug("candidate %s failed", result.id, exc_info=True)
            result.failure = first_line(error)
            return None

    def _keep(self, graph: Prepared, outputs: Sequence[Any]) -> None:
        values = {
            name: value
            for names, found in (
                (graph.job.input_names, graph.inputs),
                (graph.job.output_names, outputs),
            )
            for name, value in zip(names, found, strict=False)
            if isinstance(value, torch.Tensor)
        }
        total = sum(v.numel() * v.itemsize for v in values.values())
        if total > _MOST_KEPT_BYTES:
            values = {n: v for n, v in values.items() if not v.dtype.is_floating_point}
        self._kept = {graph.job.graph_id: values}


def _too_long(loaded: Sequence[Loaded | None], budget: Budget) -> str:
    """Why one more program could not be told from the default in time; "" where it could.

    Args:
        loaded: what is ready to be timed, the default first.
        budget: what it is held against.
    """
    if not loaded or loaded[0] is None or budget.within_s is None:
        return ""
    takes_s = loaded[0].run.takes_s
    programs = 1 + sum(program is not None for program in loaded)
    within_s = max(budget.within_s, _LEAST_CALLING_S)
    if programs * (_READY_CALLS + PLAIN_ROUNDS) * takes_s <= within_s:
        return ""
    return f"not run: a call takes {takes_s:.2g} s, too long to compare it in {within_s:.2g} s"


def _timed(
    runs: Sequence[CpuRun | CudaRun], sound: Sequence[bool], budget: Budget
) -> list[list[float]]:
    """Seconds of each program in each interleaved round."""

    def rounds(
        some: Sequence[CpuRun | CudaRun], may_win: Sequence[bool] | None, seconds: float
    ) -> list[list[float]]:
        return interleave(
            some,
            budget_s=seconds,
            min_rounds=budget.min_rounds,
            max_rounds=budget.max_rounds,
            target_interval=budget.target_interval,
            threshold=1 - MARGIN,
            may_win=may_win if budget.race else None,
        )

    on_cpu = [run for run in runs if isinstance(run, CpuRun)]
    if not on_cpu:
        return rounds(runs, sound, budget.seconds)
    keep_freed()
    times = rounds(on_cpu, sound, budget.seconds)
    again_s = _AGAIN_SHARE * budget.seconds
    return under_both(on_cpu, times, sound, lambda some: rounds(some, [True] * len(some), again_s))
