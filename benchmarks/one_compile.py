"""The first steps of one workload in a process of its own, under a clock.

Started by ``compile_times`` with the folder of the compile caches in the environment. Prints one
JSON line.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from contestants import compiled, contestant
from steps import SETTLING, Step, ended_if_it_hangs
from workloads import named

#: Six steps take no longer.
_MOST_SECONDS = 240.0


class Order(msgspec.Struct, frozen=True):
    """What is to be done, as it stands in the argument of the process."""

    case: str
    device: str
    contestant: str
    #: Folder of the store; fusewise works in it.
    home: str
    #: Whether something small is compiled by stock Inductor first, so that what every process
    #: does once (imports, compilers looked for) is no part of the time.
    settled: bool
    #: File that a process holds while it is timed, of those that start side by side.
    lock: str


def main() -> None:
    """Do what the order in the first argument says."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    case = named(order.case)
    device = torch.device("cuda", 0) if order.device == "cuda" else torch.device(order.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    program = case.build(device)
    if order.settled:
        _settle(device)
    step = Step(program, compiled(program.function, contestant(order.contestant), Path(order.home)))
    with _turn(order.lock), ended_if_it_hangs(_MOST_SECONDS):
        before = _processor_s()
        seconds = _timed(step, device)
        spent = {who: s - before.get(who, 0.0) for who, s in _processor_s().items()}
        first_steps_s = seconds + sum(_timed(step, device) for _ in range(SETTLING))
    told = {
        "seconds": seconds,
        "processor_s": sum(spent.values()),
        "processor_by": spent,
        "graphs": _graphs() if "fusewise" in sys.modules else [],
        "first_steps_s": first_steps_s,
    }
    print(json.dumps(told), flush=True)


@contextmanager
def _turn(lock: str) -> Iterator[None]:
    """Hold the file ``lock``, once no other process does."""
    with Path(lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _timed(step: Step, device: torch.device) -> float:
    """Seconds that one step takes."""
    began = time.perf_counter()
    step.run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _settle(device: torch.device) -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).sum(-1)

    with torch.no_grad():
        torch.compile(small)(torch.ones(64, 64, device=device))
    torch._dynamo.reset()


def _processor_s() -> dict[str, float]:
    """Processor time in seconds of this process and of all that it has started, by who spent it.

    ``self``, ``ended`` (compilers, most of all), ``measuring`` for measuring processes and ``pool``
    for others that still run.
    """
    own = psutil.Process()
    found = own.cpu_times()
    spent = {
        "self": found.user + found.system,
        "ended": found.children_user + found.children_system,
        "measuring": 0.0,
        "pool": 0.0,
    }
    for child in own.children(recursive=True):
        try:
            of_child = child.cpu_times()
            # One for the CPU is a copy of this process.
            words = child.cmdline()
            measures = words == own.cmdline() or any("measuring" in word for word in words)
        except psutil.Error:
            continue
        spent["measuring" if measures else "pool"] += (
            of_child.user + of_child.system + of_child.children_user + of_child.children_system
        )
    return spent


def _graphs() -> list[dict[str, Any]]:
    import fusewise

    return [
        {
            "kind": report.kind,
            "nodes": report.nodes,
            "source": report.source,
            "fallback": report.fallback,
            "chosen": None if report.chosen is None else report.chosen.origin,
            "measured": sum(c.status == "measured" for c in report.candidates),
            "cost": report.cost,
            "seconds": report.seconds,
        }
        for report in fusewise.reports()
    ]


if __name__ == "__main__":
    main()
