"""The tables of a published dataset: each column with its type, unit and meaning.

The one place that says which columns there are: files are written, checked and described by it.
Whoever changes a column raises ``SCHEMA_VERSION``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: Version of the files' columns and of the text that problems are written as.
SCHEMA_VERSION: Final = 3

#: Significant bits of a feature: the others take a quarter of a file and tell nothing.
FEATURE_BITS: Final = 14
#: The same of what tells how far a median may be off.
SPREAD_BITS: Final = 12

#: Table of the kernels that were timed with several block sizes, which not all datasets have.
BLOCKS: Final = "blocks"

#: Table of the problems that ``graph_key`` leads to.
GRAPHS: Final = "graphs"


class Column(NamedTuple):
    """One column."""

    name: str
    #: As DuckDB names it.
    type: str
    unit: str
    meaning: str


_DEVICE: Final = (
    Column("device_key", "VARCHAR", "", "device it was measured on, see `devices`"),
    Column("threads", "INTEGER", "threads", "CPU threads it ran on; 0 on a GPU"),
)
_SPLIT: Final = (
    Column("family", "VARCHAR", "", "corpus and architecture, the unit of splitting"),
    Column("split", "VARCHAR", "", "`train` or `test`, by the family"),
)
_TIMING: Final = (
    Column("median_us", "FLOAT", "µs", "time of one run, median; empty where all runs failed"),
    Column(
        "spread",
        "FLOAT",
        "ratio",
        f"half the interquartile range over the median, to {SPREAD_BITS} significant bits",
    ),
    Column("rounds", "INTEGER", "count", "samples that the median stands on, all repeats together"),
    Column(
        "low_us",
        "FLOAT",
        "µs",
        f"lower end of the confidence interval of the median, to {SPREAD_BITS} bits",
    ),
    Column("high_us", "FLOAT", "µs", f"upper end of that interval, to {SPREAD_BITS} bits"),
    Column("measurements", "INTEGER", "count", "times it was measured anew, in other processes"),
    Column(
        "repeat_range",
        "FLOAT",
        "ratio",
        "largest over smallest median of these, less 1; empty for a single one",
    ),
)
_STATUS: Final = (
    Column("torch_version", "VARCHAR", "", "torch that generated and ran it"),
    Column("status", "VARCHAR", "", "`ok`, or `failed` where it never ran"),
    Column("reason", "VARCHAR", "", "why it failed"),
)

#: Every table, by the name of its file without ``.parquet``.
PUBLISHED: Final[dict[str, tuple[Column, ...]]] = {
    "kernels": (
        Column("signature", "VARCHAR", "", "hash of what decides the kernel's code"),
        *_DEVICE,
        Column("graph_key", "VARCHAR", "", "problem it was taken from, see `graphs`"),
        Column("nodes", "VARCHAR[]", "", "names of that problem's nodes in it, in fused order"),
        *_SPLIT,
        Column(
            "kernel_class",
            "VARCHAR",
            "",
            "the first that applies of `template`, `sort`, `scan`, `scatter` (stores through a "
            "loaded index), `reduction`, `gather` (loads through one), `pointwise`; `unknown` "
            "where the problem was not kept",
        ),
        Column("features_version", "INTEGER", "", "version of the feature table"),
        Column(
            "features",
            "FLOAT[]",
            "as listed",
            f"one number a feature, see Features, to {FEATURE_BITS} significant bits",
        ),
        *_TIMING,
        Column(
            "config",
            "VARCHAR",
            "",
            "block sizes and warps that it ran with, on a GPU; empty where they were not kept",
        ),
        Column(
            "passes",
            "INTEGER",
            "count",
            "moments that each measurement looked at it, seconds apart; 0 where it never ran",
        ),
        Column("compiler_us", "FLOAT", "µs", "the compiler's own estimate; empty for none"),
        *_STATUS,
    ),
    GRAPHS: (
        Column(
            "key",
            "VARCHAR",
            "",
            "hash of the graph, and behind it the lowering choices it was lowered under",
        ),
        Column("kind", "VARCHAR", "", "`forward`, `backward` or `inference`"),
        *_SPLIT,
        Column("source", "VARCHAR", "", "corpus and program that it is from"),
        Column("licence", "VARCHAR", "", "SPDX identifier of what the program is under"),
        Column("nodes", "INTEGER", "count", "nodes of the problem"),
        Column("torch_version", "VARCHAR", "", "torch that lowered it"),
        Column(
            "problem",
            "VARCHAR",
            "",
            "the lowered graph before fusion as JSON, which `Dataset.problem(key)` reads; empty "
            "where it was not kept",
        ),
    ),
    "schedules": (
        Column("id", "VARCHAR", "", "hash of the schedule"),
        Column("graph_key", "VARCHAR", "", "graph it is for, lowering choices left out"),
        *_DEVICE,
        *_SPLIT,
        Column("schedule", "VARCHAR", "", "lowering choices, plan and codegen choices as JSON"),
        Column("origin", "VARCHAR", "", "how it came about: `default`, `beam`, `random`, ..."),
        Column("groups", "INTEGER", "count", "groups of its plan; each becomes one kernel"),
        Column("predicted_us", "FLOAT", "µs", "time that was predicted; empty for none"),
        Column("predicted_low_us", "FLOAT", "µs", "lower end of its 90 % interval"),
        Column("predicted_high_us", "FLOAT", "µs", "upper end of its 90 % interval"),
        *_TIMING,
        Column(
            "error",
            "FLOAT",
            "ratio",
            "relative error (L2) against a high-precision reference, worst output",
        ),
        Column("code_hash", "VARCHAR", "", "hash of the code that ran; equal ones ran equal code"),
        *_STATUS,
    ),
    "externs": (
        Column("signature", "VARCHAR", "", "hash of the extern call: a library's kernel"),
        *_DEVICE,
        Column("graph_key", "VARCHAR", "", "a problem that it occurs in"),
        *_TIMING,
        *_STATUS,
    ),
    BLOCKS: (
        Column("source_hash", "VARCHAR", "", "hash of the kernel's source, its name left out"),
        Column("device_key", "VARCHAR", "", "device it was measured on, see `devices`"),
        Column("graph_key", "VARCHAR", "", "a problem that it occurs in, see `graphs`"),
        *_SPLIT,
        Column("name", "VARCHAR", "", "of the kernel in its source"),
        Column("code", "VARCHAR", "", "the Triton source that the compiler generated"),
        Column(
            "own",
            "INTEGER",
            "count",
            "how many of `sizes`, the first of them, the compiler itself would try",
        ),
        Column(
            "sizes",
            "VARCHAR",
            "",
            "block sizes as JSON: constants by name, warps and stages of each",
        ),
        Column(
            "us",
            "FLOAT[]",
            "µs",
            "time of one launch with each of `sizes`, median; empty where it does not compile, "
            "spills registers or does not run",
        ),
        Column("rounds", "INTEGER", "count", "samples of each, taken in turns"),
        Column(
            "spread",
            "FLOAT",
            "ratio",
            "half the interquartile range over the median, the middle one of all sizes",
        ),
        Column("torch_version", "VARCHAR", "", "torch that generated and ran it"),
    ),
    "devices": (
        Column("key", "VARCHAR", "", "text that names the device; for a CPU with its threads"),
        Column("kind", "VARCHAR", "", "`cpu` or `cuda`"),
        Column("name", "VARCHAR", "", "as the machine has it"),
        Column("threads", "INTEGER", "threads", "CPU threads that kernels run on; 0 on a GPU"),
        Column(
            "profile",
            "VARCHAR",
            "",
            "JSON of its rates, measured with eager operations: `copy_gbs`, `gather_gbs`, "
            "`cache_gbs` in GB/s, `flops_gfs` in GFLOP/s, `transcendental_gops` in 10^9/s, "
            "`launch_us` in µs, `cache_bytes` in bytes, `cores`, `threads`",
        ),
    ),
}

#: Files that every dataset has beside its manifest and card.
FILES: Final = tuple(f"{table}.parquet" for table in PUBLISHED if table != BLOCKS)
