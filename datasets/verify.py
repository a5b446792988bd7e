"""Checking a published dataset from end to end: files, columns, references, problems and plans.

Only looks; what is wrong is told in words, and repaired by publishing again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from fusewise.datasets.columns import BLOCKS, PUBLISHED
from fusewise.datasets.connecting import connected
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.problem_text import without_machine_paths
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import DatasetError, PlanError
from fusewise.schedule.plan import check_plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule, problem_key


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    name: str
    #: Rows that were looked at, by table.
    rows: dict[str, int]
    #: What is wrong, in words; none for a sound dataset.
    findings: tuple[str, ...]


def verify(dataset: Dataset) -> Verified:
    """Look at every row of ``dataset``.

    Raises:
        DatasetError: a file is missing or not the one that was published, so that nothing can be
            said of its rows.
    """
    tables = [table for table in PUBLISHED if dataset.manifest.has(table)]
    for table in tables:
        dataset.file(table)
    # Each step rests on what the one before has found to be sound.
    findings = [*_columns(dataset)] or [*_references(dataset)]
    findings = findings or [*_kernels(dataset), *_schedules(dataset), *_blocks(dataset)]
    rows = {table: dataset.manifest.files[f"{table}.parquet"].rows for table in tables}
    return Verified(name=dataset.name, rows=rows, findings=tuple(findings))


def _columns(dataset: Dataset) -> Iterator[str]:
    """Columns, their types and the number of rows."""
    for table, columns in PUBLISHED.items():
        if not dataset.manifest.has(table):
            continue
        path = dataset.file(table)
        wanted = [(column.name, column.type) for column in columns]
        found, rows = _shape(path)
        if found != wanted:
            odd = sorted(set(found) ^ set(wanted))
            yield f"{path.name} has other columns: {odd[0][0] if odd else 'in another order'}"
        counted = dataset.manifest.files[path.name].rows
        if rows != counted:
            yield f"{path.name} has {rows} rows, the manifest counts {counted}"


def _shape(path: Path) -> tuple[list[tuple[str, str]], int]:
    """Names and types of the columns, and the number of rows."""
    source = "'" + str(path).replace("'", "''") + "'"
    with connected() as connection:
        described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        counted = connection.execute(f"SELECT count(*) FROM {source}").fetchone()
    return [(row[0], row[1]) for row in described], int(counted[0]) if counted else 0


def _references(dataset: Dataset) -> Iterator[str]:
    """Graphs and devices that rows name, and problems as graphs count them."""
    graphs = {row["key"]: row for row in dataset.records("graphs")}
    devices = {row["key"] for row in dataset.records("devices")}
    for table in ("kernels", "schedules", "externs", BLOCKS):
        for row in dataset.records(table):
            graph = graphs.get(row["graph_key"])
            if graph is None:
                yield f"{table} name the graph {row['graph_key']}, which is not there"
            elif "split" in row and (row["family"], row["split"]) != (
                graph["family"],
                graph["split"],
            ):
                yield f"{table} of graph {row['graph_key']} are of another family or split"
            if row["device_key"] not in devices:
                yield f"{table} name the device {row['device_key']}, which is not there"
    split = {(row["family"], row["split"]) for row in graphs.values()}
    if len(split) > len({family for family, _ in split}):
        yield "a family stands on both sides of the split"
    for key in dataset.problems:
        problem = dataset.problem(key)
        if len(problem.nodes) != graphs[key]["nodes"]:
            yield f"the problem of {key} has {len(problem.nodes)} nodes, its graph says otherwise"
        if any(node.source != without_machine_paths(node.source) for node in problem.nodes):
            yield f"the problem of {key} names a folder of the machine it was made on"


def _kernels(dataset: Dataset) -> Iterator[str]:
    """Nodes of each kernel, and numbers that are none."""
    names: dict[str, set[str]] = {}
    for row in dataset.records("kernels"):
        key = row["graph_key"]
        if row["nodes"] and key in dataset.problems:
            if key not in names:
                names[key] = {node.name for node in dataset.problem(key).nodes}
            if not names[key].issuperset(row["nodes"]):
                yield f"kernel {row['signature']} has nodes that graph {key} has not"
        if row["status"] == "ok" and not (row["median_us"] or 0) > 0:
            yield f"kernel {row['signature']} ran in no time"
        if row["status"] == "failed" and row["median_us"] is not None:
            yield f"kernel {row['signature']} failed but has a time"


def _schedules(dataset: Dataset) -> Iterator[str]:
    """Ids of schedules, and plans over the problems that were kept."""
    known: tuple[str, Problem] | None = None
    for row in dataset.records("schedules"):
        try:
            schedule = msgspec.json.decode(row["schedule"], type=Schedule)
        except msgspec.DecodeError as error:
            yield f"schedule {row['id']} cannot be read: {error}"
            continue
        if schedule.id != row["id"]:
            yield f"schedule {row['id']} has another id: {schedule.id}"
        key = problem_key(row["graph_key"], schedule.lowering)
        if schedule.plan is None or key not in dataset.problems:
            continue
        if known is None or known[0] != key:
            known = key, dataset.problem(key)
        try:
            check_plan(known[1], schedule.plan)
        except PlanError as error:
            yield f"schedule {row['id']} is no plan over {key}: {error}"


def _blocks(dataset: Dataset) -> Iterator[str]:
    """Times and block sizes, one for each."""
    for row in dataset.records(BLOCKS):
        try:
            sizes = msgspec.json.decode(row["sizes"], type=tuple[BlockSizes, ...])
        except msgspec.DecodeError as error:
            yield f"block sizes of {row['source_hash']} cannot be read: {error}"
            continue
        times = [us for us in row["us"] if us is not None]
        if len(sizes) != len(row["us"]) or not 0 < row["own"] <= len(sizes):
            yield f"{row['source_hash']} has {len(sizes)} block sizes and {len(row['us'])} times"
        if row["us"][:1] == [None] or not all(us > 0 for us in times):
            yield f"{row['source_hash']} ran in no time"
        if f"def {row['name']}(" not in row["code"]:
            yield f"the source of {row['source_hash']} has no kernel {row['name']}"


def check(dataset: Dataset) -> Verified:
    """As :func:`verify`, for who wants a sound dataset or an error.

    Raises:
        DatasetError: anything is wrong; names the first finding.
    """
    verified = verify(dataset)
    if verified.findings:
        more = f", and {len(verified.findings) - 1} more" if len(verified.findings) > 1 else ""
        raise DatasetError(
            f"{verified.findings[0]}{more}",
            subject=f"dataset {dataset.name}",
            remedy="publish it again from its store",
        )
    return verified
