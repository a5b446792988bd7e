"""What ``train-costmodel`` prints: tables to look at, and the JSON of ``--json``.

Only how results are told; they are worked out elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.table import Table

from fusewise.training.block_training import BlockReport
from fusewise.training.curve import CurvePoint
from fusewise.training.fit import TrainingReport
from fusewise.training.foresight import Foresight
from fusewise.training.held_back import HeldBackReport
from fusewise.training.out_of_range import OutOfRange
from fusewise.training.score_table import (
    BLOCK_COLUMNS,
    PERCENT,
    block_rows,
    score_rows,
    untimed_told,
)
from fusewise.training.scores import Scores

_HELD: Final = {
    "family": "families held out",
    "graph": "graphs held out",
    "published split": "test split",
    "unseen families": "kernels of unseen families",
    "all": "all kernels",
}
#: Columns of a table that is not shown in a terminal.
_PIPED_WIDTH: Final = 160


def report_json(report: TrainingReport) -> dict[str, Any]:
    """The report with the model's scores at the top and the roofline's under ``roofline``."""
    told: dict[str, Any] = msgspec.to_builtins(report)
    model = told.pop("model")
    roofline = told.pop("roofline")
    baselines = told.pop("baselines")
    return {**told, **model, "roofline": roofline, "baselines": baselines}


def show(report: TrainingReport) -> None:
    """Print a report as tables."""
    console = _console()
    contenders: list[Scores] = [report.model, report.roofline, *report.baselines.values()]
    names = ["model", "roofline", *(name.replace("_", " ") for name in report.baselines)]
    table = Table("", *names, title=f"{report.device}, {_HELD[report.split]}")
    for title, cells in score_rows(contenders):
        table.add_row(title, *cells)
    console.print(table)
    if report.n_schedules_skipped:
        console.print(f"{report.n_schedules_skipped} schedules cannot be predicted, left out")
    if report.borrowed_from:
        console.print(
            f"no model was trained for {report.device}: the nearest there is, of "
            f"{report.borrowed_from}, answered with wider intervals"
        )
    _show_foresight(console, report.foresight)
    _show_blocks(console, report.blocks)
    _show_classes(console, report)
    _show_worse(console, report)
    _show_strange(console, report.out_of_range)
    _show_curve(console, report.curve)
    if report.tuned:
        console.print("tuned:", ", ".join(f"{k}={v}" for k, v in report.tuned.items()))
    if report.path:
        # Plain, as a long path must stay in one piece to be copied.
        click.echo(f"saved {report.path}")


def show_held_back(report: HeldBackReport) -> None:
    """Print a learning curve on a part that was held back."""
    console = _console()
    console.print(
        f"{report.device}: base of {report.n_base} kernels of {report.base}, adapted to the part "
        f"{report.held_back!r}, judged by {report.n_kernels} kernels of it"
    )
    found = report.unadapted
    console.print(
        f"as it is: answers for {found.n_borrowed} of them, MAPE >= 5 us "
        f"{_percent(found.mape_5us)} (roofline {_percent(found.roofline_mape_5us)}), "
        f"{_percent(found.coverage90)} inside the 90 % interval"
    )
    _show_curve(console, report.curve)


def _show_foresight(console: Console, found: Foresight | None) -> None:
    if found is None:
        return
    share = "" if found.share is None else f", {_percent(found.share)} of what the fastest gives"
    console.print(
        f"chosen by prediction: another schedule in {found.taken} of {found.graphs} graphs, slower "
        f"in {found.slower}; gain {found.gain:.4f} in the mean{share}"
    )


def _show_blocks(console: Console, found: BlockReport | None) -> None:
    if found is None:
        return
    told = f"block sizes: trained on {found.n_train} kernels" if found.n_train else "block sizes:"
    console.print(f"{told} judged by {found.n_kernels}, {found.unknown} are not known")
    for which, judgement in (("of 3 us and more", found.large), ("of all sizes", found.all)):
        if judgement is None:
            continue
        title = f"{judgement.kernels} kernels {which}, {judgement.best_gain:.3f} to be gained"
        table = Table(*BLOCK_COLUMNS, title=title)
        for cells in block_rows(judgement):
            table.add_row(*cells)
        console.print(table)
        for line in untimed_told(judgement):
            console.print(line)


def _show_classes(console: Console, report: TrainingReport) -> None:
    titles = ("class", "kernels", "MAPE >= 5 us", "roofline", "MAPE below", "inside 90 %")
    table = Table(*titles, "out of range")
    for name, scores in report.model.by_class.items():
        roofline = report.roofline.by_class.get(name, Scores())
        cells = (
            scores.mape_5us,
            roofline.mape_5us,
            scores.mape_small,
            scores.coverage90,
            scores.flagged,
        )
        table.add_row(name, str(scores.n_kernels), *map(_percent, cells))
    console.print(table)


def _show_worse(console: Console, report: TrainingReport) -> None:
    """Name the families in which the roofline does better."""
    worse = []
    for name, scores in report.model.by_family.items():
        roofline = report.roofline.by_family.get(name, Scores()).mape_5us
        if scores.mape_5us is not None and roofline is not None and scores.mape_5us > roofline:
            worse.append(f"{name} ({_percent(scores.mape_5us)}, {_percent(roofline)})")
    if worse:
        console.print("MAPE >= 5 us above the roofline's in:", ", ".join(worse))


def _show_strange(console: Console, found: OutOfRange | None) -> None:
    if found is None:
        return
    table = Table("left out of training", "trained on", "judged by", "told to be out of range")
    for one in found.left_out:
        cells = (str(one.n_train), str(one.n_kernels), _percent(one.flagged))
        table.add_row(f"{one.kind}: {one.name}", *cells)
    console.print(table)
    console.print(f"families left out, taken for strange: {_percent(found.false_alarms)}")


def _show_curve(console: Console, curve: tuple[CurvePoint, ...]) -> None:
    if not curve:
        return
    table = Table("kernels", "from scratch", "adapted", title="MAPE of kernels >= 5 us")
    for point in curve:
        adapted = None if point.adapted is None else point.adapted.mape_5us
        table.add_row(str(point.kernels), _percent(point.scratch.mape_5us), _percent(adapted))
    console.print(table)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def _percent(value: float | None) -> str:
    return "-" if value is None else PERCENT.format(value)
