"""Block sizes of what a contest chose: heavy kernels that it did not tune are when they run.

Each is timed with few block sizes where it runs and keeps its own unless another is faster, so that
this needs no contest. Chooses no plan; nothing is compiled or timed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor, Survey
from fusewise.costmodel.gains import LEAST_SHARE
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.finishing import Offer


def tune_after(report: GraphReport, surveys: Sequence[Survey], predictor: Predictor) -> None:
    """Have kernels of what the report says is chosen tuned that take much of its time.

    Not those that were timed tuned under the same plan and choices: they were no faster.

    Args:
        report: with the outcome of a contest, which is carried on.
        surveys: of the graph.
        predictor: that they rest on.
    """
    chosen = report.chosen
    assert chosen is not None
    offer = _offer(chosen, surveys, predictor)
    if offer is None:
        return
    left = {choice for choice in offer.choices if not _tried(choice, chosen, report.candidates)}
    if not left:
        return
    schedule = chosen.schedule
    codegen = tuple(sorted({*schedule.codegen, *left}))
    tuned = Candidate(
        schedule=msgspec.structs.replace(schedule, codegen=codegen),
        origin="blocks",
        groups=chosen.groups,
        predicted_us=chosen.predicted_us,
        predicted_low_us=chosen.predicted_low_us,
        predicted_high_us=chosen.predicted_high_us,
        blocks=chosen.blocks,
        accepted=True,
        reason=f"{chosen.reason}; {len(left)} more kernels of it are tuned when they run",
    )
    stood = msgspec.structs.replace(chosen, accepted=False)
    report.candidates = [*(stood if c is chosen else c for c in report.candidates), tuned]
    report.chosen, report.instead = tuned, stood


def _offer(chosen: Candidate, surveys: Sequence[Survey], predictor: Predictor) -> Offer | None:
    schedule = chosen.schedule
    if not predictor.tunes or schedule.plan is None:
        return None
    for survey in surveys:
        if survey.rules is None and any(_alike(schedule, c.schedule) for c in survey.candidates):
            savings = {**(survey.savings or {}), **predictor.savings}
            finishes = replace(predictor, savings=savings).finishes(schedule.plan, survey.problem)
            return finishes.tuned_by_prediction(LEAST_SHARE, heavy=True)
    return None


def _tried(choice: Choice, chosen: Candidate, candidates: Sequence[Candidate]) -> bool:
    """Whether a kernel is tuned by now, or was timed so."""
    timed = [chosen, *(c for c in candidates if c.status != "predicted")]
    alike = [one.schedule for one in timed if _alike(chosen.schedule, one.schedule)]
    return any(choice.name == other.name for one in alike for other in one.codegen)


def _alike(one: Schedule, other: Schedule) -> bool:
    """Whether two schedules differ in nothing but how single kernels are generated."""
    return (one.plan, one.lowering) == (other.plan, other.lowering)
