"""A process of its own that compiles a few times and tells what happened.

Run as ``python fresh_process.py REQUESTS`` with a JSON list of requests; prints one line of JSON
for each: the program, the options of the backend, and whether to write the plan file first, for
the graphs that the store knows: a plan that fuses nothing, or verdicts on nodes by kind of graph.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache
from torch.nn import functional

import fusewise
from fusewise.compiler.inductor.toolchain import trust_probes
from fusewise.compiler.reports import clear_reports, reports
from fusewise.datasets.rows import decode_problem
from fusewise.datasets.store import Store
from fusewise.schedule.inlining import node_choices
from fusewise.schedule.plan import unfused
from fusewise.schedule.plan_file import PlanFile, PlannedGraph, write_plan_file
from fusewise.schedule.schedule import Schedule


def chain(x: Any, w: Any) -> Any:
    """Several nodes that Inductor fuses."""
    return torch.softmax(x * w, -1), (x + w).cos().sum(0)


def training(x: Any, w: Any) -> Any:
    """A forward with something to save for its backward."""
    return functional.silu(x * w).square().mean(-1)


PROGRAMS = {"chain": (chain, (12, 40), (40,), False), "training": (training, (8, 24), (24,), True)}


def call(function: Any, name: str) -> list[Any]:
    """Outputs, and gradients of a training program, on inputs that are always the same."""
    _, rows, columns, trains = PROGRAMS[name]
    generator = torch.Generator().manual_seed(7)
    args = [
        torch.randn(shape, generator=generator).requires_grad_(trains) for shape in (rows, columns)
    ]
    outputs = function(*args)
    if not trains:
        return list(outputs)
    outputs.sum().backward()
    return [outputs, *(arg.grad for arg in args)]


def write_plan(store: str, path: str, nodes: dict[str, dict[str, Any]] | None) -> None:
    """Write a schedule for every graph in a store: verdicts on nodes, or else nothing fused."""
    with Store.open(store) as opened:
        graphs: Any = opened.rows("graphs")
    planned = []
    for row in graphs:
        if nodes is None:
            names = [node.name for node in decode_problem(row.problem).nodes]
            schedule = Schedule(plan=unfused(names))
        else:
            schedule = Schedule(lowering=node_choices(nodes[row.kind]))
        planned.append(
            PlannedGraph(kind=row.kind, key_parts=row.parts, device="cpu", schedule=schedule)
        )
    write_plan_file(path, PlanFile(fusewise="1", torch="2", graphs=tuple(planned)))


def compile_once(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Compile a program, run it, and tell what came of it."""
    torch._dynamo.reset()
    clear_reports()
    counters.clear()
    PyCodeCache.cache_clear()
    function = PROGRAMS[name][0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        got = call(torch.compile(function, backend="fusewise", options=options), name)
    wanted = call(function, name)
    codes = [Path(str(module.__file__)).read_text() for module in PyCodeCache.modules]
    return {
        "close": all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, wanted, strict=True)),
        "codes": sorted(hashlib.sha256(code.encode()).hexdigest() for code in codes),
        "loops": sum(len(re.findall(r"for\s?\(int64_t x0=", code)) for code in codes),
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"],
        "warnings": [str(w.message) for w in told if "fusewise" in str(w.message)],
        "graphs": [
            {
                "kind": report.kind,
                "key": report.key,
                "source": report.source,
                "fallback": report.fallback,
                "chosen": report.chosen.schedule.id if report.chosen else None,
                "candidates": [
                    (c.schedule.id, c.origin, c.predicted_us, c.measured_us)
                    for c in report.candidates
                ],
            }
            for report in reports()
        ],
    }


def main() -> None:
    """Serve the requests of the command line."""
    assert fusewise.__version__
    trust_probes()
    for request in json.loads(sys.argv[1]):
        options = request["options"]
        if request.get("plan"):
            write_plan(request["plan"], options["fusewise.plan"], request.get("nodes"))
        print("compiling", flush=True)  # noqa: T201
        print(json.dumps(compile_once(request["program"], options)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
