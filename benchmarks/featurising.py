"""How long a group takes to be featurised, and its time to be predicted, on one core.

    python benchmarks/featurising.py [--dataset x86] [--problems 200] [--out FILE.json]

Problems of the test families of a dataset are drawn; of each, all kernels that were measured are
featurised as a search does it, in one batch after the problem was read in. Rows of all of them are
then predicted, 256 at a time, by the model that is used on the device. Needs no device.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from measured import measured
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.registry import load_model
from fusewise.datasets.dataset import load, shipped_names
from fusewise.datasets.store import default_store_path
from fusewise.training.source import source_of

_ROUNDS, _BATCH = 5, 256
_COLUMNS = ("device", "groups", "featurised", "of these reading in", "predicted")


def _least(do: Callable[[], object]) -> float:
    """Seconds of the fastest of some rounds: what the machine does beside only adds."""
    found = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        do()
        found.append(time.perf_counter() - start)
    return min(found)


def timed(name: str, problems: int) -> list[dict[str, Any]]:
    """Microseconds of a group on each device of a dataset."""
    source, found = source_of(load(name)), []
    kept = source.problems()
    for profile, samples in measured(source):
        groups: dict[str, list[Any]] = defaultdict(list)
        for key, nodes, split in zip(samples.graph_key, samples.nodes, samples.split, strict=True):
            if split == "test" and key in kept:
                groups[str(key)].append(nodes)
        keys = sorted(groups)
        drawn = np.random.default_rng(0).permutation(keys)[:problems].tolist()
        reading = featurising = 0.0
        rows = []
        for key in drawn:
            problem = kept[key]
            reading += _least(partial(Featurizer, problem, profile))
            featurizer = Featurizer(problem, profile)
            featurising += _least(partial(featurizer.batch, groups[key]))
            rows.append(featurizer.batch(groups[key]))
        if not rows:
            continue
        matrix = np.concatenate(rows)
        model = load_model(None, profile, default_store_path().parent)
        batches = np.array_split(matrix, max(len(matrix) // _BATCH, 1))
        predicting = sum(_least(partial(model.predict, batch)) for batch in batches)
        us = 1e6 / len(matrix)
        found.append(
            {
                "device": profile.key,
                "groups": len(matrix),
                "featurised_us": us * (reading + featurising),
                "reading_us": us * reading,
                "predicted_us": us * predicting,
            }
        )
    return found


@click.command()
@click.option("--dataset", "names", multiple=True, help="Published dataset; all of them if none.")
@click.option("--problems", default=200, show_default=True, help="Problems of each device.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(names: tuple[str, ...], problems: int, out: Path | None) -> None:
    """Print and keep what a group takes, in microseconds."""
    with threadpool_limits(1):
        found = [one for name in names or shipped_names() for one in timed(name, problems)]
    table = Table(*_COLUMNS)
    for one in found:
        told = (f"{one[key]:.0f} µs" for key in ("featurised_us", "reading_us", "predicted_us"))
        table.add_row(one["device"], f"{one['groups']:,}", *told)
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps({"schema": 1, "devices": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
