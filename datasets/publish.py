"""Publishing: from a store to the Parquet files of a dataset that is shipped.

Only graphs of a corpus go out, with a family to split by and a source to name; what a user's own
program left in the store stays there. Files are sorted so that like stands by like and compressed
as far as it goes: they are written once and fetched many times. Never changes the store.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import duckdb
import msgspec

from fusewise.datasets import published_rows
from fusewise.datasets.card import card
from fusewise.datasets.columns import BLOCKS, FILES, GRAPHS, PUBLISHED
from fusewise.datasets.connecting import connected
from fusewise.datasets.counts import counted
from fusewise.datasets.kernel_class import UNKNOWN, kernel_class
from fusewise.datasets.manifest import (
    CARD,
    MANIFEST,
    FeatureColumn,
    FileEntry,
    Manifest,
    file_entry,
    write_manifest,
)
from fusewise.datasets.problem_text import problem_text, publishable, without_machine_paths
from fusewise.datasets.rows import DeviceKind, DeviceRow, decode_problem, decode_source
from fusewise.datasets.splits import split_of
from fusewise.datasets.store import Store
from fusewise.schedule.errors import DatasetError
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice, problem_key

#: The highest of zstd that needs no gigabytes. Writing 100 MB of problems takes minutes then,
#: reading them is as fast as ever.
_LEVEL: Final = 19
#: For the drafts, which are written while others wait for the store.
_QUICK: Final = 1
#: Problems that are decoded at a time.
_BATCH: Final = 200

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")

#: What rows of a table are sorted by: whole, so that equal stores give equal files.
_ORDER: Final = {
    "kernels": "device_key, family, source, graph_key, nodes, signature",
    GRAPHS: "family, source, key",
    "schedules": "device_key, family, source, graph_key, id",
    "externs": "device_key, graph_key, signature",
    BLOCKS: "device_key, family, source, graph_key, name, source_hash",
    "devices": "key",
}


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What came of publishing."""

    folder: str
    manifest: Manifest
    #: Measured on the devices, but of graphs of no corpus: kernels and schedules.
    left_out: dict[str, int]


class _Lowering(msgspec.Struct, frozen=True):
    """The part of a schedule that says which problem it is over."""

    lowering: tuple[Choice, ...] = ()


