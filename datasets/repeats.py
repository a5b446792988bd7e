"""What several measurements of one thing come to: the SQL that sums up their repeats.

Reads nothing by itself; ``samples.py`` and ``publish.py`` join it to what was measured.
"""

from __future__ import annotations

from fusewise.datasets.rows import Subject

# Repeats under the newest torch; what an older torch generated is another kernel. What was timed
# while something else had the processor counts only where there is nothing better, and so does what
# was timed at a single moment: a GPU is in one of several states for a while. Of the block sizes
# that a kernel was met with, those of the fastest time count: others are another kernel's.
_REPEATS = """
    SELECT subject_id, device_key, {graph}
           median(median_us) AS median_us,
           median(spread) AS spread,
           sum(rounds)::INTEGER AS rounds,
           median("interval"[1]) AS low_us,
           median("interval"[2]) AS high_us,
           count(*)::INTEGER AS measurements,
           CASE WHEN count(*) > 1 THEN max(median_us) / min(median_us) - 1 END AS repeat_range,
           max(error) AS error,
           max(threads) AS threads,
           newest AS torch_version,
           max("at") AS "at",
           arg_min(code_hash, place) AS code_hash,
           min(passes) AS passes,
           fastest AS config
    FROM (
      SELECT *, first_value(config) OVER (
          PARTITION BY subject_id, device_key {partition} ORDER BY median_us, id
      ) AS fastest
      FROM (
        SELECT *, row_number() OVER newest_first AS place,
               first_value(torch_version) OVER newest_first AS newest,
               min((disturbed, passes = 1)) OVER (
                   PARTITION BY subject_id, device_key {partition}, torch_version
               ) AS best
        FROM (
            SELECT *, coalesce(CAST(clock->>'$.disturbed' AS BOOLEAN), false) AS disturbed,
                   coalesce(CAST(clock->>'$.passes' AS INTEGER), 1) AS passes,
                   coalesce(clock->>'$.config', '') AS config
            FROM measurements
            WHERE subject = '{subject}' AND status = 'ok' AND median_us > 0 AND isfinite(median_us)
        )
        WINDOW newest_first AS (
            PARTITION BY subject_id, device_key {partition} ORDER BY "at" DESC, id
        )
      )
      WHERE torch_version = newest AND (disturbed, passes = 1) = best
    )
    WHERE config = fastest
    GROUP BY subject_id, device_key, {graph} newest, fastest
"""


def repeats(subject: Subject) -> str:
    """SQL of one row for each kernel or extern call and device, or schedule, graph and device.

    Times are medians over the repeats in microseconds, ``rounds`` their sum, ``measurements`` how
    many they are, ``repeat_range`` the largest over the smallest median less 1 (NULL for a single
    one), ``error`` the largest, ``passes`` at how many moments each was timed at the least; ``at``
    and ``code_hash`` are of the newest, ``config`` (block sizes, "" where they are not known) is
    that of all. Failed ones are left out.
    """
    if subject == "schedule":
        return _REPEATS.format(subject=subject, graph="graph_key,", partition=", graph_key")
    return _REPEATS.format(subject=subject, graph="", partition="")
