"""Scores as rows of text, for tables in a terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusewise.training.scores import MEASURED, Scores

#: How a share is told; whole percentages would hide differences.
PERCENT: Final = "{:.1%}"
#: Title, name and form of each score.
_ROWS: Final = (
    ("kernels", "n_kernels", "{:d}"),
    ("MAPE, kernels >= 5 us", "mape_5us", PERCENT),
    ("MAPE, below", "mape_small", PERCENT),
    ("median error, >= 5 us", "median_error_5us", PERCENT),
    ("median error, below", "median_error_small", PERCENT),
    ("pairs of kernels in order", "kernel_pairwise", PERCENT),
    ("inside the 90 % interval", "coverage90", PERCENT),
    ("out of range", "flagged", PERCENT),
    ("schedules", "n_schedules", "{:d}"),
    ("Kendall tau of schedules", "kendall_tau", "{:.3f}"),
    ("pairs of schedules in order", "pairwise", PERCENT),
    ("top-1", "top1", "{:.3f}"),
    ("top-5", "top5", "{:.3f}"),
    ("MAPE of schedules", "schedule_mape", PERCENT),
)


def score_rows(contenders: Sequence[Scores]) -> list[tuple[str, list[str]]]:
    """The table of scores: for each its title and a cell for each contender, ``-`` for none."""
    rows = [
        (title, [_cell(getattr(scores, name), form) for scores in contenders])
        for title, name, form in _ROWS
    ]
    rows += [
        (
            f"regret after measuring {k}",
            [_cell(scores.regret.get(str(k)), PERCENT) for scores in contenders],
        )
        for k in MEASURED
    ]
    return rows


def _cell(value: float | int | None, form: str) -> str:
    return "-" if value is None else form.format(value)
