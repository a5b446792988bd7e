"""How long the first step takes: stock Inductor against fusewise in each mode.

Every compile has a process of its own (``one_compile``) and, but for what is compiled a second
time on purpose, empty compile caches. Contestants take turns, so that a machine that slows down
slows all of them down. Only times are taken here; what is gained by them ``compare`` says.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
import torch
from compare import TOLD_CHARACTERS, described_machine
from contestants import BASELINE, cache_variables, copy_home
from one_compile import Order
from rich.console import Console
from rich.table import Table
from workloads import CASES, Case, matching

from fusewise.costmodel.device import device_profile

#: Of the JSON that is written.
SCHEMA = 1
#: One first step may take this long.
_MOST_SECONDS = 900.0
#: Phases that took less are not shown.
_SHOWN_S = 0.005


@dataclass(frozen=True)
class Turn:
    """One compile of a workload."""

    name: str
    #: Who compiles: see ``contestants``.
    contestant: str
    #: The turn whose store it starts with; "" for the one that was given.
    store_of: str = ""
    #: The turn whose compile caches it starts with; "" for empty ones.
    caches_of: str = ""
    #: What its time is compared with.
    against: str = BASELINE


TURNS = (
    Turn(BASELINE, BASELINE),
    Turn("predict", "predict"),
    Turn("measure", "fusewise"),
    Turn("known", "fusewise", store_of="measure"),
    Turn("inductor again", BASELINE, caches_of=BASELINE),
    Turn("known again", "fusewise", "measure", caches_of="known", against="inductor again"),
)


def first_steps(
    case: Case, order: Mapping[str, Any], home: Path, turns: Sequence[Turn] = TURNS
) -> dict[str, dict[str, Any]]:
    """Each turn once, by name: ``seconds`` and more of ``one_compile``; or ``failure``."""
    told: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fusewise-compile-") as scratch:
        for turn in turns:
            folder = Path(scratch) / turn.name.replace(" ", "_")
            store = Path(scratch) / turn.store_of / "home" if turn.store_of else home
            shutil.copytree(store, folder / "home")
            if turn.caches_of:
                shutil.copytree(
                    Path(scratch) / turn.caches_of / "inductor", folder / "inductor", symlinks=True
                )
            made = Order(
                case=case.name, contestant=turn.contestant, home=str(folder / "home"), **order
            )
            told[turn.name] = _run(made, folder)
    return told


def _wanted(names: str) -> list[Turn]:
    """The turns of these names with those that they build on and are compared with."""
    by_name = {turn.name: turn for turn in TURNS}
    wanted: set[str] = set()
    left = [name.strip() for name in names.split(",")]
    while left:
        name = left.pop()
        if name not in by_name:
            raise click.BadParameter(
                f"no turn {name!r}; there are {', '.join(by_name)}", param_hint="--turns"
            )
        if name not in wanted:
            wanted.add(name)
            turn = by_name[name]
            left += [n for n in (turn.store_of, turn.caches_of, turn.against) if n]
    return [turn for turn in TURNS if turn.name in wanted]


def _run(order: Order, folder: Path) -> dict[str, Any]:
    script = Path(__file__).with_name("one_compile.py")
    try:
        done = subprocess.run(
            [sys.executable, str(script), msgspec.json.encode(order).decode()],
            env={**os.environ, **cache_variables(folder)},
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"not done in {_MOST_SECONDS:.0f} s"}
    for line in done.stdout.splitlines():
        # Libraries print what they like; ours is the line of JSON.
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    last = done.stderr.strip().splitlines()[-1:]
    # Where it hung stands at the end.
    told = done.stderr[-TOLD_CHARACTERS:]
    return {"failure": f"status {done.returncode}: {''.join(last)[:300]}", "stderr": told}


def medians(rounds: Sequence[Mapping[str, Any]], clock: str) -> dict[str, float]:
    """Seconds of each turn, the median over the rounds, by one of the two clocks."""
    found: dict[str, list[float]] = {}
    for told in rounds:
        for name, outcome in told.items():
            if clock in outcome:
                found.setdefault(name, []).append(outcome[clock])
    return {name: statistics.median(values) for name, values in found.items()}


def ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Time of each turn over that of what it is compared with."""
    return {
        turn.name: seconds[turn.name] / seconds[turn.against]
        for turn in TURNS
        if turn.name != turn.against and turn.name in seconds and turn.against in seconds
    }


