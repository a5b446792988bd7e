"""How good the search is where every legal plan can be measured: regret after k candidates.

Regret is the time of what a search would have chosen over that of the best legal plan, less 1.
Problems are real graphs with few legal plans. Each process goes through programs one after the
other (``one_search``); a device is timed on by one of them at a time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
import msgspec
import numpy as np
import torch
from compare import described_machine
from contestants import copy_home
from one_search import KS, Order
from rich.console import Console
from rich.table import Table

from fusewise.costmodel.device import device_profile

SCHEMA = 1
#: Programs that have graphs with few legal plans: of the benchmarks, and of corpora.
PROGRAMS: tuple[str, ...] = (
    *(
        f"{name}-{dtype}"
        for dtype in ("fp32", "bf16")
        for name in (
            "distillation",
            "per_token_linear",
            "kv_cache_decode",
            "vision_block",
            "encoder_block",
            "label_smoothing",
        )
    ),
    *(
        f"generated:{name}"
        for name in (
            "layer_norm/3-0",
            "layer_norm/4-0",
            "batch_norm/3-2",
            "group_norm/3-3",
            "group_norm/4-3",
            "attention/4-5",
            "cross_entropy/3-7",
            "cross_entropy/4-7",
            "kl_divergence/3-9",
            "sgd/3-12",
            "factored/3-14",
            "factored/4-14",
            "gated_mlp/3-16",
            "gated_mlp/4-16",
            "embedding/3-24",
            "embedding/4-24",
            "full_reduction/3-37",
        )
    ),
    # Those that have fewer plans on a CPU may have more on a GPU.
    *(
        f"{name}-{dtype}"
        for dtype in ("fp32", "bf16")
        for name in ("focal_loss", "axes", "llama_block", "gated_mlp_step")
    ),
    "graph_attention-fp32",
    *(
        f"generated:{name}"
        for name in (
            "rms_norm/3-1",
            "attention/3-5",
            "composed/3-17",
            "eight_bit_floats/3-21",
            "reduction/3-28",
            "many_users/3-32",
        )
    ),
)
#: Strategies in the order in which they are told, with how they are drawn: colour,
#: line, width.
STRATEGIES = {
    "greedy, Inductor": ("black", ":", 1.5),
    "greedy, model": ("tab:orange", ":", 1.5),
    "random": ("tab:gray", "--", 1.5),
    "random, model": ("tab:purple", "--", 1.5),
    # Many coincide, so that what is drawn first is drawn broader.
    "all plans, model": ("mistyrose", "-", 7),
    "annealing, model": ("lightgreen", "-", 4),
    "beam, model": ("tab:blue", "-", 1.5),
}


class _Child:
    """A process that goes through programs."""

    def __init__(self, order: Order) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as this
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("one_search.py")),
                msgspec.json.encode(order).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONSAFEPATH": ""},
        )

    def ask(self, program: str) -> list[dict[str, Any]]:
        """The graphs of a program; of one that broke the process, why."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(f"{program}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return [self._broken(program)]
        for line in self.process.stdout:
            # Libraries print what they like; ours are the lines of JSON.
            if line.startswith("{"):
                graphs: list[dict[str, Any]] = json.loads(line)["graphs"]
                return graphs
        return [self._broken(program)]

    def _broken(self, program: str) -> dict[str, Any]:
        self.process.kill()
        self.process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        why = f"its process ended with status {self.process.returncode}: {lines[-1:]}"
        return {"program": program, "kind": "", "skipped": why}


def measured(
    programs: Sequence[str], order: Order, jobs: int, seconds: float, kept: Path | None
) -> list[dict[str, Any]]:
    """Graphs of the programs, as far as ``seconds`` reach; a file, if given, has what is done."""
    began = time.monotonic()
    waiting: queue.Queue[str] = queue.Queue()
    for program in programs:
        waiting.put(program)
    found: list[dict[str, Any]] = []
    children: list[_Child] = []
    lock = threading.Lock()

    def work() -> None:
        child: _Child | None = None
        while time.monotonic() - began < seconds:
            try:
                program = waiting.get_nowait()
            except queue.Empty:
                return
            if child is None or child.process.poll() is not None:
                child = _Child(order)
                with lock:
                    children.append(child)
            graphs = child.ask(program)
            with lock:
                if time.monotonic() - began > seconds:
                    return
                found.extend(graphs)
                for graph in graphs:
                    click.echo(f"[{time.monotonic() - began:4.0f} s] {_line(graph)}", err=True)
                if kept is not None:
                    kept.write_text(json.dumps(found))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join(max(0.0, began + seconds - time.monotonic()))
    finally:
        # What is under way is given up: its graphs are not in the figures.
        with lock:
            for child in children:
                child.process.kill()
        for thread in threads:
            thread.join()
    return found


def _line(graph: dict[str, Any]) -> str:
    name = f"{graph['program']} {graph['kind']}"
    counted = f"{graph['partitions']} plans of {graph['nodes']} nodes" if "plans" in graph else "-"
    if graph["skipped"] is not None:
        return f"{name}: {counted}, {graph['skipped']}"
    after = graph["regret"]["beam, model"]["4"]
    return f"{name}: {counted}, {graph['codes']} codes, regret {after:.2%}"


