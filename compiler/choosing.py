"""What others are held to, and what a contest with it comes to. Measures nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Applier, Program
from fusewise.compiler.measuring.job import GraphResult
from fusewise.compiler.reports import GraphReport
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.gate import GateResult, judge


def compile_default(
    graph: GraphCompile, report: GraphReport, default: Candidate
) -> tuple[Any, Program]:
    """Compile what others are held to; the compiled graph and its program.

    That is Inductor's own schedule, or that as rules want it.
    """
    schedule = None if default.origin == "default" else default.schedule
    applier = Applier(None if schedule is None else schedule.plan)
    start = time.perf_counter()
    output = graph.compile(schedule, applier)
    report.seconds["compile default"] = time.perf_counter() - start
    if applier.program is not None:
        return output, applier.program
    # It came out of Inductor's cache without being lowered.
    with report.phase("generate"):
        return output, graph.generate(schedule or Schedule())


def settle(report: GraphReport, candidates: Sequence[Candidate], result: GraphResult) -> GateResult:
    """Judge the contest and write its outcome into the report; what the gate said.

    Raises:
        MeasureError: Inductor's own program could not be run there.
    """
    programs = result.programs
    if programs[0].failure:
        raise MeasureError(
            f"Inductor's own program failed there: {programs[0].failure}",
            subject="measuring process",
            remedy="mode predict chooses without measuring",
        )
    gate = judge(
        [program.samples for program in programs],
        [program.errors for program in programs],
        resolutions=result.resolutions,
    )
    marked = gate.mark(candidates, [program.samples for program in programs])
    report.candidates = [
        msgspec.structs.replace(
            candidate,
            error=max(program.errors, default=None),
            peak_bytes=program.peak_bytes,
            **({"status": "failed", "reason": program.failure} if program.failure else {}),
        )
        for candidate, program in zip(marked, programs, strict=True)
    ]
    report.chosen = report.candidates[gate.chosen]
    report.source = "measured"
    return gate