def publish(
    store: Store,
    name: str,
    out: str | os.PathLike[str],
    *,
    devices: Sequence[str] = (),
    kind: DeviceKind | None = None,
    features: Mapping[int, Sequence[FeatureColumn]] | None = None,
) -> Published:
    """Write what was measured on some devices as the dataset ``name`` into the folder ``out``.

    Equal stores give equal bytes. A dataset that is in the folder already is replaced, once the
    new one is complete.

    Args:
        store: where from.
        name: letters, digits and underscores; what the dataset is loaded by.
        out: the folder, made where it is not there.
        devices: their keys; none for all of ``kind``.
        kind: of the devices; None where the store has one kind only.
        features: columns of the feature table by version, to be told in the manifest.

    Raises:
        DatasetError: nothing was measured on the devices, one is unknown, features are of several
            versions, the name is none, or the folder holds something else or cannot be written.
        StoreError: the store cannot be read.
    """
    if not _NAME.fullmatch(name):
        raise DatasetError(
            f"{name!r} is no name for a dataset",
            subject="dataset",
            remedy="use lower-case letters, digits and underscores, a letter first",
        )
    target = Path(out).absolute()
    _check_free(target)
    keys = _chosen(store, devices, kind)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        with store.reading() as connection:
            _stage(connection, keys)
            _check_kernels(connection, keys, store)
            for table in PUBLISHED:
                _draft(connection, table, scratch)
            left_out = published_rows.left_out(connection)
            manifest = counted(connection, name, features or {})
        files = {f"{table}.parquet": _pack(table, scratch) for table in PUBLISHED}
        for file in [name for name, entry in files.items() if not entry.rows]:
            if file not in FILES:
                del files[file]
                (scratch / file).unlink()
        manifest = msgspec.structs.replace(manifest, files=dict(sorted(files.items())))
        write_manifest(manifest, scratch)
        (scratch / CARD).write_text(card(manifest), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        scratch.replace(target)
    except (OSError, duckdb.Error) as error:
        raise DatasetError(
            f"cannot be written: {' '.join(str(error).split())}",
            subject=str(target),
            remedy="give a folder that can be written, with --out",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Published(folder=str(target), manifest=manifest, left_out=left_out)


def _check_free(target: Path) -> None:
    """Nothing but an older dataset is overwritten."""
    is_free = target.is_dir() and (
        (target / MANIFEST).is_file() or next(target.iterdir(), None) is None
    )
    if target.exists() and not is_free:
        raise DatasetError(
            "holds something else than a dataset",
            subject=str(target),
            remedy="give another folder, with --out",
        )


def _chosen(store: Store, wanted: Sequence[str], kind: DeviceKind | None) -> list[str]:
    """Keys of the devices to publish."""
    present = {row.key: row for row in store.devices()}
    told = ", ".join(present) or "none"
    for key in wanted:
        if key not in present:
            raise _refused(store, f"it has no device {key!r}, but: {told}", "name one of these")
        if kind is not None and present[key].kind != kind:
            raise _refused(store, f"device {key} is no {kind} device", "leave out one of the two")
    if wanted:
        return sorted(set(wanted))
    chosen: list[DeviceRow] = [row for row in present.values() if kind in (None, row.kind)]
    if len({row.kind for row in chosen}) > 1:
        raise _refused(
            store, f"it has devices of two kinds: {told}", "choose with --kind or --device"
        )
    if not chosen:
        raise _refused(store, f"it has no {kind or ''} device".replace("  ", " "), "collect first")
    return sorted(row.key for row in chosen)


def _refused(store: Store, cause: str, remedy: str) -> DatasetError:
    return DatasetError(cause, subject=f"store {store.path}", remedy=remedy)


def _check_kernels(
    connection: duckdb.DuckDBPyConnection, keys: Sequence[str], store: Store
) -> None:
    """There are some, and all that can have features of the newest version do.

    The others would be lost to who loads the dataset.
    """
    found = connection.execute(
        "SELECT features_version, count(*), count(*) FILTER (graph_key IN "
        "(SELECT key FROM graphs WHERE problem IS NOT NULL)) "
        "FROM out_kernels WHERE status = 'ok' GROUP BY ALL ORDER BY 1"
    ).fetchall()
    if not found:
        raise _refused(
            store,
            f"no kernel of a corpus was measured on {', '.join(keys)}",
            "collect from a corpus on that device first",
        )
    *older, (newest, _, _) = found
    if outdated := sum(renewable for _, _, renewable in older):
        raise _refused(
            store,
            f"{outdated} of its {sum(count for _, count, _ in found)} kernels to publish have no "
            f"features of version {newest}, as after a merge of stores whose devices have other "
            "rates",
            "compute them anew first, with fusewise store features",
        )


def _stage(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> None:
    """Make the temporary tables ``out_*``, one for each file, with the columns to sort by."""
    published_rows.prepare(connection, keys, without_machine_paths)
    families = [row[0] for row in connection.execute("SELECT DISTINCT family FROM kept").fetchall()]
    _mapping(connection, "split_of", [(family, split_of(family)) for family in families])
    for table in ("schedules", "externs", "devices"):
        published_rows.stage(connection, table)
    schedules = connection.execute("SELECT graph_key, schedule FROM out_schedules").fetchall()
    needed = {
        problem_key(graph, msgspec.json.decode(text, type=_Lowering).lowering)
        for graph, text in schedules
    }
    needed |= _stage_sources(connection)
    published_rows.need(connection, sorted(needed))
    published_rows.stage(connection, BLOCKS)
    _stage_problems(connection)
    published_rows.stage(connection, "kernels")
    published_rows.stage(connection, GRAPHS)


def _stage_sources(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Unpack the sources of kernels with block sizes; keys of the graphs that they are of.

    One that names a folder of the machine stays, though none is known to.
    """
    found = connection.execute(published_rows.BLOCK_SOURCES).fetchall()
    codes = {key: decode_source(stored) for key, stored, _ in found}
    kept = {key: code for key, code in codes.items() if code == without_machine_paths(code)}
    _mapping(connection, "code_of", sorted(kept.items()))
    return {graph for key, _, graph in found if key in kept}


def _stage_problems(connection: duckdb.DuckDBPyConnection) -> None:
    """Rewrite the problems that are needed, and tell the kernels taken from each by class."""
    groups: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for signature, key, nodes in connection.execute(published_rows.KERNEL_NODES).fetchall():
        groups[key].append((signature, msgspec.json.decode(nodes)))
    keys = [row[0] for row in connection.execute(published_rows.NEEDED_PROBLEMS).fetchall()]
    _mapping(connection, "text_of", [])
    classes: list[tuple[str, str]] = []
    for start in range(0, len(keys), _BATCH):
        stored = connection.execute(
            "SELECT key, problem FROM graphs WHERE list_contains(?, key)",
            [keys[start : start + _BATCH]],
        ).fetchall()
        texts = []
        for key, encoded in stored:
            problem: Problem = publishable(decode_problem(encoded))
            texts.append((key, problem_text(problem)))
            classes += [(sig, kernel_class(problem, nodes)) for sig, nodes in groups.pop(key, ())]
        _insert(connection, "text_of", texts)
    classes += [(sig, UNKNOWN) for members in groups.values() for sig, _ in members]
    # Kernels of equal signature on several devices have been taken from equal nodes.
    _mapping(connection, "class_of", sorted(dict(classes).items()))


def _mapping(
    connection: duckdb.DuckDBPyConnection, name: str, pairs: Iterable[tuple[str, str]]
) -> None:
    """The temporary table ``name`` of ``key`` and ``value``."""
    connection.execute(f"CREATE TEMP TABLE {name} (key VARCHAR PRIMARY KEY, value VARCHAR)")
    _insert(connection, name, list(pairs))


def _insert(
    connection: duckdb.DuckDBPyConnection, name: str, pairs: Sequence[tuple[str, str]]
) -> None:
    if pairs:
        keys, values = zip(*pairs, strict=True)
        connection.execute(
            f"INSERT INTO {name} SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[])",
            [list(keys), list(values)],
        )


def _draft(connection: duckdb.DuckDBPyConnection, table: str, folder: Path) -> None:
    """Write the rows of a table, in their order."""
    columns = ", ".join(f'"{c.name}"::{c.type} AS "{c.name}"' for c in PUBLISHED[table])
    rows = f"SELECT {columns} FROM out_{table} ORDER BY {_ORDER[table]}"
    _copy(connection, rows, folder / f"{table}.draft", _QUICK)


def _pack(table: str, folder: Path) -> FileEntry:
    """Write the file of a table from its draft."""
    draft, path = folder / f"{table}.draft", folder / f"{table}.parquet"
    source = f"read_parquet({_quoted(draft)})"
    # One thread keeps the order.
    with connected(threads=1) as connection:
        _copy(connection, f"SELECT * FROM {source}", path, _LEVEL)
        counted_rows = connection.execute(f"SELECT count(*) FROM {source}").fetchone()
    draft.unlink()
    return file_entry(path, int(counted_rows[0]) if counted_rows else 0)


def _copy(connection: duckdb.DuckDBPyConnection, rows: str, path: Path, level: int) -> None:
    connection.execute(
        f"COPY ({rows}) TO {_quoted(path)} "
        f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {level})"
    )


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
