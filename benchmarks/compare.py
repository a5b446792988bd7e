"""fusewise against stock Inductor and eager, whole steps, on real programs.

Each workload runs in a process of its own (``one_workload``), so that one which crashes costs
itself alone. Processes may compile side by side; each is timed while all others wait.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
import msgspec
import torch
from contestants import BASELINE, DEFAULT_NAMES, contestant, copy_home
from one_workload import AGAIN, Order
from rich.console import Console
from rich.table import Table
from table import geomean
from workloads import CASES, Case, Drawn, draw, matching

import fusewise
from fusewise.commands.corpora import corpora_specs
from fusewise.costmodel.device import device_key, device_profile
from fusewise.schedule.errors import CorpusError

#: Of the JSON that is written.
SCHEMA = 1
#: Compiling all contestants of one workload may take this long.
_MOST_SECONDS = 900.0
#: Of what a process that failed has told, this much is kept.
TOLD_CHARACTERS = 20_000
#: Characters of a reason in the table.
_WIDTH = 60


class _Child:
    """The process of one workload."""

    def __init__(self, case: Case | Drawn, order: Order) -> None:
        self.case = case
        # The worker's own warnings and tracebacks are kept to tell why it died.
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as this
        environment = {**os.environ, "PYTHONSAFEPATH": ""}
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("one_workload.py")),
                msgspec.json.encode(order).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def wait(self) -> bool:
        """Until everything is compiled; whether it is."""
        return self._answer() is not None

    def time(self) -> dict[str, Any]:
        """Have it timed; the outcome."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self.failed()
        outcome = self._answer()
        self.end()
        return self.failed() if outcome is None else outcome

    def failed(self) -> dict[str, Any]:
        """The outcome of a process that died."""
        self.end()
        self._errors.seek(0)
        told = self._errors.read().strip()
        last = told.splitlines()[-1] if told else ""
        reason = f"its process ended with status {self._process.returncode}: {last}"
        # Where it hung stands at the end.
        kept = told[-TOLD_CHARACTERS:]
        return {**self.case.described(), "status": "failed", "reason": reason, "stderr": kept}

    def end(self) -> None:
        """Have no process left."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        # A process that hangs is ended from the side, which ends the reading.
        watch = threading.Timer(_MOST_SECONDS, self._process.kill)
        watch.daemon = True
        watch.start()
        try:
            # Libraries print what they like; ours are the lines of JSON.
            lines = (line for line in self._process.stdout if line.startswith("{"))
            return next((json.loads(line) for line in lines), None)
        finally:
            watch.cancel()


def outcomes(
    cases: Sequence[Case | Drawn], jobs: int, order: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Compile ``jobs`` workloads at a time, then time them one by one."""
    for start in range(0, len(cases), jobs):
        children = [
            _Child(case, Order(case=case.name, corpus=case.corpus, **order))
            for case in cases[start : start + jobs]
        ]
        try:
            ready = [child.wait() for child in children]
            for child, compiled in zip(children, ready, strict=True):
                yield child.time() if compiled else child.failed()
        finally:
            for child in children:
                child.end()


def described_machine(device: torch.device) -> dict[str, Any]:
    """The device and the versions that figures hold for."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else device_key(device),
        "kind": device.type,
        "key": device_key(device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": str(torch.__version__),
        "fusewise": fusewise.__version__,
        "python": platform.python_version(),
    }


def speedups(results: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Of one contestant over the baseline, for the workloads where both were timed."""
    return [r["speedup"][name]["median"] for r in results if name in r.get("speedup", {})]


def _row(result: dict[str, Any], names: Sequence[str]) -> list[str]:
    if result["status"] != "ok":
        return [
            result["name"],
            f"[red]failed[/]: {_shortened(result['reason'])}",
            *[""] * (len(names) - 1),
        ]
    cells = [result["name"]]
    for name in names:
        told = result["contestants"].get(name, {})
        speedup = result["speedup"].get(name)
        if name == BASELINE:
            cells.append(f"{told['median_us']:,.1f} µs ± {told['spread']:.1%}")
        elif speedup is None:
            cells.append(f"[red]{_shortened(told.get('failure') or 'not timed')}[/]")
        else:
            cells.append(f"{speedup['median']:.3f} {_between(speedup)}")
    return cells


