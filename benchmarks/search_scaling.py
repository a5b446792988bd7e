"""How the time of a search grows with the number of nodes, on made-up problems.

Compiler and cost are made up as well, so this is the search's own time: a real legality check
costs 50 to 500 µs more for each pair, and the number of those asked is written down beside it.
"""

from __future__ import annotations

import json
import platform
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fusewise.costmodel.interface import FloatArray
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem
from fusewise.search.beam import beam_search
from fusewise.search.legality import Verdict
from fusewise.search.tree import Tree

SIZES = (100, 200, 400, 1000, 2000, 4000)
#: A layer of a network: after so many nodes comes one that nothing is fused with.
_LAYER = 18
_ROWS, _WIDTH = 512, 1024
_BYTES_A_US, _LAUNCH_US = 4000.0, 2.0
_MOST_NODES = 12


def problem_of(count: int, seed: int) -> Problem:
    """A graph of ``count`` nodes as networks have them.

    Chains with residuals, now and then a reduction over the last axis, cut by extern kernels.
    """
    draw = random.Random(seed)
    nodes: list[Node] = []
    dependencies: list[Dependency] = []
    users: dict[str, list[str]] = {"input": []}
    rows: dict[str, bool] = {"input": False}
    for i in range(count):
        reduced = i % _LAYER > 0 and draw.random() < 0.2
        extern = i % _LAYER == 0
        before = [f"buf{j}" for j in range(max(0, i - 6), i)] or ["input"]
        sources = sorted({before[-1], draw.choice(before)})
        name, own = f"op{i}", f"buf{i}"
        # What only reads rows (one value each) is as small as they are.
        small = not extern and (reduced or all(rows[source] for source in sources))
        rows[own] = small
        kind = "extern" if extern else "reduction" if reduced else "pointwise"
        wide = reduced and not all(rows[source] for source in sources)
        nodes.append(
            Node(
                name=name,
                kind=kind,  # type: ignore[arg-type]
                device="cpu",
                numel=_ROWS if small else _ROWS * _WIDTH,
                rnumel=_WIDTH if wide else 1,
                ranges=((_ROWS,), (_WIDTH,)) if wide else ((_ROWS,), ()),
                reduction_type="sum" if wide else "",
                reads=tuple(_access(source, small=rows[source]) for source in sources),
                writes=(_access(own, small=small),),
                ops=(("add", 1),),
                origins=("add",),
                source="",
                order=i,
                compiler_us=0.0,
                flops=0,
                signature=f"{kind}{small}",
            )
        )
        users[own] = []
        for source in sources:
            users[source].append(name)
            if source != "input":
                dependencies.append(Dependency(name, f"op{source[3:]}", source))
    buffers = tuple(
        Buffer(
            name=buffer,
            bytes=_bytes(small=rows[buffer]),
            dtype="float32",
            is_input=buffer == "input",
            is_output=not readers,
            users=tuple(readers),
        )
        for buffer, readers in users.items()
    )
    return Problem(f"{count} {seed}", "inference", tuple(nodes), buffers, tuple(dependencies), ())


def _bytes(*, small: bool) -> int:
    return 4 * _ROWS * (1 if small else _WIDTH)


