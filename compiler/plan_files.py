"""Plan files and graphs: which graph of a file is meant, what differs, and writing one down.

Compiles nothing; what of a plan can be carried over to a changed graph is in ``carrying``.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import torch

import fusewise
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.found_blocks import found_blocks
from fusewise.compiler.inductor.graph_key import GraphKey
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.compiler.inductor.kernel_nodes import noting_kernels
from fusewise.compiler.survey import Predictor
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import tunings
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, PlannedNode
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice, Schedule, problem_key

#: A part of the key that has no say in whether a plan fits: which model predicted.
_NOT_COMPARED = "model"

#: What each part of a graph's key is made of, for people.
PARTS: dict[str, str] = {
    "graph": "the operations of the graph",
    "inputs": "shapes, strides or dtypes of its inputs",
    "compile": "how it is compiled (inference, backward, wrapper)",
    "settings": "settings of Inductor",
    "versions": "versions of torch, fusewise or Triton",
    "device": "the device, its threads, or determinism and matmul precision",
    "rules": "rules",
}


def mismatch(key: GraphKey, planned: PlannedGraph) -> tuple[str, ...]:
    """Parts of the key in which a graph is not the one that was planned."""
    return tuple(part for part in key.differs(planned.key_parts) if part != _NOT_COMPARED)


def nearest(plan: PlanFile, key: GraphKey, kind: str) -> PlannedGraph | None:
    """The graph of a file that differs in the fewest parts; None where none is of that kind.

    Of several, one of the same operations is nearer than any other.
    """
    of_kind = [graph for graph in plan.graphs if graph.kind == kind]
    return min(
        of_kind,
        key=lambda graph: ("graph" in (parts := mismatch(key, graph)), len(parts)),
        default=None,
    )


def planned_for(plan: PlanFile, key: GraphKey, kind: str, subject: str) -> PlannedGraph:
    """The graph of a file that is meant by a key.

    Raises:
        PlanError: there is none; names the parts that differ.
    """
    found = nearest(plan, key, kind)
    if found is None or mismatch(key, found):
        why = f"it has no {kind} graph"
        if found is not None:
            why = f"differs in {', '.join(mismatch(key, found))}"
        raise PlanError(
            f"it is for another program: {why}",
            subject=subject,
            remedy="search again for this program, or see what still fits with "
            "`fusewise plan apply --partial`",
        )
    return found


def planned_graph(
    graph: GraphCompile,
    key: GraphKey,
    schedule: Schedule,
    predictor: Predictor,
    *,
    device: str,
    measured_us: float | None = None,
    default_us: float | None = None,
) -> PlannedGraph:
    """A graph with its schedule as a plan file has it. Lowers the graph once to see its nodes."""
    found: list[Problem] = []

    def look(live: LiveGraph) -> None:
        found.append(
            extract_problem(
                live.scheduler,
                live.nodes,
                key=problem_key(key.key, schedule.lowering),
                kind=graph.kind,
            )
        )

    graph.survey((*schedule.lowering, *schedule.codegen), look)
    blocks: tuple[Choice, ...] = ()
    if tunings(schedule.codegen):
        with noting_kernels() as nodes:
            program = graph.generate(schedule)
        blocks = found_blocks(program.source, nodes, schedule.codegen)
    problem = found[0]
    predicted_us: float | None = None
    group_us: tuple[float, ...] = ()
    if schedule.plan is not None:
        cost = predictor.plans(problem)
        predicted_us = cost.plan(schedule.plan).us
        group_us = tuple(group.us for group in cost.breakdown(schedule.plan))
    return PlannedGraph(
        kind=graph.kind,
        key_parts=dict(key.parts),
        device=device,
        device_key=predictor.profile.key,
        schedule=schedule,
        nodes=planned_nodes(problem),
        group_us=group_us,
        predicted_us=predicted_us,
        measured_us=measured_us,
        default_us=default_us,
        blocks=blocks,
    )


def planned_nodes(problem: Problem) -> tuple[PlannedNode, ...]:
    """The nodes of a problem as a plan file has them."""
    return tuple(
        PlannedNode(
            name=node.name,
            operations=tuple(dict.fromkeys(node.origins)),
            signature=node.signature,
        )
        for node in problem.nodes
    )


def new_plan_file(program: str, graphs: Sequence[PlannedGraph]) -> PlanFile:
    """A plan file of this environment."""
    return PlanFile(
        fusewise=fusewise.__version__,
        torch=str(torch.__version__),
        triton=triton_version(),
        program=program,
        graphs=tuple(graphs),
    )


def triton_version() -> str:
    """Version of Triton; "" where there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""
