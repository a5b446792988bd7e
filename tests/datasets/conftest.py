"""A store and rows of every table for the tests of the datasets room."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fusewise.datasets.corpus import Corpus, GraphSample, scalar_loss
from fusewise.datasets.rows import (
    CandidateSummary,
    DecisionRow,
    DeviceRow,
    GraphRow,
    ItemRow,
    KernelRow,
    MeasurementRow,
    ModelRow,
    Row,
    ScheduleRow,
    encode_problem,
)
from fusewise.datasets.store import Store
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Candidate, Choice, Schedule

PROBLEM = Problem("g", "forward", (), (), (), ())
SCHEDULE = Schedule(plan=unfused(["a", "b"]), codegen=(Choice("persistent", True),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "store.duckdb"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path) as opened:
        yield opened


@pytest.fixture
def one_of_each() -> list[Row]:
    candidate = Candidate(schedule=SCHEDULE, origin="beam", groups=2, measured_us=4.0)
    return [
        DeviceRow(key="d", kind="cpu", name="a CPU", threads=4, profile={"bandwidth": 2.5}),
        GraphRow(
            key="g",
            parts={"graph": "1", "torch": "2"},
            kind="forward",
            family="f",
            problem=encode_problem(PROBLEM),
        ),
        KernelRow(
            signature="s",
            device_key="d",
            graph_key="g",
            nodes=("a", "b"),
            features_version=1,
            features=[1.0, 2.5],
            compiler_us=3.0,
        ),
        ScheduleRow(id=SCHEDULE.id, graph_key="g", schedule=SCHEDULE, origin="beam", groups=2),
        MeasurementRow(
            subject="kernel", subject_id="s", graph_key="g", device_key="d", median_us=5.0
        ),
        DecisionRow(
            graph_key="g",
            device_key="d",
            mode="measure",
            model_id="m",
            schedule_id=SCHEDULE.id,
            candidates=(CandidateSummary.of(candidate),),
        ),
        ModelRow(id="m", path="m.txt", device_key="d", features_version=1, manifest={"rows": 3}),
        ItemRow(device_key="d", corpus="generated", name="layer_norm/0-1", graphs=2, kernels=7),
    ]


@pytest.fixture
def tensors() -> Callable[[object], list[torch.Tensor]]:
    """All tensors in nested tuples, lists and dicts."""
    return _tensors


@pytest.fixture
def drawn() -> Callable[[Corpus, int, int], list[GraphSample]]:
    """What the first so many names of a corpus build."""
    return _drawn


@pytest.fixture
def run() -> Callable[[GraphSample], list[torch.Tensor]]:
    """Run a sample eagerly."""
    return _run


def _tensors(value: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    return []


def _drawn(corpus: Corpus, seed: int, count: int) -> list[GraphSample]:
    """What the first ``count`` names build."""
    names = itertools.islice(corpus.names(seed), count)
    return [sample for name in names for sample in corpus.build(name)]


def _run(sample: GraphSample) -> list[torch.Tensor]:
    """Outputs, after a backward where the sample is trained; all must be finite."""
    with torch.set_grad_enabled(sample.training):
        outputs = sample.module(*sample.args, **sample.kwargs)
    if sample.training:
        scalar_loss(outputs).backward()
        inputs = [*_tensors([sample.args, sample.kwargs])]
        if isinstance(sample.module, torch.nn.Module):
            inputs += sample.module.parameters()
        assert any(leaf.grad is not None for leaf in inputs if leaf.requires_grad)
    found = _tensors(outputs)
    assert found
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found)
    return found
