from __future__ import annotations

import logging
import time
from datetime import timedelta
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pytest

from fusewise.datasets import database
from fusewise.datasets.rows import (
    DecisionRow,
    GraphRow,
    KernelRow,
    MeasurementRow,
    Row,
    ScheduleRow,
    utc_now,
)
from fusewise.datasets.splits import split_of
from fusewise.datasets.store import Store, default_store_path
from fusewise.datasets.tables import TABLE_OF, TABLES
from fusewise.schedule.errors import StoreError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule


def kernel(signature: str, *, version: int = 1, features: list[float] | None = None) -> KernelRow:
    return KernelRow(
        signature=signature,
        device_key="d",
        graph_key="g",
        nodes=("a",),
        features_version=version,
        features=[1.0] if features is None else features,
    )


def measured(signature: str, us: float | None, **fields: object) -> MeasurementRow:
    row = MeasurementRow(
        subject="kernel", subject_id=signature, graph_key="g", device_key="d", median_us=us
    )
    return msgspec.structs.replace(row, **fields)


def test_every_table_gives_back_the_row_it_was_given(store: Store, one_of_each: list[Row]) -> None:
    assert store.append(one_of_each) == len(TABLES) == len(one_of_each)
    assert store.ingest().rows == dict.fromkeys(TABLES, 1)
    for row in one_of_each:
        assert store.rows(TABLE_OF[type(row)].name) == [row]


