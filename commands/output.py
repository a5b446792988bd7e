"""What commands print: results to stdout, progress to stderr, JSON alone where it is asked for."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

#: Reasons and failures are shown up to this many characters; JSON and the store have them whole.
_WIDTH = 100
#: Columns of a table that is not shown in a terminal.
_PIPED_WIDTH = 160


def print_json(value: dict[str, Any]) -> None:
    """Print a result for machines."""
    click.echo(json.dumps(value, indent=2))


def result_console() -> Console:
    """Where tables are printed; without a terminal wide enough that little is folded."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def result_table(*columns: str, title: str | None = None) -> Table:
    """A table without rows, whose names and numbers are folded where they do not fit, never cut."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def progress_bar(*, as_json: bool, last: ProgressColumn | None = None) -> Progress:
    """A bar on stderr; nothing is shown with ``--json`` or without a terminal.

    ``last`` stands at its end, in the place of the time that has passed.
    """
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}"),
        last or TimeElapsedColumn(),
        console=console,
        disable=as_json or not console.is_terminal,
        transient=True,
    )


class TimeLeft(ProgressColumn):
    """Minutes and seconds up to a task's field ``until``, on the monotonic clock, as they pass."""

    def render(self, task: Task) -> Text:
        """What is left now."""
        until = task.fields.get("until")
        if until is None:
            return Text("")
        left = max(0, round(until - time.monotonic()))
        return Text(f"{left // 60}:{left % 60:02d} left", style="progress.remaining")


def shortened(text: str, most: int = _WIDTH) -> str:
    """``text`` in one line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def mebibytes(size: int | None) -> str:
    """A number of bytes as people read it; ``-`` where there is none."""
    return "-" if size is None else f"{size / 2**20:,.1f} MiB"


def microseconds(us: float | None) -> str:
    """A time as people read it: ``812 ns`` is ``0.81 µs``; ``-`` where there is none."""
    if us is None:
        return "-"
    if us < 10:  # noqa: PLR2004
        return f"{us:.2f} µs"
    return f"{us:.1f} µs" if us < 1000 else f"{us:,.0f} µs"  # noqa: PLR2004
