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
#: Contestants that have a column after fusewise where they were timed.
_OTHERS = ("predict", "eager")
#: No settings of the compiler's.
_NO_SETTINGS = ("fusewise", *_OTHERS, "again", _BASELINE)
#: Below this a workload is named in the summary.
_SLOWER = 0.99
_HEAD = (
    "Speed-up of a whole step over stock Inductor, geometric means; above 1 is faster. "
    "{machines}. Every workload: [benchmarks/results.md](benchmarks/results.md); how it was "
    "measured: [benchmarks/README.md](benchmarks/README.md)."
)

_SETTINGS = (
    "On the {device} fusewise is {over} times as fast as the best of Inductor's settings for each "
    "workload, of the {count} that were timed under such; stock Inductor is one of them."
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


#: A workload with the speed-up of fusewise, the best setting, and the speed-up of that.
_Rival = tuple[str, float, str, float]


def summary(runs: Sequence[dict[str, Any]], rivals: Sequence[_Rival] = ()) -> str:
    """The table for the README: one line for each device and kind of program.

    ``rivals``: what :func:`best_settings` gives for the first run.
    """
    others = _timed(runs)
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
    if rivals:
        device, over = runs[0]["machine"]["device"], _over_settings(rivals)
        told += ["", _SETTINGS.format(device=device, over=over, count=len(rivals))]
    return "\n".join([_HEAD.format(machines=machines), "", *lines, *told])


def _timed(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The others that were timed in any of the runs."""
    return [name for name in _OTHERS if any(_medians(run["workloads"], name) for run in runs)]


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
    others = _timed([run])
    titles = ("workload", "Inductor, µs", "fusewise, µs", "speed-up", "interval")
    titles += (*others, "kernels", "compile, s", "Inductor's, s")
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
                *(_number(speedup[n]["median"] if n in speedup else None) for n in others),
                _groups(workload["graphs"].get("fusewise", ())),
                f"{told['fusewise']['first_step_s']:.1f}",
                f"{told[_BASELINE]['first_step_s']:.1f}",
            )
        )
    if failed:
        lines += ["", "Not measured:", "", *failed]
    return "\n".join(lines)


def best_settings(run: dict[str, Any], settings: dict[str, Any]) -> list[_Rival]:
    """Workloads of a run that were timed under settings of Inductor's, in that run or another.

    Returns:
        For each its name, the speed-up of fusewise, the best setting, and the speed-up of that:
        1 of ``stock`` where none was faster.
    """
    own = {w["name"]: w["speedup"] for w in run["workloads"] if "fusewise" in w.get("speedup", {})}
    found = []
    for workload in settings["workloads"]:
        speedup = workload.get("speedup", {})
        rivals = {n: s["median"] for n, s in speedup.items() if n not in _NO_SETTINGS}
        name = workload["name"]
        if rivals and name in own:
            setting, best = max([("stock", 1.0), *rivals.items()], key=lambda rival: rival[1])
            found.append((name, own[name]["fusewise"]["median"], setting, best))
    return found


def _over_settings(rivals: Sequence[_Rival]) -> str:
    return _number(geomean([own / best for _, own, _, best in rivals]))


def _against_settings(found: Sequence[_Rival]) -> str:
    titles = ("workload", "fusewise", "best setting", "its speed-up", "fusewise over it")
    lines = ["## Against the best setting of each workload", "", _line(*titles), _rule(len(titles))]
    for name, own, setting, best in found:
        lines.append(_line(name, _number(own), setting, _number(best), _number(own / best)))
    told = f"Geometric mean of the last column: {_over_settings(found)}."
    return "\n".join([*lines, "", told])


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
    "--settings",
    type=click.Path(path_type=Path, exists=True),
    help="Figures of settings of Inductor's, which those of the first file are held against.",
)
@click.option("--readme", type=click.Path(path_type=Path, exists=True), default="README.md")
@click.option("--results", type=click.Path(path_type=Path), default="benchmarks/results.md")
def main(*, files: tuple[Path, ...], settings: Path | None, readme: Path, results: Path) -> None:
    """Write the figures of FILES, JSON of compare.py, into the README and the list of results."""
    # All are read before anything is written.
    runs = [json.loads(file.read_text()) for file in files]
    rivals = [] if settings is None else best_settings(runs[0], json.loads(settings.read_text()))
    try:
        changed = between_marks(readme.read_text(), summary(runs, rivals))
    except ValueError as error:
        raise click.ClickException(f"{readme}: {error}") from error
    readme.write_text(changed)
    title = "# Results\n\nWritten by `benchmarks/table.py`; columns as in [README.md](README.md)."
    parts = [title, *map(every_workload, runs)]
    if rivals:
        parts.append(_against_settings(rivals))
    results.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
