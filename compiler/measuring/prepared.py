"""A graph made ready for its programs, and what their results and their memory are held against.

Times nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from fusewise.compiler.inductor.program import Call
from fusewise.compiler.measuring.job import GraphJob, ProgramResult
from fusewise.compiler.measuring.peak import peak_bytes
from fusewise.compiler.measuring.reference import relative_error, run_reference, widen
from fusewise.compiler.measuring.runs import CpuRun, CudaRun
from fusewise.compiler.measuring.sent_graph import receive_graph

log = logging.getLogger(__name__)


@dataclass
class Prepared:
    """The graph in hand."""

    job: GraphJob
    inputs: list[Any]
    #: Outputs then overwritten inputs in high precision; None where there is no reference.
    reference: list[Any] | None
    overwritten: list[int]
    seconds: dict[str, float]
    #: Programs whose kernels were timed, by id: loaded, and tuned, for when they are timed again.
    timed: dict[str, ModuleType] = field(default_factory=dict)


@dataclass
class Loaded:
    """A program that ran once."""

    run: CpuRun | CudaRun
    outputs: list[Any]


def reference_outputs(job: GraphJob, inputs: Sequence[Any]) -> tuple[list[Any] | None, list[int]]:
    """Outputs, then overwritten inputs, in high precision, and which inputs these are.

    None and none where it does not run so.
    """
    assert job.graph is not None
    try:
        outputs, overwritten = run_reference(receive_graph(job.graph), inputs, job.dtypes)
    except Exception:
        log.debug("no high-precision reference", exc_info=True)
        return None, []
    return [*outputs, *overwritten.values()], list(overwritten)


def judge(
    graph: Prepared, loaded: Sequence[Loaded | None], results: Sequence[ProgramResult]
) -> None:
    """Find out how far each program is off; the first, which ran, is the default.

    Without a reference that is of its outputs they are held against the default's.
    """
    default = loaded[0]
    assert default is not None
    reference = graph.reference
    if reference is None or len(reference) != len(default.outputs):
        graph.reference = None
        reference = [widen(v) if isinstance(v, torch.Tensor) else v for v in default.outputs]
    for program, result in zip(loaded, results, strict=True):
        if program is not None:
            result.errors = [
                relative_error(value, wanted)
                for value, wanted in zip(program.outputs, reference, strict=True)
            ]


def weigh(
    graph: Prepared,
    calls: Sequence[Call | None],
    loaded: Sequence[Loaded | None],
    results: Sequence[ProgramResult],
) -> None:
    """Find out how much memory each program needs that ran."""
    for call, program, result in zip(calls, loaded, results, strict=True):
        if call is not None and program is not None:
            result.peak_bytes = peak_bytes(call, graph.inputs, torch.device(graph.job.device))


def resolution(value: Any) -> float:
    """Spacing of numbers near one in the dtype of an output; 0 for integers."""
    if isinstance(value, torch.Tensor) and (
        value.dtype.is_floating_point or value.dtype.is_complex
    ):
        return float(torch.finfo(value.dtype).eps)
    return 0.0