def _shortened(text: str) -> str:
    """A reason as it fits a table; the JSON has it whole."""
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _between(speedup: dict[str, float | None]) -> str:
    low, high = speedup["low"], speedup["high"]
    return "" if low is None or high is None else f"({low:.3f} to {high:.3f})"


def _show(results: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    titles = [name if name == BASELINE else f"{name}, ×" for name in names]
    table = Table("workload", *titles, title="step of the baseline, and speed-ups over it")
    for result in results:
        table.add_row(*_row(result, names))
    means = (geomean(speedups(results, name)) for name in names)
    table.add_section()
    table.add_row("geomean", *("" if mean is None else f"{mean:.3f}" for mean in means))
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
    "--seconds", type=float, default=5.0, show_default=True, help="Timing of each workload."
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
@click.option(
    "--contestants",
    default=",".join(DEFAULT_NAMES),
    show_default=True,
    help="Separated by commas; SETTING=VALUE, joined by +, is Inductor under those settings.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Compile so many at once."
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose store, models and device profiles every fusewise starts from; "
    "default: none, as after installation.",
)
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME|TARGET",
    help="Draw programs from a corpus of 'fusewise collect' in place of the workloads; repeatable.",
)
@click.option(
    "--graphnet",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Draw programs from a checkout of GraphNet. Their code is run: only one that you trust.",
)
@click.option("--family", "families", multiple=True, help="Draw from these alone; repeatable.")
@click.option(
    "--draw", "count", type=click.IntRange(1), default=30, show_default=True, help="Of each corpus."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn.")
@click.option("--list", "listing", is_flag=True, help="Name the workloads and stop.")
def main(
    *,
    device: str,
    pattern: str,
    seconds: float,
    path: Path | None,
    contestants: str,
    jobs: int,
    home: Path | None,
    corpora: tuple[str, ...],
    graphnet: Path | None,
    families: tuple[str, ...],
    count: int,
    seed: int,
    listing: bool,
) -> None:
    """Compare compiled steps of real programs, each measured in one interleaved run."""
    cases: list[Case | Drawn] = [*matching(pattern)]
    try:
        specs = [
            msgspec.structs.replace(spec, families=families)
            for spec in corpora_specs(corpora, graphnet, device)
        ]
        drawn = [case for spec in specs for case in draw(spec, count, seed)]
    except CorpusError as error:
        raise click.ClickException(str(error)) from error
    if specs:
        cases = [case for case in drawn if re.search(pattern, case.name)]
    if listing:
        for case in cases:
            click.echo("{name:28} {kind:10} {family}".format(**case.described()))
        return
    names = list(dict.fromkeys([BASELINE, *contestants.split(",")]))
    for name in names:
        try:
            contestant(name)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--contestants") from error
    if not cases:
        among = len(drawn) if specs else len(CASES)
        raise click.BadParameter(f"none of {among} matches", param_hint="--workloads")
    on = torch.device(device)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fusewise-benchmarks-") as scratch:
        store = Path(scratch) / "home"
        copy_home(home, store)
        # Probed once a machine, not once a workload; part of nobody's compile time.
        device_profile(on, store)
        order = {"device": device, "contestants": names, "seconds": seconds, "store": str(store)}
        run = {"seconds": seconds, "jobs": jobs}
        if specs:
            told = [{"name": spec.name, "scale": spec.scale} for spec in specs]
            run |= {"corpora": told, "families": families, "seed": seed}
        try:
            for result in outcomes(cases, jobs, order):
                results.append(result)
                _tell(result, len(results), len(cases))
                if path is not None:
                    # After each, so that an interrupted run keeps what it has.
                    _write(path, on, results, run)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
    _show(results, [*names, AGAIN])


def _tell(result: dict[str, Any], done: int, wanted: int) -> None:
    found = result.get("speedup", {}).get("fusewise")
    told = f"fusewise {found['median']:.3f}" if found else result["reason"] or "done"
    click.echo(f"[{done}/{wanted}] {result['name']}: {told}", err=True)


def _write(
    path: Path, device: torch.device, results: Sequence[dict[str, Any]], run: dict[str, Any]
) -> None:
    told = {
        "schema": SCHEMA,
        "machine": described_machine(device),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "baseline": BASELINE,
        "workloads": list(results),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(told, indent=1) + "\n")
    scratch.replace(path)


if __name__ == "__main__":
    main()
