"""``fusewise ablate``: what each stage of the compiler is worth to one program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewise.commands.options import (
    duration,
    json_option,
    model_option,
    store_option,
    target_device_option,
    usable_device,
)
from fusewise.commands.output import (
    microseconds,
    print_json,
    progress_bar,
    result_console,
    result_table,
    shortened,
)
from fusewise.schedule.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fusewise.compiler.ablating.result import Ablation, StageResult

_EXAMPLE = """\b
Examples:
  fusewise ablate model.py:factory
  fusewise ablate model.py:factory --device cuda --json
  fusewise ablate model.py:factory --stages no_fusion,no_inlining --plot stages.svg

TARGET is FILE.py:FACTORY, a function without arguments that returns (callable, args) or (callable,
args, kwargs). A module in training mode is compiled with its backward, anything else for inference,
without gradients. Each stage is left out of every graph; all programs of a graph are timed in one
interleaved run, on a GPU by replaying CUDA graphs. Nothing is kept and nothing is applied.
"""


@click.command(epilog=_EXAMPLE)
@click.argument("target", metavar="TARGET")
@click.option(
    "--stages",
    metavar="NAME,…",
    help="Stages to measure beside everything; default: all.",
)
@click.option(
    "--seconds",
    type=duration,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Timing of each graph, all stages together.",
)
@click.option(
    "--top-k",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Candidates of fusewise's own that are timed along.",
)
@click.option("--mode", metavar="MODE", help="A mode of torch.compile, such as max-autotune.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also draw the stages, into a .png or .svg file.",
)
@model_option
@store_option
@target_device_option
@json_option
def ablate(
    *,
    target: str,
    stages: str | None,
    seconds: float,
    top_k: int,
    mode: str | None,
    plot: Path | None,
    model: str | None,
    store_path: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Measure what each stage of the compiler is worth to a program."""
    if plot is not None:
        from fusewise.commands.ablation_plot import check_plot

        # What cannot be drawn is told before anything is measured.
        check_plot(plot)
    # torch takes seconds to import, which --help is not made to wait for.
    import msgspec

    from fusewise.compiler.ablating.program import STAGE_NAMES, Effort, ablate_program
    from fusewise.datasets.corpora import on_device
    from fusewise.datasets.store import default_store_path
    from fusewise.datasets.target import load_target

    effort = Effort(
        store=store_path or default_store_path(),
        model=model,
        seconds=seconds,
        top_k=top_k,
        mode=mode,
        stages=STAGE_NAMES if stages is None else _names(stages),
    )
    on = None if device is None else usable_device(device)
    sample = load_target(target)
    if on is not None:
        sample = on_device(sample, on)
    with progress_bar(as_json=as_json) as bar:
        task = bar.add_task("compiling", total=None, note="")
        found = ablate_program(sample, effort, lambda doing: bar.update(task, description=doing))
    if plot is not None:
        from fusewise.commands.ablation_plot import draw

        draw(found, plot)
    if as_json:
        told = msgspec.to_builtins(found)
        print_json(told | {"plot": None if plot is None else str(plot)})
    else:
        _show(found, plot)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise OptionError(
            "no stage is named", subject="option --stages", remedy="name some, or leave it out"
        )
    return names


def _show(found: Ablation, plot: Path | None) -> None:
    kind = "training" if found.training else "inference"
    _table(f"{found.target}, {kind}, {found.device}", found.stages)
    if len(found.graphs) > 1:
        for graph in found.graphs:
            _table(f"{graph.kind} graph, {graph.operators} operators", graph.stages)
    for stage in found.stages:
        if stage.reason and stage.status != "same code":
            click.echo(f"{stage.name}: {shortened(stage.reason, 400)}")
    clocks = ", ".join(sorted({graph.clock for graph in found.graphs}))
    rounds = ", ".join(str(graph.rounds) for graph in found.graphs)
    click.echo(f"timed by {clocks}, rounds: {rounds}")
    if plot is not None:
        click.echo(f"plot {plot}")


def _table(title: str, stages: Sequence[StageResult]) -> None:
    columns = ("time", "× everything", "kernels", "extern", "nodes", "moved", "peak", "error", "")
    table = result_table("stage", *columns, title=title)
    for stage in stages:
        if stage.us is None:
            table.add_row(stage.name, *["-"] * (len(columns) - 1), stage.status)
            continue
        spread = "" if stage.spread is None else f" ± {stage.spread:.0%}"
        wrong = "[red]inaccurate[/]" if stage.accurate is False else ""
        note = shortened(stage.reason, 48) if stage.status == "same code" else stage.status
        table.add_row(
            stage.name,
            microseconds(stage.us) + spread,
            "-" if stage.ratio is None else f"{stage.ratio:.3f}",
            _count(stage.kernels),
            _count(stage.extern_calls),
            _count(stage.nodes),
            _bytes(stage.bytes),
            _bytes(stage.peak_bytes),
            "-" if stage.error is None else f"{stage.error:.1e}",
            wrong or ("" if note == "measured" else note),
        )
    result_console().print(table)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
