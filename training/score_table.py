"""Scores as rows of text, for tables in a terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fusewise.training.block_scores import BlockJudgement, FirstSizes
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


#: Titles of the columns of :func:`block_rows`.
BLOCK_COLUMNS: Final = (
    "block sizes timed beside Inductor's own",
    "by the model: regret (median)",
    "gain kept",
    "the nearest: regret (median)",
    "gain kept",
)


def block_rows(found: BlockJudgement) -> list[list[str]]:
    """The table of block sizes: a row for each number of them that is timed."""
    alone = _first_cells(found.own)
    rows = [["0", *alone, *alone]]
    for k, by_model in found.model.first.items():
        rows.append([k, *_first_cells(by_model), *_first_cells(found.nearest.first[k])])
    return rows


def untimed_told(found: BlockJudgement) -> list[str]:
    """What comes of taking sizes without timing any, a line for each expected ratio."""
    return [
        f"expected to take {below} of the time or less, and not timed: {one.taken} of "
        f"{found.kernels}, slower {one.slower}, gain {one.gain:.4f} in the mean"
        for below, one in found.untimed.items()
    ]


def _first_cells(found: FirstSizes) -> list[str]:
    regret, middle = PERCENT.format(found.regret), PERCENT.format(found.median_regret)
    return [f"{regret} ({middle})", _cell(found.kept, PERCENT)]


def _cell(value: float | int | None, form: str) -> str:
    return "-" if value is None else form.format(value)
