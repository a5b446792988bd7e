"""A published dataset: its samples, its problems, and the way into a store.

Opening reads the manifest; a file is checked against its hash before it is first read. Never
writes into the dataset's folder.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.datasets.block_samples import BlockSample, block_sample_of
from fusewise.datasets.columns import BLOCKS, GRAPHS, PUBLISHED
from fusewise.datasets.connecting import connected
from fusewise.datasets.manifest import Manifest, SplitName, check_file, read_manifest
from fusewise.datasets.problem_text import problem_of
from fusewise.datasets.rows import DeviceRow
from fusewise.datasets.samples import (
    KernelSamples,
    ScheduleSamples,
    kernel_samples_of,
    schedule_sample_of,
)
from fusewise.schedule.errors import DatasetError
from fusewise.schedule.problem import Problem

#: Where the datasets that come with the package lie, each in a folder of its name.
SHIPPED: Final = Path(__file__).parent / "published"

#: Problems that are read at a time.
_BATCH: Final = 500

_KERNELS: Final = (
    "features, median_us, spread, low_us, high_us, compiler_us, threads, signature, graph_key, "
    "nodes, family, split, device_key"
)
_SCHEDULES: Final = (
    "id, graph_key, family, split, device_key, threads, schedule, origin, groups, predicted_us, "
    "predicted_low_us, predicted_high_us, median_us, spread, low_us, high_us, error"
)
#: Rows of one split and device, of all for NULL.
_WANTED: Final = (
    "status = 'ok' AND ($split IS NULL OR split = $split) "
    "AND ($device_key IS NULL OR device_key = $device_key)"
)


def shipped_names() -> list[str]:
    """Names of the datasets that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/manifest.json"))


def load(name_or_path: str | os.PathLike[str]) -> Dataset:
    """The dataset of that name that comes with the package, or the one in that folder.

    A name goes before a folder of the same name; write ``./h200`` for the folder.

    Raises:
        DatasetError: there is none of that name, or it is damaged or of a newer schema.
    """
    text = os.fspath(name_or_path)
    names = shipped_names()
    if text in names:
        return Dataset(SHIPPED / text)
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise DatasetError(
            f"there is no dataset {text!r}, but: {', '.join(names) or 'none'}",
            subject="dataset",
            remedy="use one of these, or the folder of one",
        )
    return Dataset(folder)


