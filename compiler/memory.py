"""What is remembered between compiles: decisions looked up, outcomes written down.

The bridge between the pipeline and the store; decides nothing itself.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from fusewise.compiler.reports import GraphReport
from fusewise.compiler.survey import Survey
from fusewise.costmodel.device import DeviceProfile
from fusewise.datasets.decided import Decided, Outcome
from fusewise.datasets.rows import (
    CandidateSummary,
    DecisionRow,
    DeviceRow,
    GraphRow,
    MeasurementRow,
    Row,
    ScheduleRow,
    encode_problem,
    utc_now,
)
from fusewise.datasets.store import Store
from fusewise.schedule.errors import StoreError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Choice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remembered:
    """An earlier decision on the same graph."""

    candidates: list[Candidate]
    chosen: Candidate
    nodes: int


#: Modes whose decisions each mode takes over. What was only predicted is no measurement, and a
#: prediction must not depend on what happens to have been measured.
_TAKEN_OVER = {"measure": ("measure",), "predict": ("predict",), "replay": ("measure", "predict")}


def recall_at_once(store: Path, graph_key: str, device_key: str, mode: str) -> Remembered | None:
    """The newest decision that holds in ``mode``, if it is to be had without opening the store.

    Only the first of the modes that are taken over is looked for: a decision of another one might
    not be the newest.
    """
    outcome = Decided(store).find(graph_key, device_key, _TAKEN_OVER[mode][0])
    return None if outcome is None else _remembered(outcome)


def recall(store: Store, graph_key: str, device_key: str, mode: str) -> Remembered | None:
    """The newest decision on a graph that holds in ``mode``, with its candidates.

    None where there is none.

    Raises:
        StoreError: the store cannot be read.
    """
    store.ingest()
    outcome = store.outcome(graph_key, device_key, _TAKEN_OVER[mode])
    return None if outcome is None else _remembered(outcome)


def _remembered(outcome: Outcome) -> Remembered | None:
    candidates = []
    for summary in outcome.decision.candidates:
        schedule = outcome.schedules.get(summary.schedule_id)
        if schedule is None:
            return None
        fields = msgspec.structs.asdict(summary)
        del fields["schedule_id"]
        candidates.append(Candidate(schedule=schedule, **fields))
    chosen = [c for c in candidates if c.schedule.id == outcome.decision.schedule_id]
    return Remembered(candidates, chosen[0], outcome.nodes) if chosen else None


def remember(
    store: Store,
    report: GraphReport,
    *,
    parts: dict[str, str],
    surveys: Sequence[Survey],
    profile: DeviceProfile,
    model_id: str,
    conditions: dict[str, float],
    family: str = "",
    source: str = "compile",
) -> list[Row]:
    """Write down what a compile found out, to be taken in by whoever opens the store next.

    Returns:
        What tells of the decision; nothing where none was taken.

    Raises:
        StoreError: the spool cannot be written.
    """
    measured: list[Row] = [device_row(profile)]
    told = _graph_rows(report, parts, surveys, family, source)
    for candidate in report.candidates:
        told.append(
            ScheduleRow(
                id=candidate.schedule.id,
                graph_key=report.key,
                schedule=candidate.schedule,
                origin=candidate.origin,
                groups=candidate.groups,
                predicted_us=candidate.predicted_us,
                predicted_low_us=candidate.predicted_low_us,
                predicted_high_us=candidate.predicted_high_us,
            )
        )
        if candidate.status != "predicted":
            measured.append(_measurement(candidate, report.key, profile, conditions))
    # A choice that a failure forced is no decision: the next compile is to try again.
    decided = report.chosen is not None and report.fallback is None
    if report.chosen is not None and decided:
        told.append(
            DecisionRow(
                graph_key=report.key,
                device_key=profile.key,
                mode=report.mode,
                model_id=model_id,
                schedule_id=report.chosen.schedule.id,
                candidates=tuple(CandidateSummary.of(c) for c in report.candidates),
            )
        )
    store.append([*measured, *told])
    return told if decided else []


def remember_blocks(store: Store, told: Sequence[Row], blocks: Sequence[Choice]) -> None:
    """Write a decision down once more, with the block sizes that kernels have come to since.

    Args:
        store: that it was written to.
        told: what :func:`remember` gave.
        blocks: those of the chosen schedule, by kernel; they stand for what is known of the same.
    """
    if not blocks:
        return
    rows = [_with_blocks(row, blocks) if isinstance(row, DecisionRow) else row for row in told]
    try:
        store.append(rows)
    except StoreError as error:
        # The program runs on, and what compiles it next tunes it again.
        log.debug("block sizes are not remembered: %s", error)


def _with_blocks(decision: DecisionRow, blocks: Sequence[Choice]) -> DecisionRow:
    names = {choice.name for choice in blocks}

    def known(candidate: CandidateSummary) -> CandidateSummary:
        if candidate.schedule_id != decision.schedule_id:
            return candidate
        kept = [choice for choice in candidate.blocks if choice.name not in names]
        return msgspec.structs.replace(candidate, blocks=tuple(sorted([*kept, *blocks])))

    candidates = tuple(map(known, decision.candidates))
    return msgspec.structs.replace(decision, candidates=candidates, at=utc_now())


def device_row(profile: DeviceProfile) -> DeviceRow:
    """A device as the store keeps it."""
    return DeviceRow(
        key=profile.key,
        kind=profile.kind,
        name=profile.name,
        threads=profile.threads,
        profile=msgspec.to_builtins(profile),
    )


def _graph_rows(
    report: GraphReport, parts: dict[str, str], surveys: Sequence[Survey], family: str, source: str
) -> list[Row]:
    if not surveys:
        return []
    problem: Problem = surveys[0].problem
    return [
        GraphRow(
            key=report.key,
            parts=parts,
            kind=problem.kind,
            family=family,
            source=source,
            nodes=len(problem.nodes),
            problem=encode_problem(problem),
            torch_version=str(torch.__version__),
        )
    ]


def _measurement(
    candidate: Candidate, graph_key: str, profile: DeviceProfile, conditions: dict[str, float]
) -> MeasurementRow:
    failed = candidate.status == "failed"
    return MeasurementRow(
        subject="schedule",
        subject_id=candidate.schedule.id,
        graph_key=graph_key,
        device_key=profile.key,
        threads=profile.threads,
        status="failed" if failed else "ok",
        reason=candidate.reason if failed else "",
        median_us=candidate.measured_us,
        spread=candidate.spread,
        rounds=candidate.rounds,
        error=candidate.error,
        clock={"machine": platform.machine(), **conditions},
        torch_version=str(torch.__version__),
    )
