"""``fusewise search``: search the schedules of one program for as long as it is given."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusewise.commands.options import (
    duration_or_none,
    json_option,
    model_option,
    new_or_existing_store,
    seed_option,
    store_option,
    target_device_option,
    usable_device,
)
from fusewise.commands.output import (
    TimeLeft,
    mebibytes,
    microseconds,
    print_json,
    progress_bar,
    result_console,
)

if TYPE_CHECKING:
    from fusewise.compiler.offline import SearchedProgram, Standing
    from fusewise.compiler.searched import SearchedGraph
    from fusewise.compiler.trying import Foreseen
    from fusewise.schedule.schedule import Candidate
    from fusewise.search.objective import Objective

_NOTHING = "no graph of it computes anything, so there is nothing to search: it runs as it is"
_EXAMPLE = """\b
Examples:
  fusewise search model.py:factory --budget 10m --out plan.json
  fusewise search model.py:factory --trials 60 --name model-a --json
  fusewise search model.py:factory --objective pareto --out plan.json

TARGET is FILE.py:FACTORY, a function without arguments that returns (callable, args) or (callable,
args, kwargs). A module in training mode is compiled with its backward, anything else for inference,
without gradients. What is found is kept in the store and in the plan file; it is used by

\b
  torch.compile(model, backend="fusewise",
                options={"fusewise.mode": "replay", "fusewise.plan": "plan.json"})

Ctrl-C ends the search and keeps the best so far; with --name the next search goes on from there,
also after its process was killed.
"""


@click.command(epilog=_EXAMPLE)
@click.argument("target", metavar="TARGET")
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Sets of lowering and codegen choices to try for each graph.",
)
@click.option(
    "--budget",
    type=duration_or_none,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Time for all graphs; what is under way then is finished. 0 measures nothing.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Candidates to measure in each trial.",
)
@click.option(
    "--objective",
    type=click.Choice(["time", "memory", "pareto"]),
    default="time",
    show_default=True,
    help="What to make small: time, peak memory, or both, to choose among the best trades.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Plan file to write.")
@model_option
@click.option(
    "--rules",
    "rule_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rules that every schedule has to keep, as TOML or JSON.",
)
@click.option("--name", help="Name to go on with this search by another time.")
@seed_option
@store_option
@target_device_option
@json_option
def search(
    *,
    target: str,
    trials: int,
    budget: float,
    top_k: int,
    objective: Objective,
    out: Path | None,
    model: str | None,
    rule_file: Path | None,
    name: str | None,
    seed: int,
    store_path: Path | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Search for faster schedules of a program by measured trials."""
    # torch takes seconds to import, which --help is not made to wait for.
    import optuna

    from fusewise.compiler.offline import search_program
    from fusewise.compiler.rule_notices import check_matched
    from fusewise.compiler.searched import Effort
    from fusewise.datasets.corpora import on_device
    from fusewise.datasets.target import load_target
    from fusewise.schedule.plan_file import check_writable, write_plan_file
    from fusewise.schedule.rule_file import read_rule_file

    if out is not None:
        check_writable(out)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    on = None if device is None else usable_device(device)
    with new_or_existing_store(store_path) as store:
        effort = Effort(
            store=store.path,
            model=model,
            trials=trials,
            top_k=top_k,
            budget_s=budget,
            name=name,
            seed=seed,
            rules=None if rule_file is None else read_rule_file(rule_file),
            objective=objective,
        )
    sample = load_target(target)
    if on is not None:
        sample = on_device(sample, on)
    with progress_bar(as_json=as_json, last=TimeLeft()) as bar:
        task = bar.add_task("compiling", total=None, note="")

        def show(standing: Standing) -> None:
            bar.update(
                task,
                description=_doing(standing),
                note=_note(standing),
                completed=standing.done,
                total=standing.trials,
                until=time.monotonic() + standing.left_s,
            )

        found = search_program(sample, effort, show)
    trades: list[Path] = []
    if out is not None:
        write_plan_file(out, found.plan_file())
        for at, trade in enumerate(found.front(), 1):
            trades.append(out.with_name(f"{out.stem}.{at}{out.suffix}"))
            write_plan_file(trades[-1], trade)
    if as_json:
        print_json(_told(found, store.path, out, trades))
    else:
        _show(found, store.path, out, trades)
    if effort.rules is not None and not found.interrupted:
        known = [node for graph in found.graphs for node in graph.planned.nodes]
        names = {"op": [operator for node in known for operator in node.operations]}
        check_matched(effort.rules, [graph.report.rules for graph in found.graphs], names)


def _doing(standing: Standing) -> str:
    return f"graph {standing.graph} of {standing.graphs}, {standing.kind}: {standing.doing}"


def _note(standing: Standing) -> str:
    told = (
        f"{standing.measured} measured, default {microseconds(standing.default_us)}, "
        f"best {microseconds(standing.best_us)} "
        f"({microseconds(standing.predicted_us)} predicted)"
    )
    if standing.best_bytes is not None:
        told += f", {mebibytes(standing.best_bytes)} of {mebibytes(standing.default_bytes)}"
    return told


def _told(
    found: SearchedProgram, store: Path, out: Path | None, trades: Sequence[Path]
) -> dict[str, Any]:
    return {
        "store": str(store),
        "plan": None if out is None else str(out),
        "front_plans": [str(path) for path in trades],
        "interrupted": found.interrupted,
        "not_searched": None if found.graphs else _NOTHING,
        "graphs": [_graph_told(graph) for graph in found.graphs],
    }


