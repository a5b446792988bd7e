"""From a captured graph to programs that are compiled and only wait to be timed, and their rows.

Runs in a worker.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch

from fusewise.compiler.collecting.blocks import with_blocks
from fusewise.compiler.collecting.capture import CapturedGraph
from fusewise.compiler.collecting.programs import Context, GraphPrograms
from fusewise.compiler.collecting.work import Item, PreparedGraph
from fusewise.compiler.contest import graph_job
from fusewise.compiler.inductor.graph_key import graph_key
from fusewise.compiler.memory import device_row
from fusewise.compiler.session import device_of
from fusewise.costmodel.device import device_key
from fusewise.datasets.corpus import GraphSample
from fusewise.datasets.rows import GraphRow, Row, encode_problem
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import problem_key


def prepare(
    context: Context,
    captured: CapturedGraph,
    sample: GraphSample,
    item: Item,
    forward_key: str | None,
    failures: list[str],
) -> PreparedGraph | None:
    """Lower, vary and compile one graph; None where nothing new is in it.

    Args:
        context: settings, device and what has been timed already.
        captured: the graph.
        sample: the program that it is of.
        item: the item that the program is of.
        forward_key: key of the forward graph that a backward one belongs to.
        failures: takes what was given up, a line each.
    """
    graph = captured.graph
    device = device_of(graph.gm, graph.example_inputs)
    parts = graph_key(graph.gm, graph.example_inputs, graph.kwargs, device_key(device), "collected")
    # The same in every round, which is there to time the same again.
    generator = random.Random(f"{context.settings.seed} {parts.key}")
    work = GraphPrograms(context, graph, parts.key, generator, failures, sample.name)
    lowered = work.lowered()
    if lowered is None:
        return None
    runs = work.kernel_runs(lowered)
    contest = work.contest(lowered, runs)
    if not runs and not contest:
        return None
    problems = {problem_key(parts.key, low.choices): low.problem for low in lowered}
    rows: list[Row] = [device_row(context.profile)]
    rows += [_graph_row(p, parts.parts, sample, item) for p in problems.values()]
    rows += work.schedule_rows
    runs, contest = work.compiled(runs, contest)
    if context.settings.block_sizes:
        runs = with_blocks(runs, context.known, context.settings.block_sizes, work.seconds_left)
    return PreparedGraph(
        item=item,
        sample=sample.name,
        key=parts.key,
        job=graph_job(
            graph,
            key=parts.key,
            device=str(device),
            observed=captured.observed,
            forward_key=forward_key,
            with_reference=False,
        ),
        rows=tuple(rows),
        runs=tuple(runs),
        contest=tuple(contest),
    )


def _graph_row(
    problem: Problem, parts: Mapping[str, str], sample: GraphSample, item: Item
) -> GraphRow:
    return GraphRow(
        key=problem.key,
        parts=dict(parts),
        kind=problem.kind,
        family=sample.family,
        source=f"{item.corpus.label}:{sample.name}",
        licence=sample.licence,
        nodes=len(problem.nodes),
        problem=encode_problem(problem),
        torch_version=str(torch.__version__),
    )
