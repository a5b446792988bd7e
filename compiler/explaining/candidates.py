"""The schedule that is explained as the chosen one, and the candidates that it was chosen among.

Looks into the plan file and the store, and searches by prediction where that is asked for. Writes
nothing down.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from fusewise.compiler.contest import generate_distinct, hold
from fusewise.compiler.explaining.kernels import View
from fusewise.compiler.explaining.report import ExplainedCandidate
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.graph_key import GraphKey
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.memory import Remembered, recall
from fusewise.compiler.plan_files import planned_for
from fusewise.compiler.reports import RulesReport
from fusewise.compiler.ruled import compile_by_rules
from fusewise.compiler.session import Session
from fusewise.compiler.survey import Predictor, search_plans
from fusewise.schedule.errors import MeasureError
from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Candidate, Schedule
from fusewise.search.beam import Budget
from fusewise.search.samples import summary

#: Candidates that are timed beside Inductor's own where none was measured before.
_TIMED = 4


@dataclass(frozen=True)
class Chosen:
    """A schedule, and how it came to be the one."""

    #: ``inductor``, ``rules``, ``store``, ``plan file`` or ``predicted``.
    origin: str
    #: None for Inductor's own.
    schedule: Schedule | None
    #: What it was chosen among, as far as that is known.
    candidates: tuple[Candidate, ...] = ()
    #: What came of the user's rules; None where they were not asked.
    rules: RulesReport | None = None


def find_chosen(
    graph: GraphCompile, session: Session, predictor: Predictor, key: GraphKey
) -> Chosen | None:
    """The chosen schedule of a graph: the plan file's, else the stored one, else what rules make.

    Args:
        graph: as it is compiled now.
        session: with store, plan file and rules.
        predictor: of the device.
        key: of the graph.

    Returns:
        None where there is neither of them.

    Raises:
        PlanError: the plan file does not fit, or rules cannot be kept.
        StoreError: the store cannot be read.
    """
    rules = session.options.rules
    remembered = recall(session.store, key.key, predictor.profile.key, "replay")
    known = () if remembered is None else tuple(remembered.candidates)
    if session.plan_file is not None:
        subject = f"plan file {session.options.plan}"
        planned = planned_for(session.plan_file, key, graph.kind, subject)
        return Chosen("plan file", planned.schedule, (*known, planned.candidate()))
    if remembered is not None:
        return Chosen("store", _stored(remembered), known)
    if rules is not None:
        _, candidate, report = compile_by_rules(graph, rules)
        if candidate.origin == "default":
            return Chosen("inductor", None, rules=report)
        return Chosen("rules", candidate.schedule, (candidate,), report)
    return None


def _stored(remembered: Remembered) -> Schedule | None:
    chosen = remembered.chosen
    return None if chosen.origin == "default" else chosen.schedule


def predict_chosen(live: LiveGraph, own: View) -> Chosen:
    """The best plan of a graph by prediction; the clock plays no part.

    Args:
        live: the graph as Inductor lowers it.
        own: Inductor's own plan of it.
    """
    found = search_plans(live, own.problem, own.cost, Budget())
    default = next(candidate for candidate in found if candidate.baseline)
    best = min(found, key=lambda candidate: candidate.predicted_us or 0.0)
    if (best.predicted_us or 0.0) >= (default.predicted_us or 0.0):
        return Chosen("inductor", None, found)
    return Chosen("predicted", best.schedule, found)


def completed(chosen: Chosen, default: View, seen: View) -> tuple[Candidate, ...]:
    """The candidates with Inductor's own first and the chosen one among them, each once."""
    found = {candidate.schedule.id: candidate for candidate in chosen.candidates}
    own = next((c for c in found.values() if c.origin == "default"), None)
    if own is None:
        own = _candidate(default, "default")
    if chosen.schedule is not None:
        known = found.get(chosen.schedule.id)
        if known is None or known.predicted_us is None:
            told = _candidate(seen, chosen.origin if known is None else known.origin)
            # Times that were written down with it stay.
            measured = None if known is None else known.measured_us
            found[chosen.schedule.id] = msgspec.structs.replace(
                told, schedule=chosen.schedule, measured_us=measured
            )
    return (own, *(c for c in found.values() if c.schedule.id != own.schedule.id))


def _candidate(view: View, origin: str) -> Candidate:
    interval = view.cost.plan(view.plan)
    return Candidate(
        schedule=view.schedule,
        origin=origin,
        groups=len(view.plan.groups),
        predicted_us=interval.us,
        predicted_low_us=interval.low_us,
        predicted_high_us=interval.high_us,
    )


def time_candidates(
    graph: GraphCompile, job: GraphJob, candidates: Sequence[Candidate], seconds: float
) -> tuple[Candidate, ...]:
    """Time the best candidates in turns with the first, which is Inductor's own.

    Those that were measured before stay as they are, and then nothing is timed.

    Args:
        graph: as it is compiled now.
        job: the graph as the measuring process has it.
        candidates: Inductor's own first.
        seconds: for the contest, code generation left out.

    Raises:
        MeasureError: the process could not do it.
    """
    default, *others = candidates
    if any(candidate.measured_us is not None for candidate in candidates):
        return tuple(candidates)
    program = graph.generate(Schedule())
    kept, dropped = generate_distinct(graph, program, others, _TIMED)
    if not kept:
        return (default, *dropped, *others[len(dropped) :])
    result = hold(job, [(default, program), *kept], seconds)
    timed = {}
    for (candidate, _), done in zip([(default, program), *kept], result.programs, strict=True):
        samples = [us for us in done.samples if math.isfinite(us)]
        if done.failure or not samples:
            if candidate is default:
                raise MeasureError(
                    f"Inductor's own program failed there: {done.failure or 'no samples'}",
                    subject="measuring process",
                    remedy="leave --measure out",
                )
            timed[candidate.schedule.id] = msgspec.structs.replace(
                candidate, status="failed", reason=done.failure or "no samples"
            )
            continue
        told = summary(samples)
        timed[candidate.schedule.id] = msgspec.structs.replace(
            candidate,
            measured_us=told.median,
            spread=told.spread,
            rounds=told.count,
            status="measured",
        )
    timed |= {candidate.schedule.id: candidate for candidate in dropped}
    return tuple(timed.get(c.schedule.id, c) for c in candidates)


def explained_candidates(
    candidates: Sequence[Candidate], chosen: Chosen, default: Plan
) -> tuple[ExplainedCandidate, ...]:
    """The candidates as the report has them; ``default`` is Inductor's own plan."""
    known = {frozenset(names) for names in default.groups}
    taken = None if chosen.schedule is None else chosen.schedule.id
    return tuple(
        ExplainedCandidate(
            schedule=candidate.schedule.id,
            choices=candidate.schedule.describe(),
            origin=candidate.origin,
            groups=candidate.groups,
            own_groups=_own_groups(candidate.schedule, known),
            default=candidate.origin == "default",
            chosen=candidate.origin == "default"
            if taken is None
            else candidate.schedule.id == taken,
            predicted_us=candidate.predicted_us,
            predicted_low_us=candidate.predicted_low_us,
            predicted_high_us=candidate.predicted_high_us,
            measured_us=candidate.measured_us,
            spread=candidate.spread,
            rounds=candidate.rounds,
            status=candidate.status,
            reason=candidate.reason,
        )
        for candidate in candidates
    )


def _own_groups(
    schedule: Schedule, known: Collection[frozenset[str]]
) -> tuple[tuple[str, ...], ...]:
    if schedule.plan is None or schedule.lowering:
        return ()
    return tuple(names for names in schedule.plan.groups if frozenset(names) not in known)
