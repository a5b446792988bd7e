from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewise.datasets.rows import (
    CandidateSummary,
    DecisionRow,
    DeviceRow,
    GraphRow,
    KernelRow,
    MeasurementRow,
    Row,
)
from fusewise.datasets.store import Store
from fusewise.datasets.tables import TABLE_OF
from fusewise.schedule.errors import StoreError

PREAMBLE = """
import os, signal, sys, time
from fusewise.datasets.rows import *
from fusewise.datasets.store import Store
path = sys.argv[1]
def row(i, fill=""):
    return GraphRow(key=str(i), parts={}, kind="forward", source=fill)
"""


def start(program: str, *args: object) -> subprocess.Popen[str]:
    code = PREAMBLE + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


def spool_of(path: Path) -> Path:
    return path.with_name(path.name + ".spool")


def test_many_processes_append_and_open_at_once(path: Path) -> None:
    program = """
    for round in range(5):
        with Store.open(path) as store:
            for i in range(20):
                store.append(MeasurementRow(subject="kernel", subject_id=f"{i}", graph_key="g",
                                            device_key="d", median_us=1.0))
            store.append(row("shared"))
            store.ingest()
    """
    for process in [start(program, path) for _ in range(4)]:
        finish(process)
    info = Store.open(path).info()
    assert info.counts["measurements"] == 4 * 5 * 20
    assert info.counts["graphs"] == 1
    assert info.spool_files == 0


def test_a_process_killed_while_appending_loses_at_most_its_last_row(path: Path) -> None:
    Store.open(path)
    program = """
    store = Store.open(path)
    for i in range(10**9):
        store.append(row(i, "x" * 5000))
        print(i, flush=True)
    """
    process = start(program, path)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(200)][-1]
    process.kill()
    seen = max([seen, *(int(line) for line in process.communicate()[0].splitlines(True)[:-1])])
    store = Store.open(path)
    keys = {int(row.key) for row in store.rows("graphs") if isinstance(row, GraphRow)}
    assert keys in (set(range(seen + 1)), set(range(len(keys)))) and len(keys) > seen
    assert list(spool_of(path).glob("*.jsonl")) == []


