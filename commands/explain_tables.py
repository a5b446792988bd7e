"""An explanation as tables in a terminal: what matters most of it, in one screen if it is small.

All of it is in the JSON; what a table leaves out is counted under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.table import Table

from fusewise.commands.explain_why import show_why
from fusewise.commands.output import microseconds, result_console, result_table, shortened
from fusewise.compiler.explaining.outcomes import Outcome
from fusewise.compiler.explaining.report import (
    ExplainedFusion,
    ExplainedGraph,
    ExplainedGroup,
    ExplainedNode,
    ExplainedPlan,
    ExplainedProgram,
)
from fusewise.schedule.errors import PlanError

#: Characters of a list of nodes or lines; the whole is in the JSON.
_LIST, _SOURCE, _DETAIL = 34, 28, 64
#: Columns of a terminal below which details stand under their codes.
_NARROW = 100
#: Part of a plan's time from which on what lies beside its kernels is told.
_WORTH_TELLING = 0.01


@dataclass(frozen=True)
class Filter:
    """What of an explanation is shown."""

    #: Only what has to do with these nodes; empty for all.
    nodes: tuple[str, ...] = ()
    #: ``taken``, ``refused``, ``missed`` or None for what is most telling of each.
    only: str | None = None
    #: Whether the scheduler's nodes are shown, too.
    with_nodes: bool = False
    #: Rows of a table at most.
    rows: int = 25

    def keeps(self, names: Sequence[str]) -> bool:
        """Whether something about these nodes is shown."""
        return not self.nodes or bool(set(names) & set(self.nodes))


def show_program(explained: ExplainedProgram, shown: Filter) -> None:
    """Print all graphs.

    Raises:
        PlanError: the filter names a node that no graph has.
    """
    known = {node.name for graph in explained.graphs for node in _all_nodes(graph)}
    unknown = [name for name in shown.nodes if name not in known]
    if unknown:
        raise PlanError(
            f"no graph has a node {unknown[0]!r}",
            subject="--node",
            remedy="see them with --nodes",
        )
    for graph in explained.graphs:
        _show_graph(graph, shown)
    if not explained.graphs:
        click.echo(
            f"{explained.program} has no graph that computes anything: Dynamo captured none "
            "(TORCH_LOGS=graph_breaks tells why)"
        )


def _all_nodes(graph: ExplainedGraph) -> tuple[ExplainedNode, ...]:
    return (*graph.nodes, *graph.chosen_nodes)


def _show_graph(graph: ExplainedGraph, shown: Filter) -> None:
    console = result_console()
    within = f", {graph.name} within it" if graph.name else ""
    console.rule(f"{graph.kind} graph{within}", align="left")
    nodes = len(graph.chosen_nodes or graph.nodes)
    if not nodes:
        click.echo("no nodes: it only takes views of its inputs")
        return
    click.echo(
        f"{nodes} nodes, {_running(graph.groups)} kernels and library calls, "
        f"{_plan(graph.plan)}, by {graph.model}; schedule: {_origin(graph.plan)}"
    )
    if graph.plan.schedule != graph.default_plan.schedule:
        click.echo(
            f"Inductor's own: {_running(graph.default_groups)} kernels and library calls, "
            f"{_plan(graph.default_plan)}"
        )
    for line in (*_rewrites(graph), *_inlining(graph, shown), *_within(graph), *_rules(graph)):
        click.echo(line)
    if graph.why is not None:
        show_why(graph.why, shown.rows)
        return
    if shown.with_nodes or shown.nodes:
        console.print(_nodes(graph, shown))
    if shown.only is None:
        console.print(_kernels("kernels", graph.groups, shown))
        if graph.plan.schedule != graph.default_plan.schedule:
            console.print(_kernels("Inductor's own kernels", graph.default_groups, shown))
    _show_fusions(graph, shown)
    if graph.not_measured:
        click.echo(f"not measured: {graph.not_measured}")


def _running(groups: Sequence[ExplainedGroup]) -> int:
    return sum(group.bound_by != "nothing" for group in groups)


def _plan(plan: ExplainedPlan) -> str:
    text = (
        f"predicted {microseconds(plan.predicted_us)} "
        f"({microseconds(plan.predicted_low_us)} to {microseconds(plan.predicted_high_us)})"
    )
    if plan.around_us > _WORTH_TELLING * plan.predicted_us:
        text += f", of that {microseconds(plan.around_us)} beside the kernels"
    if plan.measured_us is not None:
        text += f", measured {microseconds(plan.measured_us)} kernel by kernel"
    return text


def _origin(plan: ExplainedPlan) -> str:
    if plan.origin == "inductor":
        return "Inductor's own"
    if plan.origin == "rules":
        return f"{plan.choices}, Inductor's own as rules want it"
    if plan.origin == "predicted":
        return f"{plan.choices}, predicted to be best"
    return f"{plan.choices}, from the {plan.origin}"


def _rewrites(graph: ExplainedGraph) -> list[str]:
    """A line for each pass that changed something, or for the stage where no pass is known."""
    told = []
    for stage in dict.fromkeys(rewrite.stage for rewrite in graph.rewrites):
        passes = [r for r in graph.rewrites if r.stage == stage]
        named = [r for r in passes if r.name]
        whole = next((r for r in passes if not r.name), None)
        if whole is None or not (whole.removed or whole.added):
            continue
        what = "; ".join(f"{r.name}: {_changes(r.removed, r.added)}" for r in named) or _changes(
            whole.removed, whole.added
        )
        size = f"{whole.nodes_before} to {whole.nodes_after} operators"
        told.append(shortened(f"rewritten {stage}: {size} ({what})", 200))
    return told


def _changes(removed: dict[str, int], added: dict[str, int]) -> str:
    gone = [f"-{count} {name}" for name, count in removed.items()]
    return ", ".join([*gone, *(f"+{count} {name}" for name, count in added.items())])


def _inlining(graph: ExplainedGraph, shown: Filter) -> list[str]:
    """How much was inlined, and what is computed several times for it."""
    if not graph.inlining:
        return []
    inlined = [d for d in graph.inlining if d.outcome == "inline"]
    again = sorted(
        (d for d in inlined if len(d.inlined_into) > 1), key=lambda d: -len(d.inlined_into)
    )
    count = f"{len(inlined)} of {len(graph.inlining)} values inlined"
    lines = [f"lowering: {count}, {len(again)} of these into several consumers"]
    lines += [
        f"  {d.node} ({d.operator}) into {', '.join(d.inlined_into)}: {d.rule}"
        for d in again[: max(3, shown.rows // 5)]
    ]
    return lines


def _within(graph: ExplainedGraph) -> list[str]:
    """What Inductor fuses by itself, inside one node of the graph."""
    if not graph.within:
        return []
    told = ", ".join(f"{name} ({count} operators)" for name, count in graph.within.items())
    return [f"within the graph, fused by Inductor alone: {told}"]


def _nodes(graph: ExplainedGraph, shown: Filter) -> Table:
    kept = [node for node in _all_nodes(graph) if shown.keeps((node.name,))]
    needs: dict[str, list[str]] = {}
    for edge in graph.edges:
        needs.setdefault(edge.consumer, []).append(edge.producer)
    table = result_table(
        "node",
        "kind",
        "loops",
        "operators",
        "after",
        "moved",
        "source",
        title="nodes" if len(kept) <= shown.rows else f"nodes, {shown.rows} of {len(kept)}",
    )
    for node in kept[: shown.rows]:
        outer, inner = (" x ".join(map(str, loops)) for loops in node.loops)
        table.add_row(
            node.name,
            node.kind,
            f"{outer} | {inner}" if inner else outer,
            shortened(", ".join(map(operator_name, node.operators)), _LIST),
            shortened(", ".join(dict.fromkeys(needs.get(node.name, ()))), _LIST),
            _bytes(node.bytes_read + node.bytes_written),
            shortened(_sources(node.sources), _SOURCE),
        )
    return table


def _rules(graph: ExplainedGraph) -> list[str]:
    if graph.rules is None:
        return []
    lines = [f"rule without a match: {rule}" for rule in graph.rules.unmatched]
    lines += [f"rules in conflict: {text}" for text in graph.rules.conflicts]
    return [*lines, *(f"rule not kept: {text}" for text in graph.rules.unkept)]


def _kernels(title: str, groups: Sequence[ExplainedGroup], shown: Filter) -> Table:
    kept = [g for g in groups if g.bound_by != "nothing" and shown.keeps(g.nodes)]
    rows = sorted(kept, key=lambda g: -(g.measured_us or g.predicted_us))[: shown.rows]
    timed = any(group.measured_us is not None for group in kept)
    table = result_table(
        "nodes",
        "operators",
        "predicted (90 %)",
        *(["measured"] if timed else []),
        "moved",
        "bound by",
        "source",
        title=title
        if len(rows) == len(kept)
        else f"{title}, the {len(rows)} longest of {len(kept)}",
    )
    for group in kept:
        if not any(group is row for row in rows):
            continue
        table.add_row(
            shortened("+".join(group.nodes), _LIST),
            shortened(", ".join(map(operator_name, group.operators)), _LIST),
            f"{microseconds(group.predicted_us)} ({_number(group.predicted_low_us)} to "
            f"{_number(group.predicted_high_us)})",
            *([microseconds(group.measured_us)] if timed else []),
            _bytes(group.bytes_read + group.bytes_written),
            group.bound_by,
            shortened(_sources(group.sources), _SOURCE),
        )
    return table


def _show_fusions(graph: ExplainedGraph, shown: Filter) -> None:
    kept = [
        f
        for f in graph.possible_fusions
        if shown.keeps((*f.a_nodes, *f.b_nodes)) and _is_shown(f, shown)
    ]
    rows = sorted(kept, key=lambda f: (not f.taken, not f.legal, -f.predicted_gain_us))
    console = result_console()
    narrow = console.width < _NARROW
    columns = ("", "fusion", "score", "gain (90 %)", "reason", *([] if narrow else ["detail"]))
    # Above the table and not its title, which would be folded where the table is narrow.
    click.echo(f"possible fusions: {_counts(graph)}")
    table = result_table(*columns)
    # Codes are looked up, so they stand in one piece.
    codes = [len(fusion.reason) for fusion in rows[: shown.rows]]
    table.columns[4].width = max([len("reason"), *codes])
    for fusion in rows[: shown.rows]:
        detail = shortened(fusion.detail, _DETAIL)
        reason = [f"{fusion.reason}\n{detail}".strip()] if narrow else [fusion.reason, detail]
        table.add_row(
            fusion.outcome,
            shortened(f"{fusion.a} + {fusion.b}", _LIST),
            "/".join(map(str, fusion.inductor_score or ())),
            f"{_number(fusion.predicted_gain_us)} µs ({_number(fusion.predicted_gain_low_us)} to "
            f"{_number(fusion.predicted_gain_high_us)})",
            *reason,
        )
    if rows:
        console.print(table)
    hidden = len(kept) - min(len(kept), shown.rows)
    left = len(graph.possible_fusions) - len(kept)
    notes = [f"{hidden} more with --rows"] if hidden else []
    notes += [f"{left} others with --only, --node or --json"] if left else []
    if notes:
        click.echo(f"not shown: {', '.join(notes)}")


def _is_shown(fusion: ExplainedFusion, shown: Filter) -> bool:
    if shown.only is not None:
        return fusion.outcome == shown.only
    # With a node given, all about it; else what came together anyhow is not worth a row.
    return bool(shown.nodes) or fusion.taken or not _together(fusion)


def _together(fusion: ExplainedFusion) -> bool:
    """Whether the schedule that is explained has the sides in one kernel."""
    return fusion.together if fusion.together_chosen is None else fusion.together_chosen


def _counts(graph: ExplainedGraph) -> str:
    fusions = graph.possible_fusions
    of = Counter(f.outcome for f in fusions)
    grounds = Counter(f.reason for f in fusions if f.outcome is Outcome.REFUSED)
    most = ", ".join(f"{count} {reason}" for reason, count in grounds.most_common(3))
    text = f"{len(fusions)} pairs in {len(graph.rounds)} rounds, {of[Outcome.TAKEN]} taken"
    text += f", {of[Outcome.MISSED]} missed"
    ruled, refused = of[Outcome.RULE], of[Outcome.REFUSED]
    text += f", {ruled} forbidden by rules" if ruled else ""
    return f"{text}, {refused} refused ({most})" if refused else text


def _number(us: float) -> str:
    return f"{us:.2f}" if abs(us) < 10 else f"{us:,.0f}"  # noqa: PLR2004


def operator_name(name: str) -> str:
    """``aten.add.Tensor`` as people say it; ``mine.add.default`` is ``mine.add``."""
    space, *parts = name.split(".")
    return parts[0] if parts and space in ("aten", "prims") else ".".join([space, *parts[:1]])


def _sources(sources: Sequence[str]) -> str:
    """``model.py:12,15``: lines by file, without folders."""
    lines: dict[str, list[str]] = {}
    for source in sources:
        file, _, line = source.rpartition(":")
        lines.setdefault(Path(file).name, []).append(line)
    return " ".join(f"{file}:{','.join(numbers)}" for file, numbers in lines.items())


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"
