"""Plan files, their differences and what became of them, as tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from fusewise.commands.output import microseconds, result_console, result_table, shortened
from fusewise.schedule.plan_diff import Difference, GraphDifference, PlanDifference
from fusewise.schedule.plan_file import PlanFile, PlannedGraph

if TYPE_CHECKING:
    from fusewise.compiler.applying import AppliedGraph, CheckedGraph

_LIST = 48


def show_file(plan: PlanFile, rows: int) -> None:
    """Print what a plan file holds."""
    versions = f"fusewise {plan.fusewise}, torch {plan.torch}"
    click.echo(f"{plan.program or 'a program'}: {_many(len(plan.graphs), 'graph')}, {versions}")
    for graph in plan.graphs:
        _show_graph(graph, rows)


def _show_graph(graph: PlannedGraph, rows: int) -> None:
    result_console().rule(f"{graph.kind} graph", align="left")
    schedule = graph.schedule
    where = f"{graph.device} {graph.device_key}".strip()
    click.echo(f"on {where}; {_times(graph)}")
    choices = [f"{c.name}={c.value}" for c in (*schedule.lowering, *schedule.codegen)]
    click.echo(f"choices: {', '.join(choices) or 'none'}")
    for tuned in graph.blocks:
        click.echo(f"{tuned.name} came to {tuned.value}")
    click.echo("key: " + ", ".join(f"{part} {value}" for part, value in graph.key_parts.items()))
    if schedule.plan is None:
        click.echo("fused as Inductor does")
        return
    operations = {node.name: node.operations for node in graph.nodes}
    groups = schedule.plan.groups
    us = graph.group_us or (None,) * len(groups)
    table = result_table("group", "nodes", "operations", "predicted")
    for i, (names, predicted) in enumerate(list(zip(groups, us, strict=True))[:rows]):
        done = dict.fromkeys(op for name in names for op in operations.get(name, ()))
        table.add_row(
            str(i),
            shortened(" ".join(names), _LIST),
            shortened(", ".join(done), _LIST),
            microseconds(predicted),
        )
    result_console().print(table)
    if len(groups) > rows:
        click.echo(f"{len(groups) - rows} more groups with --rows")


def _times(graph: PlannedGraph) -> str:
    text = f"predicted {microseconds(graph.predicted_us)}"
    if graph.measured_us is not None:
        text += f", measured {microseconds(graph.measured_us)}"
    if graph.default_us is not None:
        text += f" (Inductor's own {microseconds(graph.default_us)})"
    return text


def show_diff(found: PlanDifference, rows: int) -> None:
    """Print how two plan files differ."""
    if found.same:
        click.echo("the same plans")
        return
    if found.environment:
        _print_differences("environment", found.environment)
    for graph in found.graphs:
        if graph.same:
            click.echo(f"{graph.kind} graph: the same")
        else:
            _show_graph_diff(graph, rows)


def _show_graph_diff(graph: GraphDifference, rows: int) -> None:
    if graph.present != "both":
        click.echo(f"{graph.kind} graph: only in the {graph.present} file")
        return
    groups = f"{_many(len(graph.only_first), 'group')} give way to {len(graph.only_second)}"
    click.echo(f"{graph.kind} graph: {groups}")
    if graph.key:
        click.echo(f"  key differs in {', '.join(graph.key)}")
    if graph.steps:
        click.echo("  the same groups, put together in another order")
    if graph.choices:
        _print_differences("choices", graph.choices)
    if graph.nodes:
        _print_differences("nodes", graph.nodes[:rows])
    if graph.moved:
        table = result_table("node", "operations", "was with", "is with")
        for node in graph.moved[:rows]:
            table.add_row(
                node.node,
                shortened(", ".join(node.operations), _LIST),
                shortened(" ".join(node.first) or "alone", _LIST),
                shortened(" ".join(node.second) or "alone", _LIST),
            )
        result_console().print(table)
    left = max(0, len(graph.moved) - rows) + max(0, len(graph.nodes) - rows)
    if left:
        click.echo(f"  {left} more with --rows")


def _print_differences(title: str, differences: Sequence[Difference]) -> None:
    table = result_table(title, "first", "second")
    for one in differences:
        table.add_row(one.what, shortened(one.first or "-", 60), shortened(one.second or "-", 60))
    result_console().print(table)


def show_check(checked: Sequence[CheckedGraph], plan: PlanFile) -> None:
    """Print whether each graph replays."""
    from fusewise.compiler.plan_files import PARTS

    if not checked:
        click.echo("nothing to replay: neither the plan nor the program has graphs")
    for graph in checked:
        click.echo(f"{graph.kind} graph: {'replays' if graph.replays else graph.reason}")
        for part, same in graph.parts.items():
            if not same and part in PARTS:
                click.echo(f"  {part}: {PARTS[part]}{_versions(part, plan)}")
    if any(graph.parts and not graph.replays for graph in checked):
        click.echo("`fusewise plan apply --partial` carries over what still matches")


def _versions(part: str, plan: PlanFile) -> str:
    if part != "versions":
        return ""
    triton = f", triton {plan.triton}" if plan.triton else ""
    return f"; the plan is of fusewise {plan.fusewise}, torch {plan.torch}{triton}"


def show_applied(applied: Sequence[AppliedGraph]) -> None:
    """Print what of a plan each graph was compiled by."""
    for graph in applied:
        click.echo(
            f"{graph.kind} graph: {graph.outcome}; {graph.nodes} nodes in {graph.groups} groups, "
            f"predicted {microseconds(graph.predicted_us)}"
            + (
                ""
                if graph.default_us is None
                else f" ({microseconds(graph.default_us)} by default)"
            )
        )
        if graph.outcome == "replayed":
            continue
        if graph.differs:
            click.echo(f"  key differs in {', '.join(graph.differs)}")
        click.echo(
            f"  {_many(len(graph.carried), 'group')} carried over, {len(graph.lost)} lost, "
            f"{_many(len(graph.new_nodes), 'new node')}"
        )
        for lost in graph.lost[:10]:
            click.echo(f"  lost {shortened(' '.join(lost.nodes), _LIST)}: {lost.reason}")
        for name in graph.lost_choices:
            click.echo(f"  lost choice {name}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
