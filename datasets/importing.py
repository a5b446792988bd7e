"""Taking a published dataset into a store, so that own measurements extend it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fusewise.datasets.rows import (
    BlocksRow,
    GraphRow,
    KernelRow,
    MeasurementRow,
    Row,
    ScheduleRow,
    Subject,
    encode_problem,
    encode_source,
)
from fusewise.datasets.store import Store
from fusewise.schedule.schedule import Schedule

if TYPE_CHECKING:
    from fusewise.datasets.dataset import Dataset

#: Each subject with its table and the column that names it there.
_MEASURED: Final[tuple[tuple[Subject, str, str], ...]] = (
    ("kernel", "kernels", "signature"),
    ("schedule", "schedules", "id"),
    ("extern", "externs", "signature"),
)


def import_dataset(dataset: Dataset, path: str | os.PathLike[str]) -> dict[str, int]:
    """Take all of ``dataset`` into the store at ``path``; rows taken in, by table.

    A graph that the store has keeps its row: a dataset knows less of it.

    Raises:
        DatasetError: the dataset is damaged.
        StoreError: the store cannot be opened or written.
    """
    with Store.open(path) as store:
        known = store.graph_keys()
        store.append(_rows(dataset, known))
        return store.ingest().rows


def _rows(dataset: Dataset, known: set[str]) -> Iterator[Row]:
    yield from dataset.devices()
    problems = dataset.problems
    created = dataset.manifest.created
    for row in dataset.records("graphs"):
        if row["key"] not in known:
            key = row["key"]
            yield GraphRow(
                key=key,
                parts={},
                kind=row["kind"],
                family=row["family"],
                source=row["source"],
                licence=row["licence"],
                nodes=row["nodes"],
                problem=encode_problem(problems[key]) if key in problems else None,
                torch_version=row["torch_version"],
                created=created,
            )
    for subject, table, name in _MEASURED:
        for row in dataset.records(table):
            if subject == "kernel" and row["features"] is not None:
                yield KernelRow(
                    signature=row["signature"],
                    device_key=row["device_key"],
                    graph_key=row["graph_key"],
                    nodes=tuple(row["nodes"]),
                    features_version=row["features_version"],
                    features=row["features"],
                    compiler_us=row["compiler_us"],
                )
            elif subject == "schedule":
                yield ScheduleRow(
                    id=row["id"],
                    graph_key=row["graph_key"],
                    schedule=msgspec.json.decode(row["schedule"], type=Schedule),
                    origin=row["origin"],
                    groups=row["groups"],
                    predicted_us=row["predicted_us"],
                    predicted_low_us=row["predicted_low_us"],
                    predicted_high_us=row["predicted_high_us"],
                )
            yield from _measurements(dataset, subject, row[name], row)
    for sample in dataset.blocks():
        yield BlocksRow(
            source_hash=sample.source_hash,
            device_key=sample.device_key,
            graph_key=sample.graph_key,
            source=encode_source(sample.source),
            name=sample.name,
            own=sample.own,
            sizes=sample.sizes,
            us=sample.us,
            rounds=sample.rounds,
            spread=sample.spread,
            torch_version=sample.torch_version,
            at=created,
        )


def _measurements(
    dataset: Dataset, subject: Subject, subject_id: str, row: dict[str, Any]
) -> Iterator[MeasurementRow]:
    """As many as a published row sums up, so that publishing them again sums up to the same."""
    # The same each time, so that taking it in again adds nothing.
    identity = "/".join(
        (dataset.name, subject, subject_id, row["graph_key"], row["device_key"], str(row["status"]))
    )
    low, high = row["low_us"], row["high_us"]
    clock: dict[str, object] = {"dataset": dataset.name}
    if row.get("config"):
        clock["config"] = row["config"]
    if row.get("passes", 0) > 1:
        clock["passes"] = row["passes"]
    count = row["measurements"]
    each, over = divmod(row["rounds"], count)
    for number, median_us in enumerate(_repeated(row["median_us"], row["repeat_range"], count)):
        name = f"{identity}/{number}" if number else identity
        yield MeasurementRow(
            subject=subject,
            subject_id=subject_id,
            graph_key=row["graph_key"],
            device_key=row["device_key"],
            threads=row["threads"],
            status=row["status"],
            reason=row["reason"],
            median_us=median_us,
            spread=row["spread"],
            rounds=each + (number < over),
            interval=None if low is None or high is None else (low, high),
            error=row.get("error"),
            clock=clock,
            code_hash=row.get("code_hash") or "",
            torch_version=row["torch_version"],
            at=dataset.manifest.created,
            id=hashlib.sha256(name.encode()).hexdigest()[:32],
        )


def _repeated(median: float | None, spanned: float | None, count: int) -> list[float | None]:
    """Times of ``count`` measurements with this median, the slowest ``1 + spanned`` of the fastest.

    Of two they are the very times that were measured; of more, nothing else is known of the times.
    """
    if median is None or spanned is None:
        return [median] * count
    fastest = 2.0 * median / (2.0 + spanned)
    return [fastest, *[median] * (count - 2), fastest * (1.0 + spanned)]
