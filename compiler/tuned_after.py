"""Block sizes of what was chosen: kernels that are tuned when they run, and what that comes to.

Each is timed with few block sizes where it runs and keeps its own unless another is faster, so that
this needs no contest. Chooses no plan; nothing is compiled or timed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fusewise.compiler.finishing import finished
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.rounds import blocks_found, when_over
from fusewise.compiler.memory import remember_blocks
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Predictor, Survey
from fusewise.costmodel.gains import LEAST_SHARE
from fusewise.datasets.rows import Row
from fusewise.datasets.store import Store
from fusewise.schedule.kernel_choices import combos, tunings
from fusewise.schedule.schedule import Candidate
from fusewise.search.offers import Offer


def tune_after(report: GraphReport, surveys: Sequence[Survey], predictor: Predictor) -> None:
    """Have kernels of what the report says is chosen tuned that take much of its time.

    Also where a contest did not find them faster by as much as it asks for: each is held against
    its own block sizes, and goes on from what is found.

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
    tuned_by_now = {choice.name for choice in chosen.schedule.codegen}
    left = {choice for choice in offer.choices if choice.name not in tuned_by_now}
    if not left:
        return
    tuned = msgspec.structs.replace(
        finished(chosen, replace(offer, choices=tuple(left))),
        origin="blocks",
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
        if survey.rules is None and any(
            schedule.same_but_kernels(c.schedule) for c in survey.candidates
        ):
            finishes = predictor.finishes(schedule.plan, survey.problem)
            sets = combos(schedule.codegen)
            return finishes.tuned_by_prediction(LEAST_SHARE, heavy=True, sets=sets)
    return None


def note_blocks(report: GraphReport, graph: GraphCompile, output: Any) -> None:
    """Keep with what was chosen the block sizes that its kernels were tuned to.

    Args:
        report: with what was chosen.
        graph: that was compiled last under it.
        output: Inductor's output code.
    """
    chosen = report.chosen
    if chosen is None or not tunings(chosen.schedule.codegen):
        return
    found = graph.found_blocks(chosen.schedule, output)
    report.chosen = msgspec.structs.replace(chosen, blocks=found)
    report.candidates = [report.chosen if c is chosen else c for c in report.candidates]


def remember_tuning(
    report: GraphReport, graph: GraphCompile, output: Any, store: Store, told: Sequence[Row]
) -> None:
    """Have block sizes that kernels come to while a graph is used kept with the decision.

    For the first three arguments see :func:`note_blocks`.

    Args:
        store: that the decision was written to.
        told: what :func:`remember` gave.
    """
    chosen = report.chosen
    if chosen is None or not told or not tunings(chosen.schedule.codegen):
        return
    kernels = graph.tuned_kernels(chosen.schedule, output)
    when_over(output, lambda: remember_blocks(store, told, blocks_found(kernels)))
