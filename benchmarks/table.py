"""Figures of ``compare`` as text: a summary between two marks of the README, and all of them.

Takes what was measured as it is; nothing is rounded up, and a workload that failed is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

_BEGIN = "<!-- benchmarks: written by benchmarks/table.py, do not edit -->"
_END = "<!-- benchmarks: end -->"
_BASELINE = "inductor"
#: Columns of the summary after fusewise: what a user might do instead, and the noise.
_OTHERS = ("predict", "combo+descent", "eager")
#: Below this a workload is named in the summary.
_SLOWER = 0.99
_HEAD = (
    "Speed-up of a whole step over stock Inductor, geometric means; above 1 is faster. "
    "{machines}. Every workload: [benchmarks/results.md](benchmarks/results.md); how it was "
    "measured: [benchmarks/README.md](benchmarks/README.md)."
)


def geomean(values: Sequence[float]) -> float | None:
    """Geometric mean; None of nothing."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _medians(workloads: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [w["speedup"][name]["median"] for w in workloads if name in w.get("speedup", {})]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(columns: int) -> str:
    return _line("---", *["---:"] * (columns - 1))


def machine(run: dict[str, Any]) -> str:
    """Device and versions of a run in a few words."""
    found = run["machine"]
    threads = f", {found['threads']} threads" if found["kind"] == "cpu" else ""
    return f"{found['device']}{threads}, torch {found['torch']}"


def summary(runs: Sequence[dict[str, Any]]) -> str:
    """The table for the README: one line for each device and kind of program."""
    others = [name for name in _OTHERS if any(_medians(run["workloads"], name) for run in runs)]
    titles = ("", "workloads", "fusewise", "least", "greatest", *others, "noise")
    lines = [_line(*titles), _rule(len(titles))]
    for run in runs:
        for kind in ("inference", "training"):
            of_kind = [w for w in run["workloads"] if w["kind"] == kind]
            found = _medians(of_kind, "fusewise")
            if not found:
                continue
            noise = [abs(math.log(value)) for value in _medians(of_kind, "again")]
            lines.append(
                _line(
                    f"{run['machine']['device']}, {kind}",
                    str(len(found)),
                    f"**{_number(geomean(found))}**",
                    _number(min(found)),
                    _number(max(found)),
                    *(_number(geomean(_medians(of_kind, name))) for name in others),
                    f"±{sorted(noise)[len(noise) // 2]:.1%}" if noise else "-",
                )
            )
    machines = "; ".join(dict.fromkeys(map(machine, runs)))
    slower = [text for run in runs for text in map(_slower, run["workloads"]) if text]
    told = ["", f"Below {_SLOWER}: {'; '.join(slower)}."] if slower else []
    return "\n".join([_HEAD.format(machines=machines), "", *lines, *told])


def _slower(workload: dict[str, Any]) -> str:
    """A workload that came out clearly slower, and whether it runs other code; "" for others."""
    speedup = workload.get("speedup", {}).get("fusewise", {}).get("median", 1.0)
    if speedup >= _SLOWER:
        return ""
    graphs = workload["graphs"].get("fusewise", ())
    own = all(graph["chosen"] and graph["chosen"]["origin"] == "default" for graph in graphs)
    code = "Inductor's own schedule" if own else "another schedule"
    again = workload["speedup"]["again"]["median"]
    return f"{workload['name']} {speedup:.3f} by {code} (Inductor compiled again: {again:.3f})"


def every_workload(run: dict[str, Any]) -> str:
    """All workloads of a run, with what was chosen and what it took to compile."""
    titles = ("workload", "Inductor, µs", "fusewise, µs", "speed-up", "interval")
    titles += (*_OTHERS, "kernels", "compile, s", "Inductor's, s")
    lines = [f"## {machine(run)}, {run['at']}", "", _line(*titles), _rule(len(titles))]
    failed = []
    for workload in run["workloads"]:
        if workload["status"] != "ok" or "fusewise" not in workload["speedup"]:
            failed.append(f"- {workload['name']}: {_reason(workload)}")
            continue
        told, speedup = workload["contestants"], workload["speedup"]
        own, low, high = (speedup["fusewise"][key] for key in ("median", "low", "high"))
        lines.append(
            _line(
                workload["name"],
                f"{told[_BASELINE]['median_us']:,.1f}",
                f"{told['fusewise']['median_us']:,.1f}",
                _number(own),
                f"{_number(low)} to {_number(high)}",
                *(_number(speedup[n]["median"] if n in speedup else None) for n in _OTHERS),
                _groups(workload["graphs"].get("fusewise", ())),
                f"{told['fusewise']['first_step_s']:.1f}",
                f"{told[_BASELINE]['first_step_s']:.1f}",
            )
        )
    if failed:
        lines += ["", "Not measured:", "", *failed]
    return "\n".join(lines)


def _reason(workload: dict[str, Any]) -> str:
    told = workload.get("contestants", {}).get("fusewise", {})
    return workload["reason"] or told.get("failure") or "not timed"


def _groups(graphs: Sequence[dict[str, Any]]) -> str:
    """Groups of Inductor's schedule and of the chosen one, over all graphs of the program."""
    both = [(g["default"], g["chosen"]) for g in graphs if g["default"] and g["chosen"]]
    if not both:
        return "-"
    default, chosen = (sum(one["groups"] for one in side) for side in zip(*both, strict=True))
    return f"{default} → {chosen}"


def between_marks(text: str, section: str, begin: str = _BEGIN, end: str = _END) -> str:
    """``text`` with ``section`` between two marks, those of the README unless given.

    Raises:
        ValueError: a mark is missing.
    """
    if begin not in text or end not in text.partition(begin)[2]:
        raise ValueError(f"it lacks the marks {begin} and {end}")
    before, _, rest = text.partition(begin)
    body = f"\n{section}\n" if section else "\n"
    return f"{before}{begin}{body}{end}{rest.partition(end)[2]}"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--earlier",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="Figures of earlier versions, for the list of results alone; can be repeated.",
)
@click.option("--readme", type=click.Path(path_type=Path, exists=True), default="README.md")
@click.option("--results", type=click.Path(path_type=Path), default="benchmarks/results.md")
def main(
    *, files: tuple[Path, ...], earlier: tuple[Path, ...], readme: Path, results: Path
) -> None:
    """Write the figures of FILES, JSON of compare.py, into the README and the list of results."""
    # All are read before anything is written.
    runs, before = ([json.loads(f.read_text()) for f in some] for some in (files, earlier))
    try:
        changed = between_marks(readme.read_text(), summary(runs))
    except ValueError as error:
        raise click.ClickException(f"{readme}: {error}") from error
    readme.write_text(changed)
    title = "# Results\n\nWritten by `benchmarks/table.py`; columns as in [README.md](README.md)."
    results.write_text("\n\n".join([title, *map(every_workload, [*runs, *before])]) + "\n")


if __name__ == "__main__":
    main()
