"""Joining the stores of machines that share nothing."""

from __future__ import annotations

from pathlib import Path

import duckdb
import msgspec
import pytest

from fusewise.datasets.rows import DeviceRow, GraphRow, KernelRow, MeasurementRow, Row
from fusewise.datasets.store import Store
from fusewise.schedule.errors import StoreError


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A store on its way from another machine."""
    return tmp_path / "elsewhere" / "store.duckdb"


def fill(path: Path, rows: list[Row]) -> Store:
    with Store.open(path) as store:
        store.append(rows)
        store.ingest()
    return store


def everything(store: Store) -> dict[str, list[Row]]:
    return {table: store.rows(table) for table in store.info().counts}


def measured_again(rows: list[Row], us: float, **changes: object) -> list[Row]:
    """The rows with their measurement taken anew."""
    again = [row for row in rows if not isinstance(row, MeasurementRow)]
    fields = {"subject": "kernel", "subject_id": "s", "graph_key": "g", "device_key": "d"}
    return [*again, MeasurementRow(median_us=us, **{**fields, **changes})]  # type: ignore[arg-type]


def test_a_kernel_keeps_the_measurements_of_both(
    store: Store, one_of_each: list[Row], other: Path
) -> None:
    store.append(one_of_each)
    store.ingest()
    fill(other, measured_again(one_of_each, 9.0))
    store.merge(other)
    assert sorted(row.median_us for row in store.rows("measurements")) == [5.0, 9.0]  # type: ignore[union-attr]
    samples = store.kernel_samples()
    assert (len(samples), samples.median_us[0]) == (1, 7.0)


@pytest.mark.parametrize("name", ["other", "OTHER.duckdb", "stage.duckdb", "temp.duckdb"])
def test_stores_may_have_any_name(
    tmp_path: Path, one_of_each: list[Row], other: Path, name: str
) -> None:
    fill(other, one_of_each)
    with Store.open(tmp_path / name) as store:
        assert store.merge(other)["kernels"] == 1
        fill(tmp_path / "second" / name, measured_again(one_of_each, 9.0))
        store.merge(tmp_path / "second" / name)
        assert len(store.rows("measurements")) == 2


def test_devices_stay_apart(store: Store, one_of_each: list[Row], other: Path) -> None:
    store.append(one_of_each)
    store.ingest()
    moved = [
        msgspec.structs.replace(row, key="d2")
        if isinstance(row, DeviceRow)
        else msgspec.structs.replace(row, device_key="d2")
        if isinstance(row, KernelRow)
        else row
        for row in measured_again(one_of_each, 9.0, device_key="d2")
    ]
    fill(other, moved)
    store.merge(other)
    samples = store.kernel_samples()
    times = dict(zip(samples.device_key, samples.median_us, strict=True))
    assert times == {"d": 5.0, "d2": 9.0}
    assert {device.key for device in store.devices()} == {"d", "d2"}


def test_a_graph_keeps_its_problem_and_its_family(
    store: Store, one_of_each: list[Row], other: Path
) -> None:
    store.append(one_of_each)
    store.ingest()
    (graph,) = (row for row in one_of_each if isinstance(row, GraphRow))
    # A machine that met it in a plain compile knows less of it.
    fill(other, [msgspec.structs.replace(graph, family="", problem=None)])
    store.merge(other)
    kept = store.graph("g")
    assert kept is not None
    assert (kept.family, kept.problem) == (graph.family, graph.problem)


def test_merging_again_changes_nothing(store: Store, one_of_each: list[Row], other: Path) -> None:
    store.append(one_of_each)
    store.ingest()
    fill(other, measured_again(one_of_each, 9.0))
    store.merge(other)
    once = everything(store)
    store.merge(other)
    assert everything(store) == once
    # And the other way round: both then hold the same.
    back = Store.open(other)
    back.merge(store.path)
    assert everything(back) == once


def test_a_device_keeps_its_rates_and_features_by_others_are_out_of_date(
    store: Store, one_of_each: list[Row], other: Path
) -> None:
    store.append(one_of_each)
    store.ingest()
    moved: list[Row] = []
    for row in one_of_each:
        if isinstance(row, DeviceRow):
            profile = {**row.profile, "launch_us": 99.0}
            moved.append(msgspec.structs.replace(row, profile=profile))
            continue
        if isinstance(row, KernelRow):
            moved.append(msgspec.structs.replace(row, signature="theirs"))
        moved.append(row)
    fill(other, moved)
    before = everything(store)
    store.merge(other)
    assert store.rows("devices") == before["devices"]
    versions = {row.signature: row.features_version for row in store.rows("kernels")}  # type: ignore[union-attr]
    (ours,) = (row for row in before["kernels"] if isinstance(row, KernelRow))
    assert versions == {ours.signature: ours.features_version, "theirs": 0}


def newer(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (99, 'future', now()::TIMESTAMP)")


def damaged_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:12288] = bytes(8192)
    path.write_bytes(content)


def damaged_inside(path: Path) -> None:
    """What stands behind the headers: found when the tables are read."""
    content = bytearray(path.read_bytes())
    for at in range(12288 + 64, len(content), 512):
        content[at] ^= 0xFF
    path.write_bytes(content)


def something_else(path: Path) -> None:
    path.write_bytes(b"something else" * 1000)


@pytest.mark.parametrize("spoil", [newer, damaged_header, damaged_inside, something_else])
def test_what_cannot_be_merged_is_named_and_ours_is_as_it_was(
    store: Store, one_of_each: list[Row], other: Path, spoil: object
) -> None:
    store.append(one_of_each)
    store.ingest()
    before = everything(store)
    fill(other, measured_again(one_of_each, 9.0))
    spoil(other)  # type: ignore[operator]
    spoiled = other.read_bytes()
    with pytest.raises(StoreError) as caught:
        store.merge(other)
    assert caught.value.subject == str(other)
    assert other.read_bytes() == spoiled
    assert everything(store) == before
