"""How much of a device's copy bandwidth kernels reach that memory bounds, by their class.

    python benchmarks/bandwidth.py [--dataset h200] [--out benchmarks/results/bandwidth.json]

Of the kernels of a dataset whose distinct bytes fill the last-level cache twice, so that all of
them come from memory: bytes that must move over measured time, against the bandwidth that the probe
found for a copy. What holds the rest back is told by class. Measures nothing, and needs no device.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from measured import measured
from rich.console import Console
from rich.table import Table

from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.interface import FloatArray
from fusewise.datasets.dataset import load, shipped_names
from fusewise.datasets.samples import KernelSamples
from fusewise.training.source import Source, source_of
from fusewise.training.split import take
from fusewise.training.strata import class_of

#: Times that the bytes of a kernel fill the cache.
_FILLS = 2.0
#: Part of the bandwidth from which on memory is all that counts.
_BOUND = 0.85
#: Classes with fewer kernels are not told.
_FEWEST = 10
_COLUMNS = ("device", "class", "kernels", "median", "lowest tenth", f"{_BOUND:.0%} and more")


def reached(name: str) -> list[dict[str, Any]]:
    """What kernels of each device of a dataset reach, by class."""
    source = source_of(load(name))
    found = []
    for profile, samples in measured(source):
        moved = np.exp2(samples.features[:, COLUMN["distinct"]]) - 1
        fills = moved >= _FILLS * profile.cache_bytes
        # GB/s are 10^3 bytes a microsecond.
        shares = moved / samples.median_us / (1e3 * profile.copy_gbs)
        by_class = _by_class(source, take(samples, fills), shares[fills])
        for kind, values in by_class.items():
            if len(values) >= _FEWEST:
                told = _told(values)
                found.append({"dataset": name, "device": profile.key, "class": kind, **told})
    return found


def _by_class(source: Source, samples: KernelSamples, shares: FloatArray) -> dict[str, list[float]]:
    """All of them first, then those of each class."""
    found: dict[str, list[float]] = defaultdict(list)
    problems = source.problems()
    for at, share in enumerate(shares):
        found["all"].append(float(share))
        key = str(samples.graph_key[at])
        if key in problems:
            found[class_of(problems[key], samples.nodes[at])].append(float(share))
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def _told(values: list[float]) -> dict[str, Any]:
    return {
        "kernels": len(values),
        "median": float(np.median(values)),
        "lowest_tenth": float(np.quantile(values, 0.1)),
        "bound": float(np.mean(np.array(values) >= _BOUND)),
    }


@click.command()
@click.option("--dataset", "names", multiple=True, help="Published dataset; all of them if none.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(names: tuple[str, ...], out: Path | None) -> None:
    """Print and keep what part of the copy bandwidth kernels reach."""
    found = [one for name in names or shipped_names() for one in reached(name)]
    table = Table(*_COLUMNS)
    for one in found:
        shares = (f"{one[name]:.0%}" for name in ("median", "lowest_tenth", "bound"))
        table.add_row(one["device"], one["class"], str(one["kernels"]), *shares)
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps({"schema": 1, "classes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
