"""Block samples: Triton kernels that were timed with several block sizes, for training.

The same type comes from a store and from a published dataset. Here they are read from a store,
through a connection that is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import duckdb
import msgspec

from fusewise.datasets.rows import decode_source
from fusewise.datasets.splits import split_of
from fusewise.schedule.block_sizes import BlockSizes

_sizes: Final = msgspec.json.Decoder(tuple[BlockSizes, ...])


@dataclass(frozen=True)
class BlockSample:
    """A distinct kernel on a device, with its times in microseconds."""

    #: Of its source, whatever the kernel is called in there.
    source_hash: str
    device_key: str
    #: Of a problem that it occurs in.
    graph_key: str
    family: str
    split: Literal["train", "test"]
    #: Of the kernel in its source.
    name: str
    #: As Inductor generated it.
    source: str
    #: How many of ``sizes``, the first of them, are those that Inductor itself would try.
    own: int
    sizes: tuple[BlockSizes, ...]
    #: Median of a launch with each of ``sizes``, cache warm; None where it does not compile, spills
    #: registers or does not run.
    us: tuple[float | None, ...]
    #: Samples of each.
    rounds: int
    #: Half the interquartile range over the median, the middle one of all sizes; None where there
    #: were too few samples.
    spread: float | None
    torch_version: str


def block_samples(
    connection: duckdb.DuckDBPyConnection, *, device_key: str | None
) -> tuple[BlockSample, ...]:
    """Kernels that were timed with several block sizes, by device and source.

    Raises:
        StoreError: a source is damaged.
    """
    cursor = connection.execute(
        """
        SELECT b.*, coalesce(g.family, '') AS family, b.sizes::VARCHAR AS sizes_text
        FROM blocks b LEFT JOIN graphs g ON g.key = b.graph_key
        WHERE $device_key IS NULL OR b.device_key = $device_key
        ORDER BY b.device_key, b.source_hash
        """,
        {"device_key": device_key},
    )
    names = [column[0] for column in cursor.description or ()]
    rows = (dict(zip(names, record, strict=True)) for record in cursor.fetchall())
    return tuple(
        block_sample_of(
            row
            | {
                "source": decode_source(row["source"]),
                "sizes": row["sizes_text"],
                "split": split_of(row["family"]),
            }
        )
        for row in rows
    )


def block_sample_of(row: Mapping[str, Any]) -> BlockSample:
    """A sample from its fields by name, the sizes as JSON; other fields are left alone."""
    fields = {name: row[name] for name in BlockSample.__dataclass_fields__}
    return BlockSample(**fields | {"sizes": _sizes.decode(row["sizes"]), "us": tuple(row["us"])})
