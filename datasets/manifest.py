"""The manifest of a published dataset: what is in it, and by which hashes its files are known.

Everything in it follows from the rows, the moment of the newest measurement included: the same
store published twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from fusewise.datasets.columns import FILES, SCHEMA_VERSION
from fusewise.schedule.errors import DatasetError

MANIFEST: Final = "manifest.json"
CARD: Final = "CARD.md"
_FORMAT: Final = "fusewise dataset"

SplitName = Literal["train", "test"]
Name = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]


class FeatureColumn(NamedTuple):
    """One feature of the kernels: name, unit and definition."""

    name: str
    unit: str
    definition: str


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    rows: int
    bytes: int
    sha256: str


class DeviceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A device, with how many things were measured on it; failed ones are counted apart."""

    key: str
    kind: Literal["cpu", "cuda"]
    name: str
    threads: int
    kernels: int
    kernels_failed: int
    schedules: int
    schedules_failed: int
    externs: int
    #: Kernels that were timed with several block sizes.
    blocks: int = 0


class KernelCount(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that ran, of one class and split."""

    device_key: str
    kernel_class: str
    split: SplitName
    kernels: int


class FamilyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A family with what it holds."""

    split: SplitName
    graphs: int
    kernels: int
    schedules: int


class CorpusEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs of one corpus under one licence ("" where each program has its own)."""

    corpus: str
    licence: str
    graphs: int


class Repeatability(msgspec.Struct, frozen=True, kw_only=True):
    """How far medians agree that were taken anew, of kernels of at least 5 us."""

    #: Kernels that were measured more than once.
    kernels: int
    #: Part of them whose largest median is at most 5 % above the smallest; None for no kernels.
    within_5_percent: float | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a dataset holds."""

    format: str = _FORMAT
    schema_version: int = SCHEMA_VERSION
    name: Name
    #: When the newest measurement was taken, UTC.
    created: datetime
    features_version: int
    #: The features in the order of the numbers; empty where they are of another fusewise.
    features: tuple[FeatureColumn, ...]
    torch_versions: tuple[str, ...]
    devices: tuple[DeviceEntry, ...]
    graphs: int
    #: Graphs whose problem was kept.
    problems: int
    kernels: tuple[KernelCount, ...]
    families: dict[str, FamilyEntry]
    corpora: tuple[CorpusEntry, ...]
    repeatability: Repeatability
    files: dict[str, FileEntry]

    def has(self, table: str) -> bool:
        """Whether the dataset has a table."""
        return f"{table}.parquet" in self.files

    def kernels_of(self, split: SplitName) -> int:
        """Kernels of the split that ran."""
        return sum(count.kernels for count in self.kernels if count.split == split)


class _Head(msgspec.Struct, frozen=True):
    """What is read before anything else: newer manifests may have other fields."""

    format: str
    schema_version: int


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write ``manifest.json`` into ``folder``."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``. The files themselves are not looked at.

    Raises:
        DatasetError: there is none, or it is damaged or of another form.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DatasetError(
            f"is no dataset: its {MANIFEST} cannot be read: {error.strerror or error}",
            subject=str(folder),
            remedy="give a folder that fusewise dataset publish has made",
        ) from error
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format == _FORMAT and head.schema_version != SCHEMA_VERSION:
            newer = head.schema_version > SCHEMA_VERSION
            raise DatasetError(
                f"has schema version {head.schema_version}, this fusewise knows {SCHEMA_VERSION}",
                subject=str(path),
                remedy="upgrade fusewise" if newer else "publish it again from its store",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"is damaged: {error}") from error
    missing = sorted(set(FILES) - set(manifest.files))
    if manifest.format != _FORMAT or missing:
        what = f"names no {missing[0]}" if missing else f"is of format {manifest.format!r}"
        raise _damaged(path, what)
    return manifest


def file_entry(path: Path, rows: int) -> FileEntry:
    """The entry of a file that was just written."""
    return FileEntry(rows=rows, bytes=path.stat().st_size, sha256=_sha256(path))


def check_file(path: Path, entry: FileEntry) -> None:
    """Check that the file is the one that was published.

    Raises:
        DatasetError: it is missing or another one.
    """
    try:
        found, size = _sha256(path), path.stat().st_size
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror or error}") from error
    if found != entry.sha256:
        raise _damaged(
            path,
            f"is damaged: {size} bytes with SHA-256 {found[:12]}, "
            f"the manifest says {entry.bytes} with {entry.sha256[:12]}",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(path: Path, cause: str) -> DatasetError:
    return DatasetError(cause, subject=str(path), remedy="fetch the dataset again from its source")
