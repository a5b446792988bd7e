"""The SQL of publishing: temporary tables ``out_*`` with the rows of each file.

Works on a store's reading connection and leaves nothing behind when that is closed. What SQL
cannot tell (splits, classes, texts of problems) is put beside it as tables of keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import duckdb

from fusewise.datasets.columns import FEATURE_BITS, SPREAD_BITS
from fusewise.datasets.repeats import repeats
from fusewise.datasets.rows import Subject
from fusewise.datasets.samples import threads

_SUBJECTS: Final[tuple[Subject, ...]] = ("kernel", "schedule", "extern")

# What ran, and beside it what never did: the newest reason of each.
_MEASURED: Final = """
    CREATE TEMP TABLE measured_{subject} AS
    WITH ran AS (
        SELECT * FROM ({repeats}) WHERE list_contains($devices, device_key)
    ), failed AS (
        SELECT subject_id, device_key, {graph} count(*)::INTEGER AS measurements,
               max(threads) AS threads, max("at") AS "at", 0 AS rounds,
               first(torch_version ORDER BY "at" DESC, id) AS torch_version,
               first(reason ORDER BY "at" DESC, id) AS reason
        FROM measurements
        WHERE subject = '{subject}' AND status = 'failed' AND list_contains($devices, device_key)
        GROUP BY subject_id, device_key {group}
    )
    SELECT *, 'ok' AS status, '' AS reason FROM ran
    UNION ALL BY NAME
    SELECT failed.*, 'failed' AS status FROM failed
    ANTI JOIN ran USING (subject_id, device_key {group})
"""

# A graph that a kernel or call was met in, for those that have no row which says so.
_OCCURS: Final = """
    CREATE TEMP TABLE occurs AS
    SELECT subject, subject_id, device_key, min(graph_key) AS graph_key
    FROM measurements SEMI JOIN kept ON kept.key = measurements.graph_key
    GROUP BY subject, subject_id, device_key
"""

_NEEDED: Final = """
    CREATE TEMP TABLE needed AS
    SELECT coalesce(k.graph_key, o.graph_key) AS key
    FROM measured_kernel m
    LEFT JOIN kernels k ON k.signature = m.subject_id AND k.device_key = m.device_key
    LEFT JOIN occurs o ON o.subject = 'kernel' AND o.subject_id = m.subject_id
        AND o.device_key = m.device_key
    UNION
    SELECT o.graph_key
    FROM measured_extern m
    JOIN occurs o ON o.subject = 'extern' AND o.subject_id = m.subject_id
        AND o.device_key = m.device_key
"""


def _settled(value: str, bits: int) -> str:
    """SQL for ``value`` to so many significant bits: Veltkamp's split (Dekker 1971, section 5)."""
    split = (1 << (53 - bits)) + 1
    return f"{value} * {split} - ({value} * {split} - {value})"


_FEATURES: Final = f"list_transform(k.features::DOUBLE[], lambda v: {_settled('v', FEATURE_BITS)})"

_SPREAD, _LOW_US, _HIGH_US = (
    f"{_settled(f'm.{name}::DOUBLE', SPREAD_BITS)} AS {name}"
    for name in ("spread", "low_us", "high_us")
)
_TIMING: Final = f"""
    m.device_key, m.median_us, {_SPREAD}, m.rounds, {_LOW_US}, {_HIGH_US}, m.measurements,
    m.repeat_range, m.torch_version, m.status, coalesce(r.value, '') AS reason, m."at"
"""
_JOINED: Final = """
    LEFT JOIN devices d ON d.key = m.device_key
    LEFT JOIN reason_of r ON r.key = m.reason
"""

_OUT: Final = {
    "kernels": f"""
        SELECT m.subject_id AS signature, {threads("d", "m")} AS threads, g.key AS graph_key,
               from_json(k.nodes, '["VARCHAR"]') AS nodes, g.family, g.source, s.value AS split,
               coalesce(c.value, 'unknown') AS kernel_class, k.features_version,
               {_FEATURES} AS features,
               coalesce(m.config, '') AS config, coalesce(m.passes, 0) AS passes, k.compiler_us,
               {_TIMING}
        FROM measured_kernel m
        LEFT JOIN kernels k ON k.signature = m.subject_id AND k.device_key = m.device_key
        LEFT JOIN occurs o ON o.subject = 'kernel' AND o.subject_id = m.subject_id
            AND o.device_key = m.device_key
        JOIN kept g ON g.key = coalesce(k.graph_key, o.graph_key)
        JOIN split_of s ON s.key = g.family
        LEFT JOIN class_of c ON c.key = m.subject_id
        {_JOINED}
    """,
    "schedules": f"""
        SELECT s.id, s.graph_key, {threads("d", "m")} AS threads, g.family, g.source,
               f.value AS split, s.schedule::VARCHAR AS schedule, s.origin, s.groups,
               s.predicted_us, s.predicted_low_us, s.predicted_high_us, m.error, m.code_hash,
               {_TIMING}
        FROM measured_schedule m
        JOIN schedules s ON s.id = m.subject_id AND s.graph_key = m.graph_key
        JOIN kept g ON g.key = s.graph_key
        JOIN split_of f ON f.key = g.family
        {_JOINED}
    """,
    "externs": f"""
        SELECT m.subject_id AS signature, {threads("d", "m")} AS threads, o.graph_key, {_TIMING}
        FROM measured_extern m
        JOIN occurs o ON o.subject = 'extern' AND o.subject_id = m.subject_id
            AND o.device_key = m.device_key
        {_JOINED}
    """,
    "blocks": """
        SELECT b.* EXCLUDE (source, sizes), b.sizes::VARCHAR AS sizes, c.value AS code, g.family,
               g.source, s.value AS split
        FROM blocks b SEMI JOIN chosen ON chosen.key = b.device_key
        JOIN code_of c ON c.key = b.source_hash
        JOIN kept g ON g.key = b.graph_key
        JOIN split_of s ON s.key = g.family
    """,
    "devices": """
        SELECT key, kind, name, CASE WHEN kind = 'cuda' THEN 0 ELSE threads END AS threads,
               profile::VARCHAR AS profile
        FROM devices SEMI JOIN chosen ON chosen.key = devices.key
    """,
    "graphs": """
        SELECT k.*, s.value AS split, t.value AS problem
        FROM kept k JOIN split_of s ON s.key = k.family LEFT JOIN text_of t ON t.key = k.key
        SEMI JOIN needed ON needed.key = k.key
    """,
}

