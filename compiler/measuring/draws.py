"""Outputs of few elements, judged on several draws of the inputs.

The error of a loss is one rounding, and by luck it may be a tenth of what it mostly is: of two
programs that are as good the one is off by more than twice as much as the other in three cases of
ten. Results on several draws are therefore taken together as one output. Times nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusewise.compiler.inductor.program import Call
from fusewise.compiler.measuring.inputs import TensorInput, build
from fusewise.compiler.measuring.job import ProgramResult
from fusewise.compiler.measuring.prepared import Loaded, Prepared, reference_outputs, resolution
from fusewise.compiler.measuring.reference import relative_error
from fusewise.compiler.measuring.runs import private_inputs
from fusewise.search.gate import outputs_off

log = logging.getLogger(__name__)

#: An output of so many elements or fewer may be right by luck.
_FEW = 16
#: Draws that are taken together at most, that which all outputs were judged on included.
_DRAWS = 8


def judge_few(
    graph: Prepared,
    calls: Sequence[Call | None],
    loaded: Sequence[Loaded | None],
    results: Sequence[ProgramResult],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Judge small outputs anew where a program is off in them alone.

    Args:
        graph: the graph.
        calls: its programs, the default first; None for one that does not load.
        loaded: what they gave; None for one that did not run.
        results: what was found out about each so far; errors of small outputs become those of
            several draws.
        seconds: after which nothing more is drawn.
        clock: seconds; for tests.
    """
    default = loaded[0]
    # Without a reference there is nothing to hold the default's luck against.
    if default is None or graph.reference is None:
        return
    few = [i for i, value in enumerate(default.outputs) if _is_few(value)]
    ran = [i for i, program in enumerate(loaded) if program is not None]
    if not _doubtful([results[i].errors for i in ran], default.outputs, few):
        return
    wanted = [[graph.reference[i]] for i in few]
    found = {j: [[_outputs(loaded[j])[i]] for i in few] for j in ran}
    began = clock()
    for seed in range(1, _DRAWS):
        if clock() - began > seconds:
            break
        try:
            reference, outputs = _drawn(graph, [calls[j] for j in ran], seed)
        except Exception:
            # What these values are too much for stays as it was judged before.
            log.debug("no draw %d", seed, exc_info=True)
            break
        for place, i in enumerate(few):
            wanted[place].append(reference[i])
            for j, values in zip(ran, outputs, strict=True):
                found[j][place].append(values[i])
    for j in ran:
        for place, i in enumerate(few):
            results[j].errors[i] = relative_error(_as_one(found[j][place]), _as_one(wanted[place]))


def _is_few(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and 0 < value.numel() <= _FEW
    )


def _doubtful(
    errors: Sequence[Sequence[float]], outputs: Sequence[Any], few: Sequence[int]
) -> bool:
    """Whether a program is off in small outputs and in no others."""
    resolutions = [resolution(value) for value in outputs]
    off = [set(outputs_off(own, errors[0], resolutions)) for own in errors[1:]]
    return any(own and own <= set(few) for own in off)


def _drawn(
    graph: Prepared, calls: Sequence[Call | None], seed: int
) -> tuple[list[Any], list[list[Any]]]:
    """The reference and the results of each program on other values."""
    job = graph.job
    saved = {
        spec.saved: value
        for spec, value in zip(job.inputs, graph.inputs, strict=True)
        if isinstance(spec, TensorInput) and spec.saved is not None
    }
    inputs = build(job.inputs, saved, seed)
    reference, overwritten = reference_outputs(job, inputs)
    if reference is None or overwritten != graph.overwritten:
        raise ValueError("no reference")
    outputs = []
    for call in calls:
        assert call is not None
        own = private_inputs(inputs)
        values = [*call(list(own))]
        outputs.append([*values, *(own[i] for i in graph.overwritten)])
    return reference, outputs


def _outputs(program: Loaded | None) -> list[Any]:
    assert program is not None
    return program.outputs


def _as_one(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in values])