class Dataset:
    """A published dataset. Get it with :func:`load`."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest in ``folder``.

        Raises:
            DatasetError: it is no dataset, damaged or of a newer schema.
        """
        self.folder = folder.absolute()
        self.manifest: Manifest = read_manifest(folder)
        self._checked: set[str] = set()

    @property
    def name(self) -> str:
        """Its name."""
        return self.manifest.name

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {str(self.folder)!r})"

    def file(self, table: str) -> Path:
        """The Parquet file of a table, checked against its hash.

        Raises:
            DatasetError: there is no such table, or the file is not the one that was published.
        """
        if table not in PUBLISHED:
            raise DatasetError(
                f"there is no table {table!r}",
                subject=f"dataset {self.name}",
                remedy=f"use one of {', '.join(PUBLISHED)}",
            )
        if not self.manifest.has(table):
            raise DatasetError(
                f"it has no {table}",
                subject=f"dataset {self.name}",
                remedy="publish it from a store that was collected into with --block-sizes",
            )
        path = self.folder / f"{table}.parquet"
        if table not in self._checked:
            check_file(path, self.manifest.files[path.name])
            self._checked.add(table)
        return path

    def table(self, table: str) -> dict[str, npt.NDArray[Any]]:
        """All rows of a table, an array for each column; masked where values are missing.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        if self._is_empty(table):
            return {column.name: np.empty(0, dtype=object) for column in PUBLISHED[table]}
        columns = ", ".join(f'"{column.name}"' for column in PUBLISHED[self._known(table)])
        found = self._query(table, columns, "").fetchnumpy()
        return dict(found)

    def records(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table as Python values, None where one is missing.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        if self._is_empty(table):
            return []
        names = [column.name for column in PUBLISHED[self._known(table)]]
        found = self._query(table, ", ".join(f'"{name}"' for name in names), "")
        return [dict(zip(names, record, strict=True)) for record in found.fetchall()]

    def kernels(
        self, *, split: SplitName | None = None, device_key: str | None = None
    ) -> KernelSamples:
        """Measured kernels with features of the dataset's version, of one split and device or all.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        version = self.manifest.features_version
        columns = self._query(
            "kernels",
            _KERNELS,
            f"WHERE {_WANTED} AND features_version = $version",
            {"split": split, "device_key": device_key, "version": version},
        ).fetchnumpy()
        return kernel_samples_of(columns, version)

    def schedules(
        self, *, split: SplitName | None = None, device_key: str | None = None
    ) -> ScheduleSamples:
        """Measured schedules, of one split and device or all.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        wanted = {"split": split, "device_key": device_key}
        found = self._query("schedules", _SCHEDULES, f"WHERE {_WANTED}", wanted).fetchall()
        return ScheduleSamples(tuple(schedule_sample_of(r) for r in found), self.problems)

    def blocks(
        self, *, split: SplitName | None = None, device_key: str | None = None
    ) -> tuple[BlockSample, ...]:
        """Kernels timed with several block sizes, of one split and device or all; may be none.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        return tuple(
            block_sample_of({**row, "source": row["code"]})
            for row in self.records(BLOCKS)
            if split in (None, row["split"]) and device_key in (None, row["device_key"])
        )

    def extern_times(self, device_key: str) -> dict[str, float]:
        """Median microseconds of extern kernels measured on the device, by node signature.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        found = self._query(
            "externs",
            "signature, median_us",
            "WHERE status = 'ok' AND device_key = $device_key",
            {"device_key": device_key},
        ).fetchall()
        return {signature: float(us) for signature, us in found}

    def devices(self) -> list[DeviceRow]:
        """The devices, by key.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        return [
            DeviceRow(
                key=row["key"],
                kind=row["kind"],
                name=row["name"],
                threads=row["threads"],
                profile=msgspec.json.decode(row["profile"]),
                first_seen=self.manifest.created,
            )
            for row in self.records("devices")
        ]

    def problem(self, key: str) -> Problem:
        """The problem of that key: ``graph_key`` of a kernel.

        Raises:
            DatasetError: it was not kept, or as for :meth:`file`.
        """
        if key not in self.problems:
            raise DatasetError(
                f"it has no problem of key {key!r}",
                subject=f"dataset {self.name}",
                remedy="use the graph_key of a kernel, or the problem_key of a schedule",
            )
        return self.problems[key]

    @cached_property
    def problems(self) -> PublishedProblems:
        """All problems, each decoded when it is asked for.

        Raises:
            DatasetError: as for :meth:`file`.
        """
        # The file is one long compressed text: looking a single one up would unpack all of it.
        cursor = self._query(GRAPHS, "key, problem", "WHERE problem IS NOT NULL")
        packed: dict[str, bytes] = {}
        while records := cursor.fetchmany(_BATCH):
            packed.update((key, zlib.compress(text.encode(), 1)) for key, text in records)
        return PublishedProblems(packed)

    def to_store(self, path: str | os.PathLike[str]) -> dict[str, int]:
        """Take all of it into a store, made where there is none; rows taken in, by table.

        What the store has already measured stays and counts beside this; doing it twice changes
        nothing.

        Raises:
            DatasetError: as for :meth:`file`.
            StoreError: the store cannot be opened or written.
        """
        from fusewise.datasets.importing import import_dataset

        return import_dataset(self, path)

    def _is_empty(self, table: str) -> bool:
        """Whether it is a table that the dataset need not have, and has not."""
        return table == BLOCKS and not self.manifest.has(table)

    def _known(self, table: str) -> str:
        self.file(table)
        return table

    def _query(
        self, table: str, columns: str, where: str, parameters: Mapping[str, object] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Rows of a file in the order that they were written in."""
        path = str(self.file(table)).replace("'", "''")
        try:
            # One thread keeps the order, and files are small.
            connection = connected(threads=1)
            return connection.execute(f"SELECT {columns} FROM '{path}' {where}", parameters)
        except duckdb.Error as error:
            raise DatasetError(
                f"cannot be read: {str(error).strip().splitlines()[0]}",
                subject=str(self.file(table)),
                remedy="fetch the dataset again from its source",
            ) from error


class PublishedProblems:
    """Problems as a dataset has them, by key."""

    def __init__(self, packed: Mapping[str, bytes]) -> None:
        """``packed`` is zlib over the text of each."""
        self._packed = packed

    def __contains__(self, key: object) -> bool:
        return key in self._packed

    def __getitem__(self, key: str) -> Problem:
        return problem_of(zlib.decompress(self._packed[key]).decode(), key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)
