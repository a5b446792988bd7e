"""What comes of choosing schedules by prediction alone, on the test families of the datasets.

    python benchmarks/predicting.py [--dataset h200] [--out benchmarks/results/predicting.json]

For each device of a dataset: of the graphs whose families no shipped model was trained on, the
schedules that were measured are predicted, one is chosen as mode ``predict`` would, and held to
what was measured. Measures nothing, and needs no device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
from measured import measured
from rich.console import Console
from rich.table import Table

from fusewise.costmodel.gains import gains_of
from fusewise.costmodel.registry import load_model
from fusewise.datasets.dataset import load, shipped_names
from fusewise.datasets.store import default_store_path
from fusewise.training.foreseen import foreseen
from fusewise.training.source import source_of
from fusewise.training.split import take

_COLUMNS = ("device", "graphs", "taken", "slower", "worst", "gain", "best measured", "share of it")


def judged(name: str) -> list[dict[str, Any]]:
    """What comes of it on each device of a dataset, by the model that is used there."""
    source = source_of(load(name))
    found = []
    for profile, samples in measured(source):
        held = take(samples, samples.split == "test")
        model = load_model(None, profile, default_store_path().parent)
        told = foreseen(source, held, profile, model)
        if told is None:
            continue
        found.append(
            {
                "dataset": name,
                "device": profile.key,
                "model": model.name,
                "gains": msgspec.to_builtins(gains_of(model, profile.kind)),
                "share": told.share,
                **msgspec.to_builtins(told),
            }
        )
    return found


@click.command()
@click.option("--dataset", "names", multiple=True, help="Published dataset; all of them if none.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(names: tuple[str, ...], out: Path | None) -> None:
    """Print and keep what choosing by prediction alone comes to."""
    found = [one for name in names or shipped_names() for one in judged(name)]
    table = Table(*_COLUMNS)
    for one in found:
        share = "-" if one["share"] is None else f"{one['share']:.0%}"
        counts = (str(one[name]) for name in ("graphs", "taken", "slower"))
        ratios = (f"{one[name]:.4f}" for name in ("worst", "gain", "best_gain"))
        table.add_row(one["device"], *counts, *ratios, share)
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps({"schema": 1, "devices": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