def _graph_told(graph: SearchedGraph) -> dict[str, Any]:
    planned, report = graph.planned, graph.report
    assert report.chosen is not None
    return {
        "kind": planned.kind,
        "key": report.key,
        "device": planned.device,
        "nodes": report.nodes,
        "trials": graph.trials,
        "failed_trials": graph.failed,
        "pruned_trials": graph.pruned,
        "measured": graph.measured,
        "schedule": planned.schedule.id,
        "origin": report.chosen.origin,
        "choices": planned.schedule.describe(),
        "default_us": planned.default_us,
        "best_us": planned.measured_us,
        "speedup": _speedup(graph),
        "predicted_us": planned.predicted_us,
        "default_bytes": None if report.default is None else report.default.peak_bytes,
        "best_bytes": report.chosen.peak_bytes,
        "front": [_trade_told(point.candidate) for point in graph.front],
        "predictions": _predictions(graph.foreseen),
        "reason": report.chosen.reason,
        "not_measured": report.fallback,
        "rules": None if report.rules is None else asdict(report.rules),
        "seconds": report.seconds,
    }


def _trade_told(candidate: Candidate) -> dict[str, Any]:
    return {
        "schedule": candidate.schedule.id,
        "origin": candidate.origin,
        "choices": candidate.schedule.describe(),
        "us": candidate.measured_us,
        "peak_bytes": candidate.peak_bytes,
    }


def _predictions(foreseen: Sequence[Foreseen]) -> dict[str, Any]:
    """How far predicted times over the default's were off the measured ones, as medians."""
    return {
        "count": len(foreseen),
        "error": _median(abs(f.predicted / f.measured - 1) for f in foreseen),
        "corrected_error": _median(abs(f.corrected / f.measured - 1) for f in foreseen),
    }


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None


def _rules_told(found: SearchedProgram) -> Iterator[str]:
    """What came of rules in each graph."""
    told = [(graph.report.kind, graph.report.rules) for graph in found.graphs]
    reports = [(kind, rules) for kind, rules in told if rules is not None]
    for kind, rules in reports:
        yield from (f"{kind} graph, conflict: {text}" for text in rules.conflicts)
        yield from (f"{kind} graph, not kept: {text}" for text in rules.unkept)


def _speedup(graph: SearchedGraph) -> float | None:
    planned = graph.planned
    if not planned.default_us or not planned.measured_us:
        return None
    return planned.default_us / planned.measured_us


def _show(found: SearchedProgram, store: Path, out: Path | None, trades: Sequence[Path]) -> None:
    if found.graphs:
        _show_graphs(found)
    else:
        click.echo(_NOTHING)
    for graph in found.graphs:
        if graph.report.fallback is not None:
            click.echo(f"{graph.report.kind} graph {graph.report.fallback}")
        _show_predictions(graph)
        _show_front(graph)
    for line in _rules_told(found):
        click.echo(line)
    if found.interrupted:
        click.echo("ended by interrupt: the best so far is kept")
    # Plain, as a long path must stay in one piece to be copied.
    click.echo(f"store {store}")
    if out is not None:
        click.echo(f"plan {out}")
    for path in trades:
        click.echo(f"plan {path}")


def _show_predictions(graph: SearchedGraph) -> None:
    told = _predictions(graph.foreseen)
    if told["count"]:
        click.echo(
            f"{graph.report.kind} graph: predictions of {told['count']} candidates were off by "
            f"{told['error']:.1%}, with what the run had measured by then "
            f"{told['corrected_error']:.1%} (medians, over the default's time)"
        )


def _show_front(graph: SearchedGraph) -> None:
    from rich.table import Table

    if not graph.front:
        return
    table = Table(
        "time", "peak memory", "schedule", title=f"{graph.report.kind} graph, best trades"
    )
    for point in graph.front:
        candidate = point.candidate
        chosen = "the default" if candidate.baseline else candidate.schedule.describe()
        row = microseconds(candidate.measured_us), mebibytes(candidate.peak_bytes), chosen
        table.add_row(*row)
    result_console().print(table)


def _show_graphs(found: SearchedProgram) -> None:
    from rich.table import Table

    table = Table("graph", "nodes", "default", "best", "speed-up", "measured", "trials", "chosen")
    weighed = any(graph.report.chosen.peak_bytes for graph in found.graphs if graph.report.chosen)
    if weighed:
        table.add_column("peak memory")
    for graph in found.graphs:
        report, speedup = graph.report, _speedup(graph)
        assert report.chosen is not None
        schedule = report.chosen.schedule.describe()
        given_up = [
            f"{count} {word}"
            for count, word in ((graph.failed, "failed"), (graph.pruned, "pruned"))
            if count
        ]
        row = (
            report.kind,
            str(report.nodes),
            microseconds(graph.planned.default_us),
            microseconds(graph.planned.measured_us),
            "-" if speedup is None else f"{speedup:.3f}",
            str(graph.measured),
            ", ".join([str(graph.trials), *given_up]),
            "the default" if report.chosen.origin == "default" else schedule,
        )
        default = report.default
        peak = (
            f"{mebibytes(report.chosen.peak_bytes)} of "
            f"{mebibytes(None if default is None else default.peak_bytes)}"
        )
        table.add_row(*row, *([peak] if weighed else []))
    result_console().print(table)
