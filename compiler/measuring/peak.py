"""How much memory a program needs at one time. Takes no times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from fusewise.compiler.inductor.program import Call
from fusewise.compiler.measuring.device import synchronize
from fusewise.compiler.measuring.runs import memory, private_inputs


def peak_bytes(call: Call, inputs: Sequence[Any], device: torch.device) -> int:
    """Most bytes allocated at one time while a program runs, its inputs included.

    Inputs that share memory count once each. What libraries allocate past torch is not seen.
    """
    held = private_inputs(inputs)
    total = sum(
        memory(v).numel() * v.itemsize
        for v in held
        if isinstance(v, torch.Tensor) and v.device.type == device.type
    )
    if device.type == "cuda":
        synchronize(str(device))
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call(list(held))
        synchronize(str(device))
        return total + int(torch.cuda.max_memory_allocated(device)) - before
    return total + allocated(lambda: call(list(held))).most


class Allocated(NamedTuple):
    """Bytes that torch allocated on the CPU."""

    #: Of the largest tensor.
    largest: int
    #: Of all that there were at one time.
    most: int


def allocated(run: Callable[[], object]) -> Allocated:
    """What is allocated on the CPU while something runs; its result is counted."""
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = run()
    del kept
    results: Any = profiler.profiler.kineto_results
    largest = now = most = 0
    for event in results.events():
        if event.name() == "[memory]":
            # What is freed is negative.
            largest = max(largest, event.nbytes())
            now += event.nbytes()
            most = max(most, now)
    return Allocated(largest, most)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing on this process's stderr: the profiler's library tells of each start and stop."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
