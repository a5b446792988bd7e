"""``fusewise search``: search the schedules of one program for as long as it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusewise.commands.options import (
    duration,
    json_option,
    model_option,
    new_or_existing_store,
    seed_option,
    store_option,
    target_device_option,
    usable_device,
)
from fusewise.commands.output import microseconds, print_json, progress_bar, result_console

if TYPE_CHECKING:
    from fusewise.compiler.offline import SearchedProgram, Standing
    from fusewise.compiler.trials import SearchedGraph

_EXAMPLE = """\b
Examples:
  fusewise search model.py:factory --budget 10m --out plan.json
  fusewise search model.py:factory --trials 60 --name model-a --json

TARGET is FILE.py:FACTORY, a function without arguments that returns (callable, args) or (callable,
args, kwargs). A module in training mode is compiled with its backward, anything else for inference,
without gradients. What is found is kept in the store and in the plan file; it is used by

\b
  torch.compile(model, backend="fusewise",
                options={"fusewise.mode": "replay", "fusewise.plan": "plan.json"})

Ctrl-C ends the search and keeps the best so far; with --name the next search goes on from there.
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
    type=duration,
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="Time for all graphs; what is under way then is finished.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Candidates to measure in each trial.",
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
    from fusewise.compiler.trials import Effort
    from fusewise.datasets.corpora import on_device
    from fusewise.datasets.target import load_target
    from fusewise.schedule.plan_file import write_plan_file
    from fusewise.schedule.rule_file import read_rule_file

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
        )
    sample = load_target(target)
    if on is not None:
        sample = on_device(sample, on)
    with progress_bar(as_json=as_json) as bar:
        task = bar.add_task("compiling", total=None, note="")

        def show(standing: Standing) -> None:
            bar.update(
                task,
                description=f"graph {standing.graph} of {standing.graphs}, {standing.kind}",
                note=_note(standing),
                completed=standing.done,
                total=standing.trials,
            )

        found = search_program(sample, effort, show)
    if out is not None:
        write_plan_file(out, found.plan_file())
    if as_json:
        print_json(_told(found, store.path, out))
    else:
        _show(found, store.path, out)


def _note(standing: Standing) -> str:
    return (
        f"{standing.measured} measured, default {microseconds(standing.default_us)}, "
        f"best {microseconds(standing.best_us)}"
    )


def _told(found: SearchedProgram, store: Path, out: Path | None) -> dict[str, Any]:
    return {
        "store": str(store),
        "plan": None if out is None else str(out),
        "interrupted": found.interrupted,
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
        "measured": graph.measured,
        "schedule": planned.schedule.id,
        "origin": report.chosen.origin,
        "choices": planned.schedule.describe(),
        "default_us": planned.default_us,
        "best_us": planned.measured_us,
        "speedup": _speedup(graph),
        "predicted_us": planned.predicted_us,
        "reason": report.chosen.reason,
        "not_measured": report.fallback,
        "rules": None if report.rules is None else asdict(report.rules),
        "seconds": report.seconds,
    }


def _rules_told(found: SearchedProgram) -> Iterator[str]:
    """What came of rules: those that matched in no graph, and what each graph has to say."""
    told = [(graph.report.kind, graph.report.rules) for graph in found.graphs]
    reports = [(kind, rules) for kind, rules in told if rules is not None]
    unmatched = [set(rules.unmatched) for _, rules in reports]
    for rule in sorted(set.intersection(*unmatched)) if unmatched else ():
        yield f"{rule} matched nothing"
    for kind, rules in reports:
        yield from (f"{kind} graph, conflict: {text}" for text in rules.conflicts)
        yield from (f"{kind} graph, not kept: {text}" for text in rules.unkept)


def _speedup(graph: SearchedGraph) -> float | None:
    planned = graph.planned
    if not planned.default_us or not planned.measured_us:
        return None
    return planned.default_us / planned.measured_us


def _show(found: SearchedProgram, store: Path, out: Path | None) -> None:
    from rich.table import Table

    table = Table("graph", "nodes", "default", "best", "speed-up", "measured", "trials", "chosen")
    for graph in found.graphs:
        report, speedup = graph.report, _speedup(graph)
        assert report.chosen is not None
        schedule = report.chosen.schedule.describe()
        table.add_row(
            report.kind,
            str(report.nodes),
            microseconds(graph.planned.default_us),
            microseconds(graph.planned.measured_us),
            "-" if speedup is None else f"{speedup:.3f}",
            str(graph.measured),
            f"{graph.trials}, {graph.failed} failed" if graph.failed else str(graph.trials),
            "the default" if report.chosen.origin == "default" else schedule,
        )
    result_console().print(table)
    for graph in found.graphs:
        if graph.report.fallback is not None:
            click.echo(f"{graph.report.kind} graph {graph.report.fallback}")
    for line in _rules_told(found):
        click.echo(line)
    if found.interrupted:
        click.echo("ended by interrupt: the best so far is kept")
    # Plain, as a long path must stay in one piece to be copied.
    click.echo(f"store {store}")
    if out is not None:
        click.echo(f"plan {out}")
