"""A store and rows of every table for the tests of the datasets room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewise.datasets.rows import (
    CandidateSummary,
    DecisionRow,
    DeviceRow,
    GraphRow,
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
    ]
