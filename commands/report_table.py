"""A graph's report as a table: every candidate with its predicted and measured time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from fusewise.commands.output import microseconds, result_table, shortened

if TYPE_CHECKING:
    from fusewise.compiler.reports import GraphReport
    from fusewise.schedule.schedule import Candidate

_REASON_WIDTH = 84


def candidates_table(title: str, report: GraphReport) -> Table:
    """All candidates of a graph, the chosen one marked."""
    groups = report.default.groups if report.default is not None else "?"
    table = result_table(
        "",
        "candidate",
        "groups",
        "predicted (90 %)",
        "measured",
        "error",
        "gate",
        title=f"{title}: {report.kind} graph, {report.nodes} nodes, {groups} groups by default, "
        f"source={report.source}",
    )
    for candidate in report.candidates:
        chosen = report.chosen is not None and candidate.schedule == report.chosen.schedule
        table.add_row(
            "→" if chosen else "",
            _what(candidate),
            str(candidate.groups),
            _predicted(candidate),
            _measured(candidate),
            "-" if candidate.error is None else f"{candidate.error:.1e}",
            _verdict(candidate),
            style="bold" if chosen else None,
        )
    return table


def phases(report: GraphReport) -> str:
    """Seconds by phase, in one line."""
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.seconds.items())


def costs(report: GraphReport) -> list[str]:
    """What deciding cost and what it left out, a line each; none where nothing was decided."""
    lines = [f"deciding: {report.cost}"] if report.cost else []
    return lines + [f"not tried: {what}" for what in report.untried]


def _what(candidate: Candidate) -> str:
    choices = (*candidate.schedule.lowering, *candidate.schedule.codegen)
    return ", ".join([candidate.origin, *(f"{choice.name}={choice.value}" for choice in choices)])


def _predicted(candidate: Candidate) -> str:
    text = microseconds(candidate.predicted_us)
    if candidate.predicted_low_us is None or candidate.predicted_high_us is None:
        return text
    return f"{text} ({candidate.predicted_low_us:,.0f} to {candidate.predicted_high_us:,.0f})"


def _measured(candidate: Candidate) -> str:
    text = microseconds(candidate.measured_us)
    return text if candidate.spread is None else f"{text} ± {candidate.spread:.1%}"


def _verdict(candidate: Candidate) -> str:
    if candidate.status == "failed":
        return f"failed: {shortened(candidate.reason, _REASON_WIDTH)}"
    verdict = "accepted" if candidate.accepted else "no"
    return f"{verdict}: {shortened(candidate.reason, _REASON_WIDTH)}"
