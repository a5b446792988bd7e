"""What each stage of the compiler is worth, in the shape of table 4 of the PyTorch 2 paper.

Whole steps of the workloads, without one stage at a time, over eager and over Inductor as it is;
geometric means of inference and of training. Compiling, checking and timing are those of
``compare``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import torch
from compare import described_machine, outcomes
from contestants import BASELINE, copy_home
from table import between_marks, geomean
from workloads import CASES, matching

from fusewise.compiler.ablating.backend import STAGE
from fusewise.costmodel.device import device_profile

#: Of the JSON that is written.
SCHEMA = 1
#: Stages that are left out, each with how the table calls it; templates are off by default.
ROWS: dict[str, str] = {
    BASELINE: "everything",
    "no_rewrites": "without rewrites",
    "no_horizontal": "without horizontal fusion",
    "no_vertical": "without vertical fusion",
    "no_fusion": "without fusion",
    "no_inlining": "without inlining",
    "no_inlining_no_fusion": "without fusion and inlining",
    "one_kernel_per_operation": "one kernel per operation",
    "fusewise": "fusewise",
}
KINDS = ("inference", "training")
#: The part of a page that is written.
_BEGIN = "<!-- ablation: written by benchmarks/ablation.py, do not edit -->"
_END = "<!-- ablation: end -->"


def over(result: Mapping[str, Any], name: str, base: str) -> float | None:
    """Speed-up of one contestant over another in a workload; None where one was not timed."""
    speedups = {BASELINE: 1.0} | {k: v["median"] for k, v in result.get("speedup", {}).items()}
    if result["status"] != "ok" or name not in speedups or base not in speedups:
        return None
    return float(speedups[name] / speedups[base])


def means(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each row the geometric means, by base and kind of workload, and how many they are of."""
    rows = []
    for name, title in ROWS.items():
        row: dict[str, Any] = {"name": name, "title": title}
        for base, label in (("eager", "over_eager"), (BASELINE, "over_everything")):
            for kind in KINDS:
                found = [over(r, name, base) for r in results if r["kind"] == kind]
                timed = [speedup for speedup in found if speedup is not None]
                row[f"{label}_{kind}"] = geomean(timed)
                row[f"workloads_{kind}"] = len(timed)
        rows.append(row)
    return rows


def markdown(told: Mapping[str, Any]) -> str:
    """The table with what it holds for."""
    machine = told["machine"]
    counts = " and ".join(f"{_count(told, kind)} {kind}" for kind in KINDS)
    lines = [
        f"{machine['device']}, torch {machine['torch']}; geometric means over {counts} workloads.",
        "Above 1 is faster.",
        "",
        "| | over eager, inference | training | over everything, inference | training |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in told["rows"]:
        cells = [
            _figure(row[f"{label}_{kind}"])
            for label in ("over_eager", "over_everything")
            for kind in KINDS
        ]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {row['title']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _count(told: Mapping[str, Any], kind: str) -> int:
    return sum(r["kind"] == kind and r["status"] == "ok" for r in told["workloads"])


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}×"


def write_into(page: Path, table: str) -> None:
    """Put the table between the page's two marks.

    Raises:
        click.BadParameter: the page has no marks.
    """
    try:
        page.write_text(between_marks(page.read_text(), table, _BEGIN, _END))
    except ValueError as error:
        raise click.BadParameter(
            f"{page} has no {_BEGIN} and {_END}", param_hint="--page"
        ) from error


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
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Compile so many at once."
)
@click.option(
    "--stages",
    metavar="NAME,…",
    help="Rows to measure; default: all.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder whose store and models fusewise starts from; default: none.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Page to write into.")
def main(
    *,
    device: str,
    pattern: str,
    seconds: float,
    jobs: int,
    stages: str | None,
    home: Path | None,
    path: Path | None,
    page: Path | None,
) -> None:
    """Time whole steps without each stage of the compiler; print the table as Markdown."""
    cases = matching(pattern)
    if not cases:
        raise click.BadParameter(f"none of {len(CASES)} matches", param_hint="--workloads")
    wanted = list(ROWS) if stages is None else [BASELINE, *stages.split(",")]
    unknown = [name for name in wanted if name not in ROWS and name not in STAGE]
    if unknown:
        raise click.BadParameter(f"no stage {unknown[0]!r}", param_hint="--stages")
    on = torch.device(device)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fusewise-ablation-") as scratch:
        store = Path(scratch) / "home"
        copy_home(home, store)
        device_profile(on, store)
        names = list(dict.fromkeys([BASELINE, "eager", *wanted]))
        order = {"device": device, "contestants": names, "seconds": seconds, "store": str(store)}
        try:
            for result in outcomes(cases, jobs, order):
                results.append(result)
                click.echo(f"[{len(results)}/{len(cases)}] {result['name']}", err=True)
                if path is not None:
                    # After each, so that an interrupted run keeps what it has.
                    _write(path, _told(on, results, seconds, jobs))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
    table = markdown(_told(on, results, seconds, jobs))
    if page is not None:
        write_into(page, table)
    click.echo(table)


def _told(
    device: torch.device, results: Sequence[dict[str, Any]], seconds: float, jobs: int
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": described_machine(device),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": {"seconds": seconds, "jobs": jobs},
        "rows": means(results),
        "workloads": list(results),
    }


def _write(path: Path, told: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(told, indent=1) + "\n")
    scratch.replace(path)


if __name__ == "__main__":
    main()
