"""One workload in a process of its own: compile every contestant, check it, time all together.

Started by ``compare``. Prints two JSON lines: ``{"compiled": true}`` once all is compiled, and,
after a line on its input has told it that nothing else runs, the outcome. It ends
with whoever started it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from contestants import BASELINE, Contestant, compiled, contestant, own_caches
from steps import (
    SETTLING,
    CallClock,
    GraphClock,
    Step,
    clock_for,
    ended_if_it_hangs,
    worst_error,
)
from workloads import Case, Drawn, named

import fusewise
from fusewise.compiler.measuring.client import close_all
from fusewise.compiler.measuring.device import device_lock
from fusewise.compiler.reports import GraphReport
from fusewise.datasets.corpus import CorpusSpec
from fusewise.schedule.errors import CorpusError
from fusewise.search.interleave import interleave, ratios
from fusewise.search.samples import summary

#: Relative error above which a result counts as wrong: of fp32 against eager, which differs by the
#: order of adding up alone; of bf16 against eager in fp32, where what is twice as far off as eager
#: in bf16 passes too.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 5e-2}
#: The baseline compiled and timed a second time: what it differs by from itself is noise.
AGAIN = "again"
#: Where the compiler itself is off by more than the tolerance, but by no more times than this, the
#: program adds up what nearly cancels: twice its error then passes.
_CANCELLING = 5.0
#: A contestant's first steps take no longer.
_MOST_SECONDS = 300.0


class Order(msgspec.Struct, frozen=True):
    """What is to be done, as it stands in the argument of the process."""

    case: str
    #: What the case is drawn from; None for one of the benchmarks' own.
    corpus: CorpusSpec | None
    device: str
    contestants: list[str]
    seconds: float
    store: str | None


@dataclass
class _Entry:
    """A contestant with what became of it."""

    who: Contestant
    step: Step | None = None
    clock: CallClock | GraphClock | None = None
    failure: str = ""
    #: Seconds of the first step: compiling, and one run.
    first_s: float | None = None
    error: float | None = None
    reports: list[GraphReport] | tuple[()] = ()


def main() -> None:
    """Do what the order in the first argument says."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    turn = threading.Event()
    threading.Thread(target=_listen, args=(turn,), daemon=True).start()
    case = _case(order)
    # torch wants an index where it is told the device to be current.
    device = torch.device("cuda", 0) if order.device == "cuda" else torch.device(order.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with tempfile.TemporaryDirectory(prefix="fusewise-benchmark-") as scratch:
        folder = Path(scratch)
        store = None if order.store is None else Path(order.store)
        wanted, allowed = _reference(case, device)
        # The first compile of a process fills what all later ones find: it is the second baseline,
        # whose compile time nobody asks for.
        entries = [_Entry(replace(contestant(BASELINE), name=AGAIN))]
        entries += [_Entry(contestant(name)) for name in order.contestants]
        for i, entry in enumerate(entries):
            with ended_if_it_hangs(_MOST_SECONDS):
                found = _compile(entry, case, device, folder / str(i), store)
            if entry.who.name == AGAIN and found is not None:
                allowed = _allowed(found, wanted, allowed)
            _check(entry, found, wanted, allowed)
        close_all()
        print(json.dumps({"compiled": True}), flush=True)
        turn.wait()
        with device_lock(str(device)).acquire(timeout=3600.0):
            times = _time(entries, device, order.seconds)
    print(json.dumps(_told(case, entries, times)), flush=True)


def _case(order: Order) -> Case:
    if order.corpus is None:
        return named(order.case)
    try:
        return Drawn(order.corpus, order.case).case()
    except CorpusError as error:
        # Many a program of a corpus is of no use; what was refused says why.
        sys.exit(str(error))


def _listen(turn: threading.Event) -> None:
    """Tell when it is this process's turn; end it where nobody is left to say so."""
    # Unbuffered: a thread that waits with the buffer's lock would fail at the end of the process.
    while os.read(sys.stdin.fileno(), 1):
        turn.set()
    # Who was killed cannot end what it started, which would go on and hold the device.
    os._exit(1)


def _reference(case: Case, device: torch.device) -> tuple[list[torch.Tensor], float]:
    """What the first step has to give, and how far off a contestant may be."""
    program = case.build(device)
    tolerance = _TOLERANCE[case.dtype]
    if case.dtype is torch.float32:
        return Step(program, program.function).first(), tolerance
    narrow = Step(program, program.function).first()
    program = case.build(device).widened()
    try:
        wanted = Step(program, program.function).first()
    except RuntimeError:
        # It converts to narrow types itself, and cannot do so with wide ones beside them.
        return narrow, tolerance
    return wanted, max(tolerance, 2 * worst_error(narrow, wanted))


def _compile(
    entry: _Entry, case: Case, device: torch.device, folder: Path, store: Path | None
) -> list[torch.Tensor] | None:
    """Build and compile the program and run its first step; the step's results."""
    before = len(fusewise.reports())
    try:
        program = case.build(device)
        with own_caches(folder, store) as home:
            entry.step = Step(program, compiled(program.function, entry.who, home))
            began = time.perf_counter()
            found = entry.step.first()
            if device.type == "cuda":
                torch.cuda.synchronize()
            entry.first_s = time.perf_counter() - began
            # What is compiled or tuned later is so with the contestant's own caches.
            for _ in range(SETTLING):
                entry.step.run()
    except Exception as error:  # noqa: BLE001 - a contestant that fails is an outcome
        entry.failure = _one_line(error)
        return None
    finally:
        # The process that measures for one contestant keeps that contestant's caches.
        close_all()
        entry.reports = fusewise.reports()[before:]
    return found


def _allowed(
    compiled_once: list[torch.Tensor], wanted: list[torch.Tensor], allowed: float
) -> float:
    """How far off a contestant may be of a program that the compiler gets so far off itself."""
    try:
        error = worst_error(compiled_once, wanted)
    except ValueError:
        return allowed
    return max(allowed, 2 * error) if error <= _CANCELLING * allowed else allowed


def _check(
    entry: _Entry,
    found: list[torch.Tensor] | None,
    wanted: list[torch.Tensor],
    allowed: float,
) -> None:
    if found is None:
        return
    try:
        entry.error = worst_error(found, wanted)
    except ValueError as error:
        entry.failure = str(error)
        return
    if not entry.error <= allowed:
        entry.failure = f"wrong: off by {entry.error:.1e}, {allowed:.0e} is allowed"


def _time(entries: list[_Entry], device: torch.device, seconds: float) -> dict[str, list[float]]:
    """Microseconds of each step in each round, the baseline's first."""
    # Eager last: it may do what cannot be captured, and a capture that fails leaves its traces.
    for entry in sorted(entries, key=lambda entry: entry.who.backend is None):
        if entry.failure or entry.step is None:
            continue
        try:
            entry.clock = clock_for(device, entry.step)
        except Exception as error:  # noqa: BLE001 - not everything can be captured
            entry.failure = f"cannot be timed: {_one_line(error)}"
    named = {entry.who.name: entry.clock for entry in entries if entry.clock is not None}
    if BASELINE not in named:
        return {}
    clocks = {BASELINE: named.pop(BASELINE), **named}
    found = interleave(
        list(clocks.values()), budget_s=seconds, max_rounds=5000, target_interval=0.001
    )
    return {name: [s * 1e6 for s in samples] for name, samples in zip(clocks, found, strict=True)}


def _told(case: Case, entries: list[_Entry], times: dict[str, list[float]]) -> dict[str, Any]:
    base = times.get(BASELINE, [])
    failures = {entry.who.name: entry.failure for entry in entries if entry.failure}
    return {
        **case.described(),
        "status": "ok" if base else "failed",
        "reason": "" if base else failures.get(BASELINE, "nothing was timed"),
        "contestants": {entry.who.name: _entry_told(entry, times) for entry in entries},
        # How many times as fast as the baseline: its time over theirs, round by round.
        "speedup": {
            name: _interval(ratios(base, samples))
            for name, samples in times.items()
            if name != BASELINE
        },
        "graphs": {e.who.name: [_graph_told(r) for r in e.reports] for e in entries if e.reports},
    }


def _entry_told(entry: _Entry, times: dict[str, list[float]]) -> dict[str, Any]:
    samples = times.get(entry.who.name)
    told: dict[str, Any] = {
        "failure": entry.failure,
        "first_step_s": None if entry.who.name == AGAIN else entry.first_s,
        "error": entry.error if entry.error is None else _finite(entry.error),
        "clock": None if entry.clock is None else entry.clock.name,
    }
    if samples:
        timing = summary(samples)
        told |= {
            "median_us": timing.median,
            "spread": timing.spread,
            "rounds": timing.count,
            "interval_us": [_finite(timing.low), _finite(timing.high)],
        }
    return told


def _interval(values: list[float]) -> dict[str, Any]:
    found = summary(values)
    return {"median": found.median, "low": _finite(found.low), "high": _finite(found.high)}


def _finite(value: float) -> float | None:
    """None for what JSON has no word for: an interval of too few rounds, an infinite error."""
    return value if math.isfinite(value) else None


def _graph_told(report: GraphReport) -> dict[str, Any]:
    chosen, default = report.chosen, report.default
    return {
        "kind": report.kind,
        "nodes": report.nodes,
        "source": report.source,
        "model": report.model,
        "fallback": report.fallback,
        "seconds": report.seconds,
        "candidates": len(report.candidates),
        "measured": sum(c.status == "measured" for c in report.candidates),
        "default": None if default is None else _candidate_told(default),
        "chosen": None if chosen is None else _candidate_told(chosen),
    }


def _candidate_told(candidate: Any) -> dict[str, Any]:
    return {
        "origin": candidate.origin,
        "choices": candidate.schedule.describe(),
        "groups": candidate.groups,
        "predicted_us": candidate.predicted_us,
        "measured_us": candidate.measured_us,
        "error": candidate.error,
        "reason": candidate.reason,
    }


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


if __name__ == "__main__":
    main()