def distinct(graphs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Graphs that were measured, of those that are alike the first."""
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    for graph in graphs:
        if graph["skipped"] is None:
            seen.setdefault((graph["program"], graph["kind"], graph["nodes"]), graph)
    return list(seen.values())


def quantiles(graphs: Sequence[dict[str, Any]], name: str, k: int) -> tuple[float, float]:
    """Median and 90th percentile of a strategy's regret after ``k`` candidates."""
    values = [graph["regret"][name][str(k)] for graph in graphs]
    return float(np.median(values)), float(np.quantile(values, 0.9))


def summarised(graphs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and 90th percentile by strategy and number of candidates."""
    return {
        name: {
            str(k): dict(zip(("median", "p90"), quantiles(graphs, name, k), strict=True))
            for k in KS
        }
        for name in STRATEGIES
    }


def _show(graphs: Sequence[dict[str, Any]]) -> None:
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    each = Table("graph", "nodes", "plans", "codes", "default", "best", *(f"k={k}" for k in KS))
    for graph in sorted(graphs, key=lambda g: g["partitions"]):
        regret = graph["regret"]["beam, model"]
        each.add_row(
            f"{graph['program']} {graph['kind']}",
            str(graph["nodes"]),
            str(graph["partitions"]),
            str(graph["codes"]),
            f"{graph['default_us']:,.1f} µs",
            f"{graph['best_of_default']:.3f}",
            *(f"{regret[str(k)]:.2%}" for k in KS),
        )
    console.print(each)
    table = Table(
        "strategy",
        *(f"k={k}" for k in KS),
        title=f"regret, median and 90th percentile of {len(graphs)} graphs",
    )
    for name in STRATEGIES:
        cells = (quantiles(graphs, name, k) for k in KS)
        table.add_row(name, *(f"{median:.2%}, {p90:.2%}" for median, p90 in cells))
    console.print(table)


def _draw(graphs: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=False)
    # The median of most is nothing, so the mean is drawn.
    sums = {
        "mean": lambda name, k: np.mean([graph["regret"][name][str(k)] for graph in graphs]),
        "90th percentile": lambda name, k: quantiles(graphs, name, k)[1],
    }
    for axes, (title, summed) in zip(panels, sums.items(), strict=True):
        for name, (color, style, width) in STRATEGIES.items():
            values = [100 * summed(name, k) for k in KS]
            axes.plot(
                KS, values, style, color=color, lw=width, marker="o", markersize=3, label=name
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(KS, [str(k) for k in KS])
        axes.set(
            title=title, xlabel="candidates measured beside Inductor's own", ylabel="regret, %"
        )
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    figure.savefig(path)


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--programs", metavar="NAME,…", help="Workloads, or CORPUS:NAME; default: a list.")
@click.option(
    "--seconds", type=float, default=600.0, show_default=True, help="For everything together."
)
@click.option(
    "--timing", type=float, default=3.0, show_default=True, help="Seconds of timing each graph."
)
@click.option(
    "--most", type=int, default=100, show_default=True, help="Legal plans of a graph at most."
)
@click.option(
    "--scale", type=float, help="Of generated programs; default: 1 on a CPU, 16 on a GPU."
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes side by side."
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose store, models and device profiles are used; default: none.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
@click.option("--figure", type=click.Path(path_type=Path), help="Picture to draw, PNG or SVG.")
@click.option(
    "--again",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing; tell and draw what is in a file that --json wrote.",
)
@click.option("--count", is_flag=True, help="Only count the plans.")
def main(
    *,
    device: str,
    programs: str | None,
    seconds: float,
    timing: float,
    most: int,
    scale: float | None,
    jobs: int,
    home: Path | None,
    path: Path | None,
    figure: Path | None,
    again: Path | None,
    count: bool,
) -> None:
    """Measure all legal plans of small graphs, and the regret of searches among them."""
    if again is not None:
        _tell(json.loads(again.read_text())["graphs"], figure)
        return
    on = torch.device(device)
    if scale is None:
        scale = 16.0 if device == "cuda" else 1.0
    names = PROGRAMS if programs is None else programs.split(",")
    with tempfile.TemporaryDirectory(prefix="fusewise-quality-") as scratch:
        store = Path(scratch) / "home"
        copy_home(home, store)
        device_profile(on, store)
        order = Order(
            device=device,
            home=str(store),
            seconds=timing,
            most=most,
            scale=scale,
            count=count,
        )
        kept = None if path is None else path.with_suffix(".part")
        every = measured(names, order, jobs, seconds, kept)
    graphs = distinct(every)
    if path is not None:
        told = {
            "schema": SCHEMA,
            "machine": described_machine(on),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": {"timing_s": timing, "most": most, "scale": scale, "jobs": jobs},
            "graphs": graphs,
            "skipped": [graph for graph in every if graph["skipped"] is not None],
            "regret": summarised(graphs) if graphs else {},
        }
        path.write_text(json.dumps(told, indent=1) + "\n")
        path.with_suffix(".part").unlink(missing_ok=True)
    if not graphs:
        click.echo(f"no graph of {len(names)} programs was measured", err=True)
        return
    _tell(graphs, figure)


def _tell(graphs: Sequence[dict[str, Any]], figure: Path | None) -> None:
    _show(graphs)
    if figure is not None:
        _draw(graphs, figure)


if __name__ == "__main__":
    main()
