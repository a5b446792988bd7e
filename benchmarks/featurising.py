"""How long a group takes to be featurised, and its time to be predicted, on one core.

    python benchmarks/featurising.py [--dataset x86] [--problems 200] [--searches 20] [--out FILE]

Problems of the test families of a dataset are drawn; of each, all kernels that were measured are
featurised in one batch after the problem was read in. Rows of all of them are then predicted, 256
at a time, by the model that is used on the device. Of some problems of 12 to 80 nodes the groups
are featurised that a beam search asks for, batch after batch as it does; it goes by the roofline,
and two sides are legal where the compiler could have fused a node of each. Needs no device.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from measured import measured
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.registry import load_model
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets.dataset import load, shipped_names
from fusewise.datasets.store import default_store_path
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Node, Problem
from fusewise.search.beam import beam_search
from fusewise.search.legality import Verdict
from fusewise.search.tree import Tree
from fusewise.training.source import source_of

_ROUNDS, _BATCH = 5, 256
#: Nodes of a problem that is searched, and of a group at most.
_SEARCHED, _MOST_NODES = range(12, 81), 16
_COLUMNS = (
    "device",
    "groups",
    "featurised",
    "of these reading in",
    "predicted",
    "asked by searches",
    "featurised",
    "of these reading in",
)
#: Two sides that have nothing to do with each other.
_APART = Verdict(False, "no_shared_data")


class _Rules:
    """A compiler that fuses whatever holds two nodes that the real one could have fused."""

    def __init__(self, problem: Problem) -> None:
        self._nodes = problem.node_by_name
        self._pairs = {frozenset((each.first, each.second)) for each in problem.possible_fusions}

    def verdict(self, first: Tree, second: Tree) -> Verdict:
        """See ``Legality``."""
        if len(first) + len(second) > _MOST_NODES:
            return Verdict(False, "size")
        if not all(_generated(self._nodes[name]) for name in (*first.nodes, *second.nodes)):
            return Verdict(False, "extern")
        pairs = (frozenset((a, b)) for a in first.nodes for b in second.nodes)
        return Verdict(True) if any(map(self._pairs.__contains__, pairs)) else _APART


class _Asked:
    """Costs by the roofline, which keep what they were asked for."""

    def __init__(self, problem: Problem, profile: DeviceProfile) -> None:
        self._nodes = problem.node_by_name
        self._profile = profile
        self._featurizer = Featurizer(problem, profile)
        #: Groups of generated kernels, batch by batch.
        self.batches: list[list[frozenset[str]]] = []

    def score(self, groups: Sequence[frozenset[str]]) -> FloatArray:
        """See ``GroupCost``; what is not generated costs nothing."""
        found = np.zeros(len(groups))
        own = [
            i for i, group in enumerate(groups) if all(_generated(self._nodes[n]) for n in group)
        ]
        if own:
            self.batches.append([groups[i] for i in own])
            found[own] = roofline_us(self._featurizer.batch(self.batches[-1]), self._profile)
        return found


def _generated(node: Node) -> bool:
    return node.fusible and node.kind != "template"


def _least(do: Callable[[], object]) -> float:
    """Seconds of the fastest of some rounds: what the machine does beside only adds."""
    found = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        do()
        found.append(time.perf_counter() - start)
    return min(found)


def searched(problems: Sequence[Problem], profile: DeviceProfile) -> dict[str, float]:
    """Microseconds of a group that beam searches over ``problems`` ask for."""
    groups = 0
    reading = whole = 0.0
    for problem in problems:
        asked = _Asked(problem, profile)
        beam_search(problem, unfused([n.name for n in problem.nodes]), _Rules(problem), asked)
        groups += sum(map(len, asked.batches))
        reading += _least(partial(Featurizer, problem, profile))
        whole += _least(partial(_featurised, problem, profile, asked.batches))
    us = 1e6 / max(groups, 1)
    return {
        "searched_groups": groups,
        "searched_us": us * whole,
        "searched_reading_us": us * reading,
    }


def _featurised(
    problem: Problem, profile: DeviceProfile, batches: Sequence[Sequence[frozenset[str]]]
) -> None:
    """From reading in on: a featurizer knows what it was asked before."""
    featurizer = Featurizer(problem, profile)
    for batch in batches:
        featurizer.batch(batch)


def timed(name: str, problems: int, searches: int) -> list[dict[str, Any]]:
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
        large = [key for key in drawn if len(kept[key].nodes) in _SEARCHED]
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
                **searched([kept[key] for key in large[:searches]], profile),
            }
        )
    return found


@click.command()
@click.option("--dataset", "names", multiple=True, help="Published dataset; all of them if none.")
@click.option("--problems", default=200, show_default=True, help="Problems of each device.")
@click.option("--searches", default=20, show_default=True, help="Searches of each device.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file for the figures.")
def main(names: tuple[str, ...], problems: int, searches: int, out: Path | None) -> None:
    """Print and keep what a group takes, in microseconds."""
    with threadpool_limits(1):
        found = [
            one for name in names or shipped_names() for one in timed(name, problems, searches)
        ]
    table = Table(*_COLUMNS)
    for one in found:
        figures = [(key, value) for key, value in one.items() if key != "device"]
        told = (
            f"{value:.0f} µs" if key.endswith("_us") else f"{value:,}" for key, value in figures
        )
        table.add_row(one["device"], *told)
    Console().print(table)
    if out is not None:
        out.write_text(json.dumps({"schema": 1, "devices": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
