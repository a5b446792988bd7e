"""Samples: measured kernels as arrays and measured schedules with their problems, for training.

The same types come from a store and from a published dataset. Here they are read from a store,
through a connection that is given; never opens the store, and never decides which samples are
trained on: that is ``splits.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.datasets.repeats import repeats
from fusewise.datasets.rows import DeviceKind, decode_problem
from fusewise.datasets.splits import split_of
from fusewise.schedule.errors import StoreError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule, problem_key

Texts = npt.NDArray[np.object_]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


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
    #: [n], ends of the confidence interval of the median, in microseconds; nan where none was kept.
    low_us: Floats
    high_us: Floats
    #: [n], the compiler's own estimate in microseconds; nan where it has none.
    compiler_us: Floats
    #: [n], CPU threads that the kernel ran on; 0 on a GPU.
    threads: Integers
    signature: Texts
    #: [n], key of the problem that the kernel was taken from.
    graph_key: Texts
    #: [n], names of the problem's nodes that it is made of, in fused order: tuples.
    nodes: Texts
    family: Texts
    #: [n], ``train`` or ``test``, by the family.
    split: Texts
    device_key: Texts

    def __len__(self) -> int:
        return len(self.median_us)


@dataclass(frozen=True)
class ScheduleSample:
    """A schedule that ran, with its times in microseconds."""

    schedule_id: str
    graph_key: str
    family: str
    split: Literal["train", "test"]
    device_key: str
    #: CPU threads that it ran on; 0 on a GPU.
    threads: int
    schedule: Schedule
    origin: str
    groups: int
    predicted_us: float | None
    predicted_low_us: float | None
    predicted_high_us: float | None
    median_us: float
    spread: float | None
    #: Ends of the confidence interval of the median.
    low_us: float | None
    high_us: float | None
    error: float | None

    @property
    def problem_key(self) -> str:
        """Key of the problem that its plan is over."""
        return problem_key(self.graph_key, self.schedule.lowering)


class Problems(Protocol):
    """Problems by key, each decoded when it is asked for."""

    def __contains__(self, key: object, /) -> bool: ...

    def __getitem__(self, key: str, /) -> Problem: ...


@dataclass(frozen=True)
class StoredProblems:
    """Problems as the store has them."""

    encoded: Mapping[str, bytes] = field(repr=False)

    def __contains__(self, key: object) -> bool:
        return key in self.encoded

    def __getitem__(self, key: str) -> Problem:
        return decode_problem(self.encoded[key])


@dataclass(frozen=True)
class ScheduleSamples:
    """Measured schedules; the problem of one is decoded when it is asked for."""

    samples: tuple[ScheduleSample, ...]
    _problems: Problems = field(repr=False)
    _decoded: dict[str, Problem] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[ScheduleSample]:
        return iter(self.samples)

    def has_problem(self, sample: ScheduleSample) -> bool:
        """Whether the problem that the sample's plan is over was kept."""
        return sample.problem_key in self._problems

    def problem(self, sample: ScheduleSample) -> Problem:
        """The problem that the sample's plan is over: its graph's under its lowering choices.

        Raises:
            StoreError: it was not kept, or cannot be read.
            DatasetError: it cannot be read.
        """
        key = sample.problem_key
        if key not in self._decoded:
            if key not in self._problems:
                raise StoreError(
                    "its problem was not kept",
                    subject=f"graph {key}",
                    remedy="compile or collect the graph again",
                )
            self._decoded[key] = self._problems[key]
        return self._decoded[key]


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
        SELECT k.features, m.median_us, m.spread, m.low_us, m.high_us, k.compiler_us,
               {threads("d", "m")} AS threads, k.signature, k.graph_key, k.nodes::VARCHAR AS nodes,
               coalesce(g.family, '') AS family, k.device_key
        FROM kernels k
        JOIN ({repeats("kernel")}) m ON m.subject_id = k.signature AND m.device_key = k.device_key
        LEFT JOIN graphs g ON g.key = k.graph_key
        LEFT JOIN devices d ON d.key = k.device_key
        WHERE k.features_version = $version
          AND ($device_key IS NULL OR k.device_key = $device_key)
          AND ($device_kind IS NULL OR d.kind = $device_kind)
        ORDER BY k.device_key, k.signature
        """,
        {"version": features_version, "device_key": device_key, "device_kind": device_kind},
    ).fetchnumpy()
    columns["nodes"] = [msgspec.json.decode(nodes) for nodes in columns["nodes"]]
    columns["split"] = [split_of(str(family)) for family in columns["family"]]
    return kernel_samples_of(columns, features_version)


def kernel_samples_of(columns: Mapping[str, Any], features_version: int) -> KernelSamples:
    """Samples from columns that were fetched, one for each field.

    Raises:
        StoreError: rows have different numbers of features.
    """
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
        low_us=_floats(columns["low_us"]),
        high_us=_floats(columns["high_us"]),
        compiler_us=_floats(columns["compiler_us"]),
        threads=np.asarray(np.ma.filled(columns["threads"], 0), dtype=np.int64),
        signature=_texts(columns["signature"]),
        graph_key=_texts(columns["graph_key"]),
        nodes=_tuples(columns["nodes"]),
        family=_texts(columns["family"]),
        split=_texts(columns["split"]),
        device_key=_texts(columns["device_key"]),
    )


def schedule_samples(
    connection: duckdb.DuckDBPyConnection, *, device_key: str | None
) -> ScheduleSamples:
    """Measured schedules, by graph and device; failed ones are left out."""
    cursor = connection.execute(
        f"""
        SELECT s.id, s.graph_key, coalesce(g.family, ''), m.device_key, {threads("d", "m")},
               s.schedule, s.origin, s.groups, s.predicted_us, s.predicted_low_us,
               s.predicted_high_us, m.median_us, m.spread, m.low_us, m.high_us, m.error
        FROM schedules s
        JOIN ({repeats("schedule")}) m ON m.subject_id = s.id AND m.graph_key = s.graph_key
        LEFT JOIN graphs g ON g.key = s.graph_key
        LEFT JOIN devices d ON d.key = m.device_key
        WHERE $device_key IS NULL OR m.device_key = $device_key
        ORDER BY s.graph_key, m.device_key, s.id
        """,
        {"device_key": device_key},
    )
    samples = tuple(
        schedule_sample_of((*record[:3], split_of(record[2]), *record[3:]))
        for record in cursor.fetchall()
    )
    problems = connection.execute(
        "SELECT key, problem FROM graphs WHERE problem IS NOT NULL AND list_contains(?, key)",
        [sorted({sample.problem_key for sample in samples})],
    ).fetchall()
    return ScheduleSamples(samples, StoredProblems(dict(problems)))


def schedule_sample_of(record: Sequence[Any]) -> ScheduleSample:
    """A sample from one fetched record: its fields in order, the schedule as JSON."""
    fields = dict(zip(ScheduleSample.__dataclass_fields__, record, strict=True))
    fields["schedule"] = msgspec.json.decode(fields["schedule"], type=Schedule)
    return ScheduleSample(**fields)


def threads(device: str, measured: str) -> str:
    """SQL for the CPU threads that something ran on: 0 on a GPU, whose profile counts others."""
    known = f"coalesce(nullif({measured}.threads, 0), {device}.threads, 0)"
    return f"CASE WHEN {device}.kind = 'cuda' THEN 0 ELSE {known} END"


def _floats(column: Any) -> Floats:
    """A fetched column of numbers, NULL as nan."""
    return np.asarray(np.ma.filled(column.astype(np.float64), np.nan), dtype=np.float64)


def _texts(column: Any) -> Texts:
    return np.asarray(column, dtype=np.object_)


def _tuples(rows: Sequence[Sequence[str]]) -> Texts:
    """One tuple a row; numpy on its own would make equally long ones a matrix."""
    result = np.empty(len(rows), dtype=np.object_)
    for i, row in enumerate(rows):
        result[i] = tuple(row)
    return result
