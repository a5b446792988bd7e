"""A graph's schedule from before: of a plan file, or of an earlier decision in the store.

Compiles, measures and chooses nothing itself.
"""

from __future__ import annotations

import msgspec

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import GraphKey
from fusewise.compiler.memory import Remembered, recall, recall_at_once
from fusewise.compiler.options import Options
from fusewise.compiler.partial import partial_plan
from fusewise.compiler.plan_files import mismatch, nearest, planned_for
from fusewise.compiler.reports import GraphReport
from fusewise.compiler.ruled import check_known
from fusewise.compiler.session import Session
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan_file import PlanFile, PlannedGraph
from fusewise.schedule.schedule import Candidate


def chosen_before(
    session: Session, graph: GraphCompile, report: GraphReport, key: GraphKey, device_key: str
) -> Candidate | None:
    """The schedule of the plan file or of an earlier decision; None where there is neither.

    Args:
        session: of the compile.
        graph: the graph.
        report: is told where the schedule came from.
        key: of the graph.
        device_key: of the device that it is compiled for.

    Raises:
        PlanError: the plan file has none for the graph, or one that does not keep the rules.
        StoreError: the store cannot be read.
    """
    if session.plan_file is not None:
        planned, reason = _planned(session.options, graph, report, key, session.plan_file)
        report.source = "plan file"
        report.chosen = planned.candidate(reason)
        report.candidates = [report.chosen]
        _check_rules(session.options, graph, report, report.chosen)
        return report.chosen
    with report.phase("recall"):
        asked = (key.key, device_key, session.options.mode)
        # The store is only opened where that is not enough.
        remembered = recall_at_once(session.options.store, *asked)
        if remembered is None and not session.fresh:
            remembered = recall(session.store, *asked)
    if remembered is None or _is_to_be_measured(session.options, remembered):
        return None
    try:
        _check_rules(session.options, graph, report, remembered.chosen)
    except PlanError:
        # It is no answer to what is asked now.
        return None
    report.source = "store"
    report.candidates = remembered.candidates
    report.chosen = remembered.chosen
    report.nodes = remembered.nodes
    if graph.kind == "forward":
        session.forward_key = key.key
    return remembered.chosen


def _is_to_be_measured(options: Options, remembered: Remembered) -> bool:
    """Whether the user gives time to measure what there was none for when it was decided."""
    given = options.mode == "measure" and bool(options.budget_s)
    return given and all(c.status != "measured" for c in remembered.candidates)


def _check_rules(
    options: Options, graph: GraphCompile, report: GraphReport, chosen: Candidate
) -> None:
    """See that what was chosen before keeps the rules.

    Raises:
        PlanError: it does not.
    """
    if options.rules is not None:
        with report.phase("rules"):
            report.rules = check_known(graph, options.rules, chosen.schedule)


def _planned(
    options: Options, graph: GraphCompile, report: GraphReport, key: GraphKey, plan: PlanFile
) -> tuple[PlannedGraph, str]:
    """The graph's plan, and if that is of a changed graph what of it holds."""
    found = nearest(plan, key, report.kind)
    report.mismatch = mismatch(key, found) if found is not None else ()
    if found is None or not report.mismatch or not options.partial:
        return planned_for(plan, key, report.kind, f"plan file {options.plan}"), ""
    with report.phase("carry over"):
        part = partial_plan(graph, found, key.key)
    planned = msgspec.structs.replace(
        found, schedule=part.schedule, predicted_us=None, measured_us=None
    )
    return planned, part.told
