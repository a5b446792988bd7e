"""Where the time of a step goes that stock Inductor compiled: library calls, generated kernels.

    python benchmarks/shares.py [--device cuda] [--workloads PATTERN] [--out shares.json]

What is in library calls (products, convolutions, attention) no choice about fusion changes; what is
in neither is launching and Python. A profiler tells them apart, which itself takes some of the time
of short kernels.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import torch
from compare import described_machine
from contestants import BASELINE, Contestant, cache_variables, compiled
from rich.console import Console
from rich.table import Table
from steps import Step
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from workloads import Case, matching

#: Seconds of steps before any is looked at, and of those that are.
_WARM_UP_S, _LOOKED_AT_S = 1.0, 0.5
#: Has generated C++ kernels tell the profiler when they begin and end.
_SETTINGS = {"cpp.enable_kernel_profile": True}
#: How generated kernels are called: on a CPU with the graph's number before it.
_GENERATED = ("triton_", "cpp_fused", "cpp_CppMicroGemm")
#: What only reserves memory or looks at it differently.
_NOTHING = ("aten::empty", "aten::as_strided", "aten::view", "aten::detach")


def shares(case: Case, device: torch.device, scratch: Path) -> dict[str, Any]:
    """Microseconds of a step, and the parts of it in library calls and in generated kernels."""
    os.environ.update(cache_variables(scratch))
    program = case.build(device)
    who = Contestant(BASELINE, "inductor", _SETTINGS if device.type == "cpu" else {})
    step = Step(program, compiled(program.function, who, scratch))
    step.run()
    _run(step, device, _WARM_UP_S)
    steps, us = _run(step, device, _LOOKED_AT_S)
    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=activities) as told:
        _, looked_at_us = _run(step, device, _LOOKED_AT_S)
    spent = {"library": 0.0, "generated": 0.0}
    for event in told.events():
        kind, taken_us = _kind(event, device)
        if kind:
            spent[kind] += taken_us
    torch._dynamo.reset()
    parts = {kind: taken_us / looked_at_us for kind, taken_us in spent.items()}
    return {"name": case.name, "step_us": us / steps} | parts


def _kind(event: Any, device: torch.device) -> tuple[str, float]:
    """What an event of the profiler is, "" for neither; its microseconds without those within."""
    if device.type == "cuda":
        if event.device_type != DeviceType.CUDA:
            return "", 0.0
        generated = event.name.startswith(_GENERATED)
        return "generated" if generated else "library", float(event.device_time)
    if any(part in event.name for part in _GENERATED):
        return "generated", float(event.self_cpu_time_total)
    library = "::" in event.name and not event.name.startswith(_NOTHING)
    return "library" if library else "", float(event.self_cpu_time_total)


def _run(step: Step, device: torch.device, seconds: float) -> tuple[int, float]:
    """Steps that were made in so much time, and the microseconds that they took."""
    began = time.perf_counter()
    steps = 0
    while not steps or time.perf_counter() - began < seconds:
        step.run()
        steps += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return steps, (time.perf_counter() - began) * 1e6


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--workloads", "pattern", default=".", help="Regular expression over names.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(device: str, pattern: str, out: Path | None) -> None:
    """Print and keep where the time of each workload goes."""
    on = torch.device(device)
    table = Table("workload", "step, us", "library", "generated", "neither")
    found = []
    for case in matching(pattern):
        with tempfile.TemporaryDirectory(prefix="fusewise-shares-") as scratch:
            one = shares(case, on, Path(scratch))
        found.append(one)
        rest = max(0.0, 1.0 - one["library"] - one["generated"])
        parts = (f"{part:.0%}" for part in (one["library"], one["generated"], rest))
        table.add_row(one["name"], f"{one['step_us']:,.0f}", *parts)
        click.echo(f"[{len(found)}] {case.name}", err=True)
    Console(width=100).print(table)
    if out is not None:
        told = {"schema": 1, "machine": described_machine(on), "workloads": found}
        out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
