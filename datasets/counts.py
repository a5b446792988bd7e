"""Counting what is about to be published: from the staged rows to the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import duckdb
import msgspec

from fusewise.datasets.manifest import (
    CorpusEntry,
    DeviceEntry,
    FamilyEntry,
    FeatureColumn,
    KernelCount,
    Manifest,
    Repeatability,
)

_DEVICES = """
    SELECT d.key, d.kind, d.name, d.threads,
           {}
    FROM out_devices d ORDER BY d.key
"""
_OF_DEVICE = "(SELECT count(*) FROM out_{} t WHERE t.device_key = d.key AND t.status {} 'ok')"
_BLOCKS_OF_DEVICE = "(SELECT count(*) FROM out_blocks t WHERE t.device_key = d.key)"
_KERNELS = """
    SELECT device_key, kernel_class, split, count(*)::INTEGER AS kernels FROM out_kernels
    WHERE status = 'ok' GROUP BY ALL ORDER BY ALL
"""
_FAMILIES = """
    SELECT family, any_value(split) AS split, count(*)::INTEGER AS graphs,
           (SELECT count(*) FROM out_kernels k WHERE k.family = g.family AND status = 'ok')
               AS kernels,
           (SELECT count(*) FROM out_schedules s WHERE s.family = g.family AND status = 'ok')
               AS schedules
    FROM out_graphs g GROUP BY family ORDER BY family
"""
_CORPORA = """
    SELECT split_part(source, ':', 1) AS corpus, licence, count(*)::INTEGER AS graphs
    FROM out_graphs GROUP BY ALL ORDER BY ALL
"""
_REPEATABILITY = """
    SELECT count(*) AS kernels, avg((repeat_range <= 0.05)::INTEGER) AS within_5_percent
    FROM out_kernels WHERE status = 'ok' AND repeat_range IS NOT NULL AND median_us >= 5
"""
_TORCH = """
    SELECT DISTINCT torch_version FROM (
        SELECT torch_version FROM out_kernels UNION SELECT torch_version FROM out_schedules
        UNION SELECT torch_version FROM out_graphs UNION SELECT torch_version FROM out_blocks
    ) WHERE torch_version <> '' ORDER BY torch_version
"""
_CREATED = """
    SELECT max("at") FROM (
        SELECT "at" FROM out_kernels UNION ALL SELECT "at" FROM out_schedules
        UNION ALL SELECT "at" FROM out_externs UNION ALL SELECT "at" FROM out_blocks
    )
"""


def counted(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    features: Mapping[int, Sequence[FeatureColumn]],
) -> Manifest:
    """The manifest of the staged rows, the files left out."""

    def rows(sql: str) -> list[dict[str, object]]:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, record, strict=True)) for record in cursor.fetchall()]

    def first(sql: str) -> object:
        found = connection.execute(sql).fetchone()
        return found[0] if found else None

    # The count of each column of DeviceEntry.
    counts = [
        f"{_OF_DEVICE.format(table, equals)} AS {table}{suffix}"
        for table in ("kernels", "schedules")
        for equals, suffix in (("=", ""), ("<>", "_failed"))
    ]
    counts.append(f"{_OF_DEVICE.format('externs', '=')} AS externs")
    counts.append(f"{_BLOCKS_OF_DEVICE} AS blocks")
    created = first(_CREATED)
    assert isinstance(created, datetime)
    version = first("SELECT max(features_version) FROM out_kernels WHERE status = 'ok'")
    features_version = version if isinstance(version, int) else 0
    families = {
        str(row.pop("family")): msgspec.convert(row, FamilyEntry) for row in rows(_FAMILIES)
    }
    return Manifest(
        name=name,
        created=created.replace(tzinfo=UTC),
        features_version=features_version,
        features=tuple(features.get(features_version, ())),
        torch_versions=tuple(str(row["torch_version"]) for row in rows(_TORCH)),
        devices=msgspec.convert(rows(_DEVICES.format(", ".join(counts))), tuple[DeviceEntry, ...]),
        graphs=_integer(first("SELECT count(*) FROM out_graphs")),
        problems=_integer(first("SELECT count(problem) FROM out_graphs")),
        kernels=msgspec.convert(rows(_KERNELS), tuple[KernelCount, ...]),
        families=families,
        corpora=msgspec.convert(rows(_CORPORA), tuple[CorpusEntry, ...]),
        repeatability=msgspec.convert(rows(_REPEATABILITY)[0], Repeatability),
        files={},
    )


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value