def test_lookups(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    assert store.graph("g") is None, "nothing is seen before it is taken in"
    store.ingest()
    assert store.graph("g") == one_of_each[1]
    assert store.devices() == [one_of_each[0]]
    assert store.measured_signatures("d") == {"s": 1, "blocks h": 1}
    (tried,) = store.block_samples()
    assert (tried,) == store.block_samples(device_key="d")
    assert store.block_samples(device_key="other") == ()
    assert tried.source == "def triton_(): ..." and tried.us == (2.5, None)
    assert (tried.family, tried.split) == ("f", split_of("f"))
    assert store.measured_signatures("other") == {}
    assert store.collected("d") == {("generated", "layer_norm/0-1", 0)}


def test_the_newest_decision_holds_whatever_the_order(store: Store) -> None:
    now = utc_now()

    def decision(schedule_id: str, hours: int) -> DecisionRow:
        return DecisionRow(
            graph_key="g",
            device_key="d",
            mode="measure",
            model_id="",
            schedule_id=schedule_id,
            at=now + timedelta(hours=hours),
        )

    store.append([decision("a", 1), decision("newest", 2), decision("b", 0)])
    store.ingest()
    found = store.outcome("g", "d")
    assert found is not None and found.decision.schedule_id == "newest"
    assert store.outcome("g", "other") is None


def test_a_graph_met_again_keeps_what_is_known_of_it(store: Store) -> None:
    first = GraphRow(key="g", parts={}, kind="forward", family="f", nodes=3, problem=b"kept")
    store.append([first, GraphRow(key="g", parts={}, kind="forward", nodes=3)])
    store.ingest()
    store.append(GraphRow(key="g", parts={}, kind="forward", source="compile", nodes=3))
    store.ingest()
    found = store.graph("g")
    assert found == msgspec.structs.replace(first, source="compile")


def test_features_of_a_newer_version_replace_older_ones_and_not_the_reverse(store: Store) -> None:
    store.append([kernel("s", version=2, features=[2.0]), kernel("s", version=1)])
    store.append([measured("s", 1.0)])
    store.ingest()
    store.append(kernel("s", version=1))
    store.ingest()
    samples = store.kernel_samples()
    assert samples.features_version == 2
    assert samples.features.tolist() == [[2.0]]
    assert len(store.kernel_samples(features_version=1)) == 0


def test_what_was_disturbed_counts_where_there_is_nothing_better(store: Store) -> None:
    store.append([kernel("both"), kernel("only")])
    store.append(measured("both", us, clock={"disturbed": us > 1}) for us in (1.0, 9.0, 9.0))
    store.append(measured("only", 9.0, clock={"disturbed": True}))
    store.ingest()
    assert store.kernel_samples().median_us.tolist() == [1.0, 9.0]


def test_what_was_timed_at_one_moment_counts_where_there_is_nothing_better(store: Store) -> None:
    store.append([kernel("both"), kernel("once"), kernel("disturbed")])
    store.append(
        measured("both", us, clock=clock) for us, clock in ((9.0, {}), (5.0, {"passes": 3}))
    )
    store.append(measured("both", 7.0, clock={"passes": 2}))
    store.append(measured("once", us) for us in (2.0, 4.0))
    store.append(measured("disturbed", 9.0, clock={"passes": 3, "disturbed": True}))
    store.append(measured("disturbed", 1.0))
    store.ingest()
    assert store.kernel_samples().median_us.tolist() == [6.0, 1.0, 3.0]


def test_of_block_sizes_the_fastest_count(store: Store) -> None:
    store.append([kernel("tuned"), kernel("unknown")])
    for name, us in (("wide", 18.0), ("narrow", 10.0), ("wide", 17.0), ("narrow", 12.0)):
        store.append(measured("tuned", us, clock={"config": name}))
    store.append(measured("unknown", us) for us in (3.0, 5.0))
    store.ingest()
    assert store.kernel_samples().median_us.tolist() == [11.0, 4.0]


def test_kernel_samples(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    store.append([kernel("failed", features=[0.0, 0.0]), kernel("twice", features=[7.0, 8.0])])
    store.append(measured("failed", None, status="failed", reason="no memory"))
    store.append(measured("twice", us, spread=us / 100) for us in (1.0, 3.0, 2.0))
    store.append(measured("twice", 99.0, torch_version="1", at=utc_now() - timedelta(days=1)))
    store.ingest()
    samples = store.kernel_samples(device_key="d", device_kind="cpu")
    assert samples.signature.tolist() == ["s", "twice"]
    assert samples.features.shape == (2, 2) and samples.features.dtype == np.float64
    assert samples.median_us.tolist() == [5.0, 2.0], "median of repeats, newest torch only"
    assert np.isnan(samples.spread[0]) and samples.spread[1] == 0.02
    assert samples.compiler_us[0] == 3.0 and np.isnan(samples.compiler_us[1])
    assert samples.family.tolist() == ["f", "f"]
    assert len(store.kernel_samples(device_kind="cuda")) == 0
    assert store.measured_signatures("d").keys() == {"s", "twice", "failed", "blocks h"}


def test_features_of_unequal_length_are_refused(store: Store) -> None:
    store.append(
        [kernel("a"), kernel("b", features=[1.0, 2.0]), measured("a", 1), measured("b", 1)]
    )
    store.ingest()
    with pytest.raises(StoreError, match="1 to 2 features"):
        store.kernel_samples()


def test_schedule_samples(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    other = ScheduleRow(id="x", graph_key="lost", schedule=Schedule(), origin="default", groups=1)
    store.append(other)
    for row in (one_of_each[3], other):
        assert isinstance(row, ScheduleRow)
        for us in (4.0, 6.0):
            store.append(
                MeasurementRow(
                    subject="schedule",
                    subject_id=row.id,
                    graph_key=row.graph_key,
                    device_key="d",
                    median_us=us,
                    error=float("inf"),
                )
            )
    store.ingest()
    samples = store.schedule_samples(device_key="d")
    assert [(s.graph_key, s.median_us, s.error) for s in samples] == [
        ("g", 5.0, float("inf")),
        ("lost", 5.0, float("inf")),
    ]
    kept, lost = samples
    assert isinstance(samples.problem(kept), Problem)
    assert not samples.has_problem(lost)
    with pytest.raises(StoreError, match="its problem was not kept"):
        samples.problem(lost)
    assert len(store.schedule_samples(device_key="other")) == 0


def test_a_damaged_problem_is_named(store: Store, one_of_each: list[Row]) -> None:
    graph = one_of_each[1]
    assert isinstance(graph, GraphRow)
    damaged = msgspec.structs.replace(graph, problem=b"nonsense")
    schedule_measured = MeasurementRow(
        subject="schedule",
        subject_id=one_of_each[3].id,  # type: ignore[union-attr]
        graph_key="g",
        device_key="d",
        median_us=1.0,
    )
    store.append([*one_of_each, damaged, schedule_measured])
    store.ingest()
    samples = store.schedule_samples()
    with pytest.raises(StoreError, match="cannot be read"):
        samples.problem(*samples)


def test_merging_twice_is_merging_once(
    store: Store, one_of_each: list[Row], tmp_path: Path
) -> None:
    with Store.open(tmp_path / "other.duckdb") as other:
        other.append(one_of_each)
    assert store.merge(tmp_path / "other.duckdb") == dict.fromkeys(TABLES, 1)
    assert store.merge(tmp_path / "other.duckdb") == dict.fromkeys(TABLES, 1)
    assert store.info().counts == dict.fromkeys(TABLES, 1)
    assert store.graph("g") == one_of_each[1]
    with pytest.raises(StoreError, match="into itself"):
        store.merge(store.path)
    with pytest.raises(StoreError, match="there is no store"):
        store.merge(tmp_path / "nowhere.duckdb")


def test_export_reads_back(store: Store, one_of_each: list[Row], tmp_path: Path) -> None:
    store.append(one_of_each)
    store.ingest()
    files = store.export(tmp_path / "it's out")
    assert [file.stem for file in files] == list(TABLES)
    for file in files:
        found = duckdb.read_parquet(str(file))
        assert found.columns == list(TABLES[file.stem].columns)
        assert len(found.fetchall()) == 1
    features = duckdb.read_parquet(str(tmp_path / "it's out" / "kernels.parquet"))
    assert features.select("features").fetchall() == [([1.0, 2.5],)]


def test_info(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    waiting = store.info()
    assert waiting.spool_files == 1 and waiting.spool_bytes > 0
    assert set(waiting.counts.values()) == {0}
    store.ingest()
    info = store.info()
    assert info.counts == dict.fromkeys(TABLES, 1)
    assert info.devices == (one_of_each[0],)
    assert info.bytes > 0 and info.schema_version == 3 and info.path == str(store.path)


def test_read_only_changes_nothing(path: Path, one_of_each: list[Row]) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store.open(path, read_only=True)
    assert not path.parent.exists()
    with Store.open(path) as writer:
        writer.append(one_of_each)
    before = path.read_bytes()
    reader = Store.open(path, read_only=True)
    assert reader.info().counts["graphs"] == 0
    for change in (
        lambda: reader.append(one_of_each),
        reader.ingest,
        lambda: reader.merge("x.duckdb"),
    ):
        with pytest.raises(StoreError, match="read-only"):
            change()
    assert path.read_bytes() == before


def test_unknown_table(store: Store) -> None:
    with pytest.raises(StoreError, match="there is no table 'planz'"):
        store.rows("planz")


@pytest.mark.parametrize("content", [b"this is no database" * 1000, b"\0" * 40960, b"x"])
def test_a_corrupt_file_is_named_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(StoreError, match="move the file aside") as caught:
            Store.open(path, read_only=read_only)
        assert caught.value.subject == str(path)
    assert path.read_bytes() == content


def test_a_damaged_header_is_named_and_left_alone(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    store.ingest()
    content = bytearray(store.path.read_bytes())
    content[4096:12288] = bytes(8192)
    store.path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Store.open(store.path)
    assert str(store.path) in str(caught.value)
    assert store.path.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE holidays AS SELECT 1 AS day")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="holidays"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_and_left_alone(store: Store, one_of_each: list[Row]) -> None:
    store.append(one_of_each)
    store.ingest()
    with duckdb.connect(str(store.path)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (99, 'future', now()::TIMESTAMP)")
    before = store.path.read_bytes()
    with pytest.raises(StoreError, match=r"schema version 99.*upgrade fusewise"):
        Store.open(store.path)
    assert store.path.read_bytes() == before


def test_migrations_are_numbered_without_gaps_and_recorded(store: Store) -> None:
    known = database.migrations()
    assert [number for number, _, _ in known] == list(range(1, len(known) + 1))
    with duckdb.connect(str(store.path), read_only=True) as connection:
        recorded = connection.execute("SELECT version, name FROM schema_migrations").fetchall()
    assert recorded == [(number, name) for number, name, _ in known]


def test_a_later_migration_is_applied_whole_or_not_at_all(
    store: Store, one_of_each: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(one_of_each)
    store.ingest()
    known = database.migrations()
    number = len(known) + 1
    broken = "CREATE TABLE extra (x INTEGER); SELECT nonsense;"
    monkeypatch.setattr(database, "migrations", lambda: [*known, (number, "extra", broken)])
    with pytest.raises(StoreError):
        Store.open(store.path)
    with pytest.raises(StoreError, match="older fusewise"):
        Store.open(store.path, read_only=True)
    works = "CREATE TABLE extra (x INTEGER);"
    monkeypatch.setattr(database, "migrations", lambda: [*known, (number, "extra", works)])
    assert Store.open(store.path).info().schema_version == number
    assert store.graph("g") == one_of_each[1]


def test_a_half_made_store_is_made_anew(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(path.name + ".new").write_bytes(b"left by a killed process")
    assert Store.open(path).info().schema_version == len(database.migrations())


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"folder cannot be made: .*--store"):
        Store.open(tmp_path / "file" / "store.duckdb")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a /proc")
def test_where_no_file_can_be_made_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """/proc says of each file that is to be made that it is not there."""
    given = Path("/proc/x.duckdb")
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"made in /proc; .* given .*--store") as told:
        Store.open(given)
    assert told.value.subject == str(given)
    monkeypatch.setenv("FUSEWISE_HOME", "/proc")
    with pytest.raises(StoreError, match=r"no file can be made in /proc; .* in FUSEWISE_HOME: "):
        Store.open(default_store_path())
    monkeypatch.delenv("FUSEWISE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/proc")
    with pytest.raises(StoreError, match=r"folder cannot be made: .* FUSEWISE_HOME is not set: "):
        Store.open(default_store_path())
    assert time.monotonic() - began < database.LOCK_TIMEOUT / 3
    monkeypatch.setenv("FUSEWISE_HOME", "~nobody-of-that-name/home")
    with pytest.raises(StoreError, match="--store"):
        Store.open(given)
    assert Store.open(tmp_path / "store.duckdb").info().spool_files == 0


def test_default_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSEWISE_HOME", str(tmp_path))
    assert default_store_path() == tmp_path / "store.duckdb"
    monkeypatch.delenv("FUSEWISE_HOME")
    assert default_store_path().name == "store.duckdb"
    assert "fusewise" in str(default_store_path())


def test_unreadable_lines_are_set_aside_and_counted(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.append(kernel("a"))
    store.close()
    folder = store.path.with_name(store.path.name + ".spool")
    (file,) = folder.iterdir()
    bad = [
        b"not json",
        b'{"table":"planz","version":1,"row":{}}',
        b'{"table":"devices","version":1,"row":{"key":1}}',
        b"\xff\xfe",
    ]
    file.write_bytes(b"\n".join([*bad, file.read_bytes()]))
    with caplog.at_level(logging.WARNING):
        report = store.ingest()
    assert report.rejected == len(bad) and report.rows == {"kernels": 1}
    assert "4 spool lines" in caplog.text
    assert (folder / "rejected" / file.name).read_bytes() == b"\n".join(bad) + b"\n"
    assert not file.exists()


def test_lines_of_a_newer_fusewise_wait_for_it(store: Store) -> None:
    store.append(kernel("a"))
    store.close()
    (file,) = store.path.with_name(store.path.name + ".spool").iterdir()
    newer = b'{"table":"planz","version":2,"row":{}}\n'
    file.write_bytes(file.read_bytes() + newer)
    assert store.ingest().rows == {"kernels": 1}
    assert store.ingest().rows == {}
    assert file.read_bytes().endswith(newer)
