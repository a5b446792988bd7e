"""A graph as it is captured without rewrites, kept until it is timed beside the usual one."""

from __future__ import annotations

from dataclasses import dataclass

from fusewise.compiler.ablating.uncompiled import uncompiled_program
from fusewise.compiler.contest import graph_job
from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.stages import STAGE, Generated, generate_stage
from fusewise.compiler.measuring.job import GraphJob
from fusewise.compiler.session import Session, device_of
from fusewise.schedule.errors import FusewiseError


@dataclass(frozen=True)
class Capture:
    """A graph as it is captured without rewrites, and its program."""

    job: GraphJob
    generated: Generated | None
    #: What its results are held to; None where it cannot be run that way.
    uncompiled: Program | None
    failure: str

    @classmethod
    def of(cls, graph: GraphCompile, session: Session, name: str) -> Capture:
        """Keep what is needed of a graph once Inductor has moved on.

        Raises:
            MeasureError: an input that cannot be made in another process; names it.
        """
        device = device_of(graph.gm, graph.example_inputs)
        job = graph_job(
            graph,
            key=name,
            device=str(device),
            observed=session.observed,
            forward_key=session.forward_key,
        )
        if graph.kind == "forward":
            session.forward_key = name
        try:
            found = generate_stage(graph, STAGE["no_rewrites"], device.type, name)
        except Exception as error:  # noqa: BLE001 - code generation may assert on unusual graphs
            return cls(job, None, None, one_line(error))
        try:
            uncompiled = None if job.random else uncompiled_program(graph.gm)
        except FusewiseError:
            uncompiled = None
        return cls(job, found, uncompiled, "")


def one_line(error: BaseException) -> str:
    """What failed, in the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