#: Hash and stored source of each kernel with block sizes on the devices, and its graph.
BLOCK_SOURCES: Final = """
    SELECT DISTINCT b.source_hash, b.source, b.graph_key
    FROM blocks b SEMI JOIN chosen ON chosen.key = b.device_key
    SEMI JOIN kept ON kept.key = b.graph_key
    ORDER BY b.source_hash, b.graph_key
"""

#: Signature, graph and nodes (JSON) of each measured kernel that is known by its nodes.
KERNEL_NODES: Final = """
    SELECT k.signature, k.graph_key, k.nodes::VARCHAR
    FROM kernels k SEMI JOIN measured_kernel m
        ON m.subject_id = k.signature AND m.device_key = k.device_key
    ORDER BY k.device_key, k.signature
"""

#: Keys of the problems that are to be published, those of one program together.
NEEDED_PROBLEMS: Final = """
    SELECT key FROM kept SEMI JOIN needed ON needed.key = kept.key
    WHERE has_problem ORDER BY family, source, key
"""


def prepare(
    connection: duckdb.DuckDBPyConnection, devices: Sequence[str], clean: Callable[[str], str]
) -> None:
    """Sum up what was measured on ``devices``; ``clean`` is applied to sources and reasons."""
    connection.execute("CREATE TEMP TABLE chosen AS SELECT unnest(?::VARCHAR[]) AS key", [devices])
    connection.execute(
        "CREATE TEMP TABLE kept AS SELECT key, kind, family, source, licence, nodes, "
        "torch_version, problem IS NOT NULL AS has_problem FROM graphs WHERE family <> ''"
    )
    sources = connection.execute("SELECT DISTINCT source FROM kept").fetchall()
    _cleaned(connection, "source_of", [text for (text,) in sources], clean)
    connection.execute("UPDATE kept SET source = s.value FROM source_of s WHERE s.key = source")
    for subject in _SUBJECTS:
        by_graph = subject == "schedule"
        connection.execute(
            _MEASURED.format(
                subject=subject,
                repeats=repeats(subject),
                graph="graph_key," if by_graph else "",
                group=", graph_key" if by_graph else "",
            ),
            {"devices": list(devices)},
        )
    reasons = connection.execute(
        "SELECT DISTINCT reason FROM measurements WHERE reason <> '' ORDER BY reason"
    ).fetchall()
    _cleaned(connection, "reason_of", [text for (text,) in reasons], clean)
    connection.execute(_OCCURS)
    connection.execute(_NEEDED)


def stage(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make ``out_<table>``, a row for each of the file and its columns among others."""
    connection.execute(f"CREATE TEMP TABLE out_{table} AS {_OUT[table]}")


def need(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> None:
    """Publish the graphs of these keys too, where they are kept."""
    connection.execute(
        "INSERT INTO needed SELECT unnest(?::VARCHAR[]) AS key EXCEPT SELECT key FROM needed",
        [list(keys)],
    )


def left_out(connection: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Kernels and schedules that were measured but are of no corpus, where there are some."""
    counts = {}
    for table, subject in (("kernels", "kernel"), ("schedules", "schedule")):
        found = connection.execute(
            f"SELECT (SELECT count(*) FROM measured_{subject}) - (SELECT count(*) FROM out_{table})"
        ).fetchone()
        if found and found[0]:
            counts[table] = int(found[0])
    return counts


def _cleaned(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    texts: Sequence[str],
    clean: Callable[[str], str],
) -> None:
    connection.execute(
        f"CREATE TEMP TABLE {name} AS "
        "SELECT unnest(?::VARCHAR[]) AS key, unnest(?::VARCHAR[]) AS value",
        [list(texts), [clean(text) for text in texts]],
    )