def phases(rounds: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Seconds of a turn by phase, over all graphs of the workload, the median over the rounds."""
    sums: dict[str, list[float]] = {}
    for told in rounds:
        once: dict[str, float] = {}
        for graph in told.get(name, {}).get("graphs", ()):
            for phase, seconds in graph["seconds"].items():
                once[phase] = once.get(phase, 0.0) + seconds
        for phase, seconds in once.items():
            sums.setdefault(phase, []).append(seconds)
    return {phase: statistics.median(values) for phase, values in sums.items()}


def _show(results: Sequence[dict[str, Any]], clock: str, title: str) -> None:
    taken = {name for result in results for told in result["rounds"] for name in told}
    against = {turn.name: turn.against for turn in TURNS if turn.name in taken}
    titles = [n if against[n] == n or n == "inductor again" else f"{n}, ×" for n in against]
    table = Table("workload", *titles, title=title)
    by_name: dict[str, list[float]] = {}
    for result in results:
        seconds = medians(result["rounds"], clock)
        relative = ratios(seconds)
        cells = []
        for name in against:
            if name not in seconds:
                cells.append("[red]failed[/]")
            elif name in relative and name != "inductor again":
                cells.append(f"{relative[name]:.2f}")
                by_name.setdefault(name, []).append(relative[name])
            else:
                cells.append(f"{seconds[name]:.2f} s")
        table.add_row(result["name"], *cells)
    table.add_section()
    means = {name: statistics.median(values) for name, values in by_name.items()}
    table.add_row("median", *(f"{means[n]:.2f}" if n in means else "" for n in against))
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _show_phases(results: Sequence[dict[str, Any]]) -> None:
    table = Table("workload", "turn", "seconds by phase")
    for result in results:
        for name in ("predict", "measure", "known"):
            found = phases(result["rounds"], name)
            if not found:
                continue
            told = ", ".join(f"{phase} {s:.2f}" for phase, s in found.items() if s >= _SHOWN_S)
            table.add_row(result["name"], name, told)
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--workloads",
    "pattern",
    default=".",
    metavar="PATTERN",
    help="Regular expression over names, kinds and families; default: all.",
)
@click.option(
    "--turns",
    "names",
    default=",".join(turn.name for turn in TURNS),
    show_default=True,
    help="Who compiles, beside those that they are compared with.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Workloads at a time; their processes start side by side and are timed one by one.",
)
@click.option(
    "--settled/--fresh",
    default=True,
    show_default=True,
    help="Whether stock Inductor compiles something small in each process before, so that what a "
    "process does once does not count.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
@click.option(
    "--home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose store, models and device profiles every fusewise starts from.",
)
def main(
    *,
    device: str,
    pattern: str,
    names: str,
    repeats: int,
    jobs: int,
    settled: bool,
    path: Path | None,
    home: Path | None,
) -> None:
    """Time the first step of real programs, compiled by stock Inductor and by fusewise."""
    cases = matching(pattern)
    if not cases:
        raise click.BadParameter(f"none of {len(CASES)} matches", param_hint="--workloads")
    turns = _wanted(names)
    on = torch.device(device)
    results: list[dict[str, Any]] = [{"name": case.name, "rounds": []} for case in cases]
    with tempfile.TemporaryDirectory(prefix="fusewise-compile-times-") as scratch:
        store = Path(scratch) / "home"
        copy_home(home, store)
        # Probed once a machine; part of nobody's compile time.
        device_profile(on, store)
        order = {"device": device, "settled": settled, "lock": str(Path(scratch) / "turn")}
        run = {"repeats": repeats, "settled": settled, "jobs": jobs}
        with ThreadPoolExecutor(jobs) as pool:
            begun = {
                pool.submit(first_steps, case, order, store, turns): (result, case)
                for _ in range(repeats)
                for result, case in zip(results, cases, strict=True)
            }
            try:
                for done, future in enumerate(as_completed(begun), start=1):
                    result, case = begun[future]
                    result["rounds"].append(future.result())
                    click.echo(f"[{done}/{len(begun)}] {case.name}", err=True)
                    if path is not None:
                        _write(path, on, results, run)
            except KeyboardInterrupt:
                click.echo("interrupted", err=True)
                pool.shutdown(cancel_futures=True)
    _show(results, "seconds", "first step")
    _show(results, "first_steps_s", "first six steps")
    _show(results, "processor_s", "first step, processor time of all processes")
    _show_phases(results)


def _write(
    path: Path, device: torch.device, results: Sequence[dict[str, Any]], run: dict[str, Any]
) -> None:
    told = {
        "schema": SCHEMA,
        "machine": described_machine(device),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "workloads": [
            {
                **result,
                "seconds": (seconds := medians(result["rounds"], "seconds")),
                "ratios": ratios(seconds),
                "phases": {turn.name: phases(result["rounds"], turn.name) for turn in TURNS},
            }
            for result in results
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