def test_a_torn_line_waits_for_its_writer_and_is_dropped_when_that_died(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.open(path)
    program = """
    store = Store.open(path)
    store.append(row("whole"))
    os.write(store._spool._descriptor, b'{"table":"graphs","ver')
    print("written", flush=True)
    time.sleep(60)
    """
    process = start(program, path)
    assert process.stdout is not None
    process.stdout.readline()
    store = Store.open(path)
    assert store.info().counts["graphs"] == 1
    assert store.ingest().torn == 0
    assert store.info().spool_files == 1
    process.send_signal(signal.SIGKILL)
    process.communicate()
    report = store.ingest()
    assert report.torn == 1 and report.files_removed == 1
    assert "1 unfinished rows" in caplog.text
    assert store.info().counts["graphs"] == 1 and store.info().spool_files == 0


@pytest.mark.parametrize("moment", ["before", "after"])
def test_nothing_is_taken_in_twice_or_lost_when_killed_around_the_commit(
    path: Path, moment: str
) -> None:
    with Store.open(path) as store:
        store.append(
            MeasurementRow(subject="kernel", subject_id=f"{i}", graph_key="g", device_key="d")
            for i in range(50)
        )
    program = """
    from contextlib import contextmanager
    from fusewise.datasets import ingest
    whole = ingest.transaction
    @contextmanager
    def killed(connection):
        with whole(connection):
            yield
            if sys.argv[2] == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    ingest.transaction = killed
    Store.open(path)
    """
    process = start(program, path, moment)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(list(spool_of(path).glob("*.jsonl"))) == 1
    info = Store.open(path).info()
    assert info.counts["measurements"] == 50
    assert info.spool_files == 0


def test_a_forked_child_writes_a_file_of_its_own(path: Path) -> None:
    program = """
    store = Store.open(path)
    store.append(row("before"))
    child = os.fork()
    store.append(row("child" if child == 0 else "parent"))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print(len([n for n in os.listdir(path + ".spool")]))
    """
    assert finish(start(program, path)) == "2\n"
    store = Store.open(path)
    found = [row.key for row in store.rows("graphs") if isinstance(row, GraphRow)]
    assert found == ["before", "child", "parent"]
    assert store.info().spool_files == 0


def test_files_of_running_processes_stay_and_go_on(store: Store) -> None:
    store.append(GraphRow(key="a", parts={}, kind="forward"))
    assert store.ingest().rows == {"graphs": 1}
    store.append(GraphRow(key="b", parts={}, kind="forward"))
    assert store.ingest().rows == {"graphs": 1}
    assert store.ingest().rows == {}
    assert store.info().spool_files == 1
    store.close()
    assert store.ingest().files_removed == 1
    assert store.info().counts["graphs"] == 2


def test_a_held_lock_names_its_holder(path: Path) -> None:
    Store.open(path)
    with FileLock(path.with_name(path.name + ".lock")):
        began = time.monotonic()
        with pytest.raises(StoreError, match="held the store") as caught:
            Store.open(path, timeout=0.2)
        assert time.monotonic() - began < 20
        if Path("/proc/locks").exists():
            assert f"process {os.getpid()} " in str(caught.value)


def test_a_program_that_has_the_file_open_is_named(path: Path) -> None:
    Store.open(path)
    program = """
    import duckdb
    connection = duckdb.connect(path)
    print("open", flush=True)
    time.sleep(60)
    """
    process = start(program, path)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(StoreError, match=f"another program has it open.*{process.pid}"):
        Store.open(path, timeout=0.2)
    process.kill()
    process.communicate()
    assert Store.open(path).info().counts["graphs"] == 0


def test_a_full_disk_is_a_store_error_and_loses_nothing(path: Path) -> None:
    with Store.open(path) as store:
        store.append(GraphRow(key="old", parts={}, kind="forward"))
        store.ingest()
    size = path.stat().st_size
    program = """
    import resource
    from fusewise.schedule.errors import StoreError
    store = Store.open(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    written = 0
    try:
        while True:
            store.append(row(written, os.urandom(5000).hex()))
            written += 1
    except StoreError as error:
        assert "cannot be written" in str(error), error
    assert store.append(row("small")) == 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        store.ingest()
    except StoreError as error:
        assert path in str(error), error
    else:
        raise AssertionError("taking in did not fail")
    print(written)
    """
    written = int(finish(start(program, path, size + 100_000)))
    store = Store.open(path)
    found = {row.key for row in store.rows("graphs") if isinstance(row, GraphRow)}
    assert found == {"old", "small", *map(str, range(written))}


def test_a_row_that_cannot_be_told_is_refused(store: Store) -> None:
    for bad in (
        DeviceRow(key="d", kind="cpu", name="n", profile={"bandwidth": float("nan")}),
        DeviceRow(key="d", kind="cpu", name="n", profile={"bandwidth": object()}),
        DeviceRow(key="d", kind="cpu", name="n", threads=2**40),
        DeviceRow(key="\ud800", kind="cpu", name="n"),
        DeviceRow(key="d", kind="cpu", name="n", first_seen=datetime(2026, 1, 1)),
    ):
        with pytest.raises(StoreError, match="devices"):
            store.append(bad)
    assert store.ingest().rows == {}


texts = st.text(max_size=12)
numbers = st.none() | st.floats(allow_nan=False)
counts = st.integers(0, 2**31 - 1)
moments = st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.just(UTC))
values = st.none() | st.booleans() | texts | st.integers(-(2**53), 2**53)
values |= st.floats(allow_nan=False, allow_infinity=False)
objects = st.dictionaries(texts, values, max_size=3)
rows: st.SearchStrategy[Row] = st.one_of(
    st.builds(
        DeviceRow,
        key=texts,
        kind=st.sampled_from(["cpu", "cuda"]),
        name=texts,
        threads=counts,
        profile=objects,
        first_seen=moments,
    ),
    st.builds(
        GraphRow,
        key=texts,
        parts=st.dictionaries(texts, texts, max_size=3),
        kind=st.sampled_from(["forward", "backward", "inference"]),
        family=texts,
        source=texts,
        licence=texts,
        nodes=counts,
        problem=st.none() | st.binary(max_size=50),
        torch_version=texts,
        created=moments,
    ),
    st.builds(
        KernelRow,
        signature=texts,
        device_key=texts,
        graph_key=texts,
        nodes=st.lists(texts, max_size=3).map(tuple),
        features_version=counts,
        features=st.lists(st.floats(allow_nan=False), max_size=5),
        compiler_us=numbers,
    ),
    st.builds(
        MeasurementRow,
        subject=st.sampled_from(["kernel", "schedule", "extern"]),
        subject_id=texts,
        graph_key=texts,
        device_key=texts,
        threads=counts,
        status=st.sampled_from(["ok", "failed"]),
        reason=texts,
        median_us=numbers,
        spread=numbers,
        rounds=counts,
        interval=st.none() | st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
        error=numbers,
        clock=objects,
        at=moments,
        id=texts,
    ),
    st.builds(
        DecisionRow,
        graph_key=texts,
        device_key=texts,
        mode=texts,
        model_id=texts,
        schedule_id=texts,
        candidates=st.lists(
            st.builds(
                CandidateSummary, schedule_id=texts, origin=texts, groups=counts, error=numbers
            ),
            max_size=2,
        ).map(tuple),
        at=moments,
    ),
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(rows, min_size=1, max_size=8))
def test_arbitrary_rows_survive_the_spool(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[Row]
) -> None:
    with Store.open(tmp_path_factory.mktemp("s") / "store.duckdb") as store:
        store.append(given_rows)
        report = store.ingest()
        assert report.rejected == report.torn == 0
        for table in {TABLE_OF[type(row)].name: TABLE_OF[type(row)] for row in given_rows}.values():
            keyed: dict[object, list[Row]] = {}
            for row in given_rows:
                if TABLE_OF[type(row)] is table:
                    keyed.setdefault(tuple(getattr(row, c) for c in table.key), []).append(row)
            found = {
                tuple(getattr(row, c) for c in table.key): row for row in store.rows(table.name)
            }
            assert found.keys() == keyed.keys()
            for key, same in keyed.items():
                if len(same) == 1:
                    assert found[key] == same[0]


def test_lines_are_json_that_others_can_read(store: Store) -> None:
    store.append(GraphRow(key="ü\n", parts={"a": "b"}, kind="backward", problem=b"\0\xff"))
    (file,) = spool_of(store.path).iterdir()
    (line,) = file.read_text(encoding="utf-8").splitlines()
    told = json.loads(line)
    assert told["table"] == "graphs" and told["row"]["key"] == "ü\n"
