"""``fusewise plan``: plan files shown, compared, checked against a program and applied to one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fusewise.commands.options import (
    json_option,
    model_option,
    new_or_existing_store,
    store_option,
    target_device_option,
    usable_device,
)
from fusewise.schedule.errors import PlanError

if TYPE_CHECKING:
    from fusewise.compiler.applying import Where
    from fusewise.datasets.corpus import GraphSample

_EXAMPLE = """\b
Examples:
  fusewise plan show plan.json
  fusewise plan diff plan.json other.json
  fusewise plan check plan.json model.py:factory
  fusewise plan apply plan.json model.py:factory --partial --out new.json

Plan files are written by `fusewise search --out`; docs/plans.md has the format. `diff` and `check`
end with exit code 1 where plans differ or do not replay.
"""

_DIFFERS = 1


@click.group(epilog=_EXAMPLE)
def plan() -> None:
    """Show, compare, check and apply plan files."""


_file = click.argument("file", type=click.Path(path_type=Path))
_target = click.argument("target", metavar="TARGET")
_rows = click.option(
    "--rows", type=click.IntRange(1), default=30, show_default=True, help="Most rows of a table."
)


@plan.command()
@_file
@_rows
@json_option
def show(*, file: Path, rows: int, as_json: bool) -> None:
    """Tell what a plan file holds."""
    from fusewise.commands.plan_tables import show_file
    from fusewise.schedule.plan_file import read_plan_file

    found = read_plan_file(file)
    if not found.graphs:
        raise PlanError(
            f"it holds no graphs: {found.program or 'its program'} had none to search",
            subject=f"plan file {file}",
            remedy="search a program of which some graph computes something, with "
            "`fusewise search --out`",
        )
    if as_json:
        # The file itself is made to be read by machines, too.
        click.echo(file.read_text().rstrip())
    else:
        show_file(found, rows)


@plan.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@_rows
@json_option
@click.pass_context
def diff(ctx: click.Context, *, first: Path, second: Path, rows: int, as_json: bool) -> None:
    """Tell how two plan files differ; exit code 1 where they do."""
    from fusewise.commands.plan_tables import show_diff
    from fusewise.schedule.plan_diff import diff_plans
    from fusewise.schedule.plan_file import read_plan_file

    found = diff_plans(read_plan_file(first), read_plan_file(second))
    if as_json:
        _print({"same": found.same, **msgspec.to_builtins(found)})
    else:
        show_diff(found, rows)
    if not found.same:
        ctx.exit(_DIFFERS)


@plan.command()
@_file
@_target
@model_option
@store_option
@target_device_option
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    *,
    file: Path,
    target: str,
    model: str | None,
    store_path: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Tell whether a program replays by a plan file, and else what differs; exit code 1 then."""
    from fusewise.commands.plan_tables import show_check
    from fusewise.compiler.applying import check_program
    from fusewise.schedule.plan_file import read_plan_file

    found = read_plan_file(file)
    checked = check_program(_sample(target, device), _where(file, store_path, model))
    replays = all(graph.replays for graph in checked)
    if as_json:
        _print({"replays": replays, "graphs": msgspec.to_builtins(checked)})
    else:
        show_check(checked, found)
    if not replays:
        ctx.exit(_DIFFERS)


@plan.command()
@_file
@_target
@click.option(
    "--partial",
    is_flag=True,
    help="On a changed graph carry over what still matches, Inductor's own elsewhere.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Plan file to write what was applied.")
@model_option
@store_option
@target_device_option
@json_option
def apply(
    *,
    file: Path,
    target: str,
    partial: bool,
    out: Path | None,
    model: str | None,
    store_path: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Compile and run a program by a plan file, and tell what of it was applied."""
    from fusewise.commands.plan_tables import show_applied
    from fusewise.compiler.applying import apply_program
    from fusewise.compiler.plan_files import new_plan_file
    from fusewise.schedule.plan_file import write_plan_file

    where = _where(file, store_path, model)
    applied = apply_program(_sample(target, device), where, partial=partial)
    if out is not None:
        write_plan_file(out, new_plan_file(target, applied.planned))
    if as_json:
        _print(
            {
                "plan": None if out is None else str(out),
                "graphs": msgspec.to_builtins(applied.graphs),
            }
        )
    else:
        show_applied(applied.graphs)
        if out is not None:
            # Plain, as a long path must stay in one piece to be copied.
            click.echo(f"plan {out}")


def _where(file: Path, store_path: Path | None, model: str | None) -> Where:
    from fusewise.compiler.applying import Where

    with new_or_existing_store(store_path) as store:
        return Where(plan=file, store=store.path, model=model)


def _sample(target: str, device: str | None) -> GraphSample:
    from fusewise.datasets.corpora import on_device
    from fusewise.datasets.target import load_target

    on = None if device is None else usable_device(device)
    sample = load_target(target)
    return sample if on is None else on_device(sample, on)


def _print(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
