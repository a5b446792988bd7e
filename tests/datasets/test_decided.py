from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from fusewise.datasets.decided import Decided
from fusewise.datasets.rows import (
    CandidateSummary,
    DecisionRow,
    GraphRow,
    Row,
    ScheduleRow,
    utc_now,
)
from fusewise.datasets.store import Store
from fusewise.schedule.schedule import Candidate, Choice, Schedule

NOW = utc_now()
ASKED = ("g", "d", "measure")


def decided(value: int, *, hours: int = 0, mode: str = "measure") -> list[Row]:
    """All that a compile leaves that chose a schedule of that choice."""
    schedule = Schedule(lowering=(Choice("inline_reads", value),))
    candidate = Candidate(schedule=schedule, origin="choices", groups=2, measured_us=1.5)
    return [
        GraphRow(key="g", parts={}, kind="inference", nodes=7),
        ScheduleRow(id=schedule.id, graph_key="g", schedule=schedule, origin="choices", groups=2),
        DecisionRow(
            graph_key="g",
            device_key="d",
            mode=mode,
            model_id="m",
            schedule_id=schedule.id,
            candidates=(CandidateSummary.of(candidate),),
            at=NOW + timedelta(hours=hours),
        ),
    ]


@pytest.fixture
def files(store: Store) -> Decided:
    return Decided(store.path)


def folder(store: Store) -> Path:
    return store.path.with_name(store.path.name + ".decided")


def test_what_is_found_is_what_the_store_would_say(store: Store, files: Decided) -> None:
    store.append(decided(4))
    found = files.find(*ASKED)
    store.ingest()
    assert found == store.outcome("g", "d", ["measure"])
    assert found is not None and found.nodes == 7


def test_only_what_was_asked_for_is_found(store: Store, files: Decided) -> None:
    store.append(decided(4))
    assert files.find("g", "d", "predict") is None
    assert files.find("g", "other", "measure") is None
    assert files.find("other", "d", "measure") is None


@pytest.mark.parametrize("hours", [(0, 1), (1, 0)])
def test_the_newest_is_kept_whatever_the_order(
    store: Store, files: Decided, hours: tuple[int, int]
) -> None:
    for at in hours:
        store.append(decided(at, hours=at))
    found = files.find(*ASKED)
    store.ingest()
    wanted = store.outcome("g", "d", ["measure"])
    newest = decided(1)[-1]
    assert found is not None and wanted is not None and isinstance(newest, DecisionRow)
    assert found.decision == wanted.decision
    assert found.decision.schedule_id == newest.schedule_id


def test_a_newer_decision_without_its_schedules_has_to_be_asked_of_the_store(
    store: Store, files: Decided
) -> None:
    store.append(decided(4))
    store.append(decided(5, hours=1)[-1])
    assert files.find(*ASKED) is None


def test_files_that_are_none_are_not_read(store: Store, files: Decided) -> None:
    store.append(decided(4))
    (file,) = folder(store).iterdir()
    whole = file.read_bytes()
    for broken in (b"", whole[:-20], b"[]", whole.replace(b'"version":1', b'"version":9')):
        file.write_bytes(broken)
        assert files.find(*ASKED) is None
    file.write_bytes(whole)
    assert files.find(*ASKED) is not None


def test_without_the_store_decisions_are_forgotten(store: Store, files: Decided) -> None:
    store.append(decided(4))
    store.path.unlink()
    assert files.find(*ASKED) is None


def test_what_comes_from_another_store_may_be_newer(
    store: Store, files: Decided, tmp_path: Path
) -> None:
    store.append(decided(4))
    with Store.open(tmp_path / "other.duckdb") as other:
        other.append(decided(5, hours=1))
    store.merge(tmp_path / "other.duckdb")
    assert files.find(*ASKED) is None


def test_a_folder_that_cannot_be_written_is_no_error(store: Store, files: Decided) -> None:
    folder(store).write_text("")
    store.append(decided(4))
    assert files.find(*ASKED) is None
