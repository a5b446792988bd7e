"""Choosing among the surveyed candidates by prediction alone, and what a contest comes to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fusewise.compiler.inductor.driver import Applier, GraphCompile, Program
from fusewise.compiler.measuring.job import GraphResult
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Kernel, Predictor, Survey, default_candidate
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.gate import GateResult, judge
from fusewise.search.shortlist import shortlist

#: Candidates that a prediction chooses among, Inductor's own included.
_PREDICTED = 8


def choose_predicted(report: GraphReport, surveys: Sequence[Survey], predictor: Predictor) -> None:
    """Take the candidate of which it is surest that it beats the default.

    Nothing is measured here, so a prediction has to carry the promise never to be slower: the
    kernels that only the candidate has must take less time at the upper ends of their intervals
    than those that only the default has at the lower ends. A model that knows little of the
    device has wide intervals, and the roofline the widest.
    """
    first, default = surveys[0], default_candidate(surveys)
    listed = shortlist(default, [c for s in surveys for c in s.candidates], _PREDICTED)
    of_default = first.kernels(default, predictor)
    margin: dict[str, float] = {}
    for survey in surveys:
        for candidate in survey.candidates:
            kernels = survey.kernels(candidate, predictor)
            margin[candidate.schedule.id] = sure_gain(of_default, kernels)
    best = max(listed, key=lambda c: 0.0 if c is default else margin[c.schedule.id])
    report.candidates = [_ruled(c, c is best, c is default, margin) for c in listed]
    report.chosen = next(c for c in report.candidates if c.accepted)
    report.source = "predicted"


def _ruled(
    candidate: Candidate, chosen: bool, is_default: bool, margin: Mapping[str, float]
) -> Candidate:
    sure = margin[candidate.schedule.id]
    reason = f"surely {sure:.1f} us less than the default" if sure > 0 else "no sure gain"
    return _marked(candidate, chosen, "the compiler's own schedule" if is_default else reason)


def sure_gain(default: Counter[Kernel], candidate: Counter[Kernel]) -> float:
    """Microseconds that a candidate saves at the least, by the 90 % intervals of its kernels.

    Kernels that both have cancel out; negative where a gain is not sure.
    """
    only_default, only_candidate = default - candidate, candidate - default
    return sum(kernel.low_us * n for kernel, n in only_default.items()) - sum(
        kernel.high_us * n for kernel, n in only_candidate.items()
    )


def _marked(candidate: Candidate, accepted: bool, reason: str) -> Candidate:
    return msgspec.structs.replace(candidate, accepted=accepted, reason=reason)


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
