"""``fusewise explain``: every possible fusion of a program, the kernels, and why they are so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusewise.commands.options import (
    json_option,
    model_option,
    new_or_existing_store,
    store_option,
    target_device_option,
    usable_device,
)
from fusewise.commands.output import progress_bar
from fusewise.schedule.errors import PlanError

if TYPE_CHECKING:
    from fusewise.compiler.explaining.report import ExplainedProgram
    from fusewise.schedule.rules import RuleSet

_EXAMPLE = """\b
Examples:
  fusewise explain model.py:factory
  fusewise explain model.py:factory --only missed
  fusewise explain model.py:factory --why op2,op5 --measure
  fusewise explain model.py:factory --graph backward --node op7 --plan plan.json
  fusewise explain model.py:factory --html report.html --measure
  fusewise explain model.py:factory --json > explained.json

TARGET is FILE.py:FACTORY, as for `fusewise search`. The chosen schedule is the one in the plan file
or in the store, else Inductor's own; with --predicted or --html, else the one that is predicted to
be best. Reasons are in docs/refusals.md; scores are Inductor's.
"""


@click.command(epilog=_EXAMPLE)
@click.argument("target", metavar="TARGET")
@click.option(
    "--graph",
    "graphs",
    type=click.Choice(["forward", "backward", "inference"]),
    multiple=True,
    help="Only this graph; may be given several times.",
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="Show only what has to do with this node; may be given several times.",
)
@click.option(
    "--only",
    type=click.Choice(["taken", "refused", "missed"]),
    help="Show only fusions that were taken; that Inductor refuses as illegal; or that are legal, "
    "would gain by prediction, and were left out.",
)
@click.option("--nodes", "with_nodes", is_flag=True, help="Show the scheduler's nodes, too.")
@click.option(
    "--why",
    metavar="A,B",
    help="Look closely at the fusion of two nodes or groups: what drives its prediction, and the "
    "plan with it added or removed.",
)
@click.option("--measure", is_flag=True, help="Time each kernel, and with --why both plans.")
@click.option("--plan", type=click.Path(path_type=Path), help="Plan file to explain.")
@click.option(
    "--rules",
    "rule_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rules that hold for it, as TOML or JSON: what they forbid has the reason `rule`.",
)
@click.option(
    "--predicted",
    is_flag=True,
    help="Where no schedule is stored or given, search for the plan that is predicted to be best "
    "and explain that.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page to look at, in one file that needs nothing beside it. Implies --predicted.",
)
@model_option
@store_option
@target_device_option
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=25,
    show_default=True,
    help="Most rows of a table.",
)
@json_option
def explain(
    *,
    target: str,
    graphs: tuple[str, ...],
    nodes: tuple[str, ...],
    only: str | None,
    with_nodes: bool,
    why: str | None,
    measure: bool,
    plan: Path | None,
    rule_file: Path | None,
    predicted: bool,
    html: Path | None,
    model: str | None,
    store_path: Path | None,
    device: str | None,
    rows: int,
    as_json: bool,
) -> None:
    """Tell of every possible fusion of a program, and of its kernels."""
    # torch takes seconds to import, which --help is not made to wait for.
    from fusewise.commands.explain_tables import Filter, show_program
    from fusewise.compiler.explaining.counterfactual import Question
    from fusewise.compiler.explaining.graph import Wish
    from fusewise.compiler.explaining.html import check_page, write_page
    from fusewise.compiler.explaining.program import explain_program
    from fusewise.datasets.corpora import on_device
    from fusewise.datasets.target import load_target
    from fusewise.schedule.rule_file import read_rule_file

    if html is not None:
        check_page(html)
    question = None
    if why is not None:
        first, comma, second = (part.strip() for part in why.partition(","))
        if not (comma and first and second):
            raise PlanError(
                f"{why!r} does not name two sides",
                subject="--why",
                remedy="write it as --why op2,op5",
            )
        question = Question(first, second)
    on = None if device is None else usable_device(device)
    with new_or_existing_store(store_path) as store:
        wish = Wish(
            store=store.path,
            model=model,
            plan=plan,
            rules=None if rule_file is None else read_rule_file(rule_file),
            measure=measure,
            predicted=predicted or html is not None,
            why=question,
            kinds=graphs,
        )
    sample = load_target(target)
    if on is not None:
        sample = on_device(sample, on)
    with progress_bar(as_json=as_json) as bar:
        task = bar.add_task("compiling", total=None, note="")
        explained = explain_program(sample, wish, lambda text: bar.update(task, description=text))
    if html is not None:
        write_page(explained, html)
    if as_json:
        click.echo(explained.json())
    elif html is not None:
        click.echo(f"report {html}")
    else:
        show_program(explained, Filter(nodes, only, with_nodes, rows))
    # Only the whole program can tell that a rule means nothing in it.
    if wish.rules is not None and not graphs:
        _check_rules(wish.rules, explained)


def _check_rules(rules: RuleSet, explained: ExplainedProgram) -> None:
    from fusewise.compiler.rule_notices import check_matched

    whole = [graph for graph in explained.graphs if not graph.name]
    nodes = [node for graph in whole for node in (*graph.nodes, *graph.chosen_nodes)]
    values = [decision.node for graph in whole for decision in graph.inlining]
    names = {
        "op": [operator for node in nodes for operator in node.operators],
        "module": [module for node in nodes for module in node.modules],
        "node": [*(node.name for node in nodes), *values],
    }
    check_matched(rules, [graph.rules for graph in whole], names)