def _access(buffer: str, *, small: bool) -> Access:
    size = _bytes(small=small)
    return Access(buffer, "contiguous", size // 4, size, 4, 1, "rows" if small else "all")


class Rules:
    """A made-up compiler: shared data, equal rows, and not too much in one kernel."""

    def __init__(self, problem: Problem) -> None:
        self._nodes = problem.node_by_name

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        """See ``Legality``."""
        nodes = [self._nodes[name] for name in (*first.nodes, *second.nodes)]
        if len(nodes) > _MOST_NODES:
            return Verdict(False, "size")
        if any(node.kind == "extern" for node in nodes):
            return Verdict(False, "extern")
        sides = (nodes[: len(first.nodes)], nodes[len(first.nodes) :])
        used = [{a.buffer for n in side for a in (*n.reads, *n.writes)} for side in sides]
        return Verdict(True) if used[0] & used[1] else Verdict(False, "no_shared_data")


class Costs:
    """Bytes that are left to move, a launch, and a penalty on many reductions in one kernel."""

    def __init__(self, problem: Problem) -> None:
        self._nodes = problem.node_by_name
        self._buffers = problem.buffer_by_name

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        """See ``GroupCost``."""
        return np.array([self._us(group) for group in groups])

    def _us(self, group: frozenset[str]) -> float:
        nodes = [self._nodes[name] for name in group]
        written = {access.buffer: access.bytes for node in nodes for access in node.writes}
        read = {access.buffer: access.bytes for node in nodes for access in node.reads}
        moved = sum(size for buffer, size in read.items() if buffer not in written)
        moved += sum(
            size
            for buffer, size in written.items()
            if not group.issuperset(self._buffers[buffer].users) or self._buffers[buffer].is_output
        )
        reductions = sum(node.rnumel > 1 for node in nodes)
        return _LAUNCH_US + moved / _BYTES_A_US * (1 + 0.1 * max(0, reductions - 1) ** 2)


def measured(count: int, seed: int) -> dict[str, Any]:
    """One search over ``count`` nodes."""
    problem = problem_of(count, seed)
    default = unfused([node.name for node in problem.nodes])
    began, wall = time.process_time(), time.perf_counter()
    result = beam_search(problem, default, Rules(problem), Costs(problem))
    return {
        "nodes": count,
        "seed": seed,
        "cpu_s": time.process_time() - began,
        "wall_s": time.perf_counter() - wall,
        "states": result.states,
        "groups_scored": result.groups_scored,
        "verdicts": result.verdicts,
        "predicted_of_unfused": result.best.predicted_us / result.default.predicted_us,
    }


def exponent(results: Sequence[dict[str, Any]]) -> float:
    """Slope of log time over log nodes (least squares): 1 is linear growth."""
    nodes, seconds = (np.log([r[key] for r in results]) for key in ("nodes", "cpu_s"))
    return float(np.polyfit(nodes, seconds, 1)[0])


def _draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(
        xscale="log", yscale="log", xlabel="nodes", ylabel="seconds on one core"
    )
    axes.plot([r["nodes"] for r in results], [r["cpu_s"] for r in results], "o", label="search")
    first = min(results, key=lambda r: r["nodes"])
    sizes = sorted({r["nodes"] for r in results})
    linear = [first["cpu_s"] * size / first["nodes"] for size in sizes]
    axes.plot(sizes, linear, "--", color="gray", label="linear growth from the first")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path)


@click.command()
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, metavar="N,N,...")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for the figures.")
@click.option(
    "--figure", type=click.Path(path_type=Path), help="Picture to draw, such as scaling.svg."
)
def main(*, sizes: str, seeds: int, path: Path | None, figure: Path | None) -> None:
    """Time searches over made-up problems of growing size."""
    # The first search of a process pays for imports and caches.
    measured(50, 0)
    results = [measured(int(size), seed) for size in sizes.split(",") for seed in range(seeds)]
    table = Table("nodes", "seconds", "groups scored", "pairs asked", "predicted, of unfused")
    for size in sorted({r["nodes"] for r in results}):
        of_size = [r for r in results if r["nodes"] == size]
        median = sorted(of_size, key=lambda r: r["cpu_s"])[len(of_size) // 2]
        table.add_row(
            str(size),
            f"{median['cpu_s']:.2f}",
            str(median["groups_scored"]),
            str(median["verdicts"]),
            f"{median['predicted_of_unfused']:.2f}",
        )
    Console().print(table)
    growth = exponent(results) if len({r["nodes"] for r in results}) > 1 else None
    if growth is not None:
        click.echo(f"time grows as nodes to the power of {growth:.2f}")
    if path is not None:
        told = {"machine": platform.machine(), "exponent": growth, "searches": results}
        path.write_text(json.dumps(told, indent=1) + "\n")
    if figure is not None:
        _draw(results, figure)


if __name__ == "__main__":
    main()
