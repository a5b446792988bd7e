"""Samples: measured kernels as arrays and measured schedules with their problems, for training.

Reads through a connection that is given, never opens the store, and never splits the samples:
that is ``splits.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.datasets.rows import DeviceKind, decode_problem
from fusewise.schedule.errors import StoreError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule

Texts = npt.NDArray[np.object_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KernelSamples:
    """Distinct measured kernels, one row for each kernel and device; n rows, F features."""

    features_version: int
    #: [n, F]
    features: Floats
    #: [n], median over the repeats, in microseconds.
    median_us: Floats
    #: [n], median over the repeats of the relative spread; nan where none was kept.
    spread: Floats
    #: [n], the compiler's own estimate in microseconds; nan where it has none.
    compiler_us: Floats
    signature: Texts
    graph_key: Texts
    family: Texts
    device_key: Texts

    def __len__(self) -> int:
        return len(self.median_us)


@dataclass(frozen=True)
class ScheduleSample:
    """A schedule that ran, with its times in microseconds."""

    schedule_id: str
    graph_key: str
    family: str
    device_key: str
    schedule: Schedule
    origin: str
    groups: int
    predicted_us: float | None
    predicted_low_us: float | None
    predicted_high_us: float | None
    median_us: float
    spread: float | None
    error: float | None


@dataclass(frozen=True)
class ScheduleSamples:
    """Measured schedules; the problem of a graph is decoded when it is asked for."""

    samples: tuple[ScheduleSample, ...]
    _stored: dict[str, bytes] = field(repr=False)
    _decoded: dict[str, Problem] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[ScheduleSample]:
        return iter(self.samples)

    def has_problem(self, graph_key: str) -> bool:
        """Whether the problem of the graph was kept."""
        return graph_key in self._stored

    def problem(self, graph_key: str) -> Problem:
        """Problem of the graph.

        Raises:
            StoreError: it was not kept, or cannot be read.
        """
        if graph_key not in self._decoded:
            if graph_key not in self._stored:
                raise StoreError(
                    "its problem is not in the store",
                    subject=f"graph {graph_key}",
                    remedy="compile or collect the graph again",
                )
            self._decoded[graph_key] = decode_problem(self._stored[graph_key])
        return self._decoded[graph_key]


# Repeats of one subject under its newest torch; what an older torch generated is another kernel.
_REPEATS = """
    SELECT subject_id, device_key, {graph} median(median_us) AS median_us,
           median(spread) AS spread, max(error) AS error
    FROM (
        SELECT *, first_value(torch_version) OVER (
            PARTITION BY subject_id, device_key {partition} ORDER BY "at" DESC, id
        ) AS newest
        FROM measurements
        WHERE subject = '{subject}' AND status = 'ok' AND median_us > 0 AND isfinite(median_us)
    )
    WHERE torch_version = newest
    GROUP BY ALL
"""
_KERNEL_REPEATS = _REPEATS.format(subject="kernel", graph="", partition="")
_SCHEDULE_REPEATS = _REPEATS.format(subject="schedule", graph="graph_key,", partition=", graph_key")


def kernel_samples(
    connection: duckdb.DuckDBPyConnection,
    *,
    features_version: int | None,
    device_key: str | None,
    device_kind: DeviceKind | None,
) -> KernelSamples:
    """Measured kernels whose features are of one version (None: the newest one stored).

    Raises:
        StoreError: rows of that version have different numbers of features.
    """
    if features_version is None:
        found = connection.execute("SELECT max(features_version) FROM kernels").fetchone()
        features_version = int(found[0] or 0) if found else 0
    columns = connection.execute(
        f"""
        SELECT k.features, m.median_us, m.spread, k.compiler_us, k.signature, k.graph_key,
               coalesce(g.family, '') AS family, k.device_key
        FROM kernels k
        JOIN ({_KERNEL_REPEATS}) m ON m.subject_id = k.signature AND m.device_key = k.device_key
        LEFT JOIN graphs g ON g.key = k.graph_key
        LEFT JOIN devices d ON d.key = k.device_key
        WHERE k.features_version = $version
          AND ($device_key IS NULL OR k.device_key = $device_key)
          AND ($device_kind IS NULL OR d.kind = $device_kind)
        ORDER BY k.device_key, k.signature
        """,
        {"version": features_version, "device_key": device_key, "device_kind": device_kind},
    ).fetchnumpy()
    rows = columns["features"]
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise StoreError(
            f"kernels of features version {features_version} have {min(lengths)} to "
            f"{max(lengths)} features",
            subject="store",
            remedy="count the features version up whenever the features change, "
            "and store the kernels anew",
        )
    features = np.stack([np.asarray(row, dtype=np.float64) for row in rows]) if lengths else None
    return KernelSamples(
        features_version=features_version,
        features=np.empty((0, 0)) if features is None else features,
        median_us=_floats(columns["median_us"]),
        spread=_floats(columns["spread"]),
        compiler_us=_floats(columns["compiler_us"]),
        signature=_texts(columns["signature"]),
        graph_key=_texts(columns["graph_key"]),
        family=_texts(columns["family"]),
        device_key=_texts(columns["device_key"]),
    )


def schedule_samples(
    connection: duckdb.DuckDBPyConnection, *, device_key: str | None
) -> ScheduleSamples:
    """Measured schedules, by graph and device; failed ones are left out."""
    cursor = connection.execute(
        f"""
        SELECT s.id AS schedule_id, s.graph_key, coalesce(g.family, '') AS family, m.device_key,
               s.schedule, s.origin, s.groups, s.predicted_us, s.predicted_low_us,
               s.predicted_high_us, m.median_us, m.spread, m.error
        FROM schedules s
        JOIN ({_SCHEDULE_REPEATS}) m ON m.subject_id = s.id AND m.graph_key = s.graph_key
        LEFT JOIN graphs g ON g.key = s.graph_key
        WHERE $device_key IS NULL OR m.device_key = $device_key
        ORDER BY s.graph_key, m.device_key, s.id
        """,
        {"device_key": device_key},
    )
    samples = tuple(
        ScheduleSample(
            schedule_id=record[0],
            graph_key=record[1],
            family=record[2],
            device_key=record[3],
            schedule=msgspec.json.decode(record[4], type=Schedule),
            origin=record[5],
            groups=record[6],
            predicted_us=record[7],
            predicted_low_us=record[8],
            predicted_high_us=record[9],
            median_us=record[10],
            spread=record[11],
            error=record[12],
        )
        for record in cursor.fetchall()
    )
    problems = connection.execute(
        "SELECT key, problem FROM graphs WHERE problem IS NOT NULL AND list_contains(?, key)",
        [sorted({sample.graph_key for sample in samples})],
    ).fetchall()
    return ScheduleSamples(samples, dict(problems))


def _floats(column: Any) -> Floats:
    """A fetched column of numbers, NULL as nan."""
    return np.asarray(np.ma.filled(column.astype(np.float64), np.nan), dtype=np.float64)


def _texts(column: Any) -> Texts:
    return np.asarray(column, dtype=np.object_)
