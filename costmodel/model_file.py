"""Trained models as files: one JSON text, ``<name>.fusewise.json``, that vouches for itself.

The file holds the trees as LightGBM's text, the networks' weights, what is known of their errors,
and a manifest that says what the model was trained on and for. Nothing is pickled, so reading one
runs no code of whoever wrote it. Which of several models to use is the business of the registry.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fusewise.costmodel.block_model import BlockTrees, block_model
from fusewise.costmodel.calibration import Calibration
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.familiar import Familiar
from fusewise.costmodel.feature_table import FEATURES, FEATURES_DIGEST, FEATURES_VERSION
from fusewise.costmodel.gains import Gains
from fusewise.costmodel.network import Networks
from fusewise.costmodel.trained import TrainedModel
from fusewise.schedule.errors import ModelError

_T = TypeVar("_T")

SUFFIX: Final = ".fusewise.json"
_FORMAT: Final = "fusewise cost model"
#: 2: the difficulty and what is familiar came in; 3: trees see the terms of the roofline; 4: there
#: are networks beside them; 5: these share a scale; 7: some weigh the terms of the roofline.
FORMAT_VERSION: Final = 7
_TRAIN: Final = "train a model with train-costmodel, or choose another file"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was made from, for and with."""

    name: str
    #: Identity of the model, from its trees, networks and calibration.
    id: str
    #: Form of the file: one of another form can be named, but not read.
    format_version: int = FORMAT_VERSION
    #: The device it was trained on, with its rates at that time.
    profile: DeviceProfile
    features_version: int = FEATURES_VERSION
    features_digest: str = FEATURES_DIGEST
    feature_names: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
    #: Keys of other devices whose kernels it was trained on, too.
    companions: tuple[str, ...] = ()
    #: Hash of the kernels trained on, and how many kernels, graphs and families they are.
    dataset_hash: str = ""
    kernels: int = 0
    graphs: int = 0
    families: tuple[str, ...] = ()
    #: Parameters of the estimator, its seed among them.
    parameters: dict[str, bool | int | float | str] = {}
    #: What the evaluation on held-out graphs gave, before the last fit on all rows.
    metrics: dict[str, float | None] = {}
    #: Versions of torch, lightgbm, numpy, fusewise.
    versions: dict[str, str] = {}
    created: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model with its manifest."""

    model: TrainedModel
    manifest: Manifest


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    format_version: int
    #: SHA-256 of ``content`` as it stands in the file.
    checksum: str
    content: msgspec.Raw


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest
    calibration: Calibration
    familiar: Familiar
    difficulty: str
    trees: str
    #: Networks beside the trees, where there are any.
    networks: Networks | None = None
    #: What its predictions may take; models of before had none.
    gains: Gains | None = None
    #: What it knows about block sizes; models of before, and those of CPUs, have none.
    blocks: BlockTrees | None = None


class _ManifestOnly(msgspec.Struct, frozen=True, kw_only=True):
    manifest: Manifest


def check_name(path: Path) -> None:
    """Refuse a path that no model is written to, before there is one.

    Raises:
        ModelError: its name does not end in ``.fusewise.json``.
    """
    if not path.name.endswith(SUFFIX):
        raise ModelError(
            f"the name does not end in {SUFFIX}", subject=str(path), remedy=f"add {SUFFIX}"
        )


def write_model(saved: SavedModel, path: Path) -> None:
    """Write the model to ``path``, which appears complete or not at all.

    Raises:
        ModelError: the file cannot be written, or its name does not end in ``.fusewise.json``.
    """
    check_name(path)
    content = msgspec.json.encode(
        _Content(
            manifest=saved.manifest,
            calibration=saved.model.calibration,
            familiar=saved.model.familiar,
            difficulty=saved.model.difficulty,
            trees=saved.model.trees,
            networks=saved.model.networks,
            gains=saved.model.gains,
            blocks=None if saved.model.blocks is None else saved.model.blocks.kept,
        )
    )
    file = _File(
        format=_FORMAT,
        format_version=FORMAT_VERSION,
        checksum=hashlib.sha256(content).hexdigest(),
        content=msgspec.Raw(content),
    )
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(msgspec.json.encode(file))
        scratch.replace(path)
    except OSError as error:
        raise ModelError(
            f"cannot be written: {error.strerror}",
            subject=str(path),
            remedy="choose a folder that you may write to, with --out",
        ) from error


def read_model(path: Path) -> SavedModel:
    """The model in ``path``; predictions equal those of the model that was written, bit for bit.

    Raises:
        ModelError: the file is missing, damaged, no model, or made for other features. The error
            names the file, what was found and what to do.
    """
    file = _read(path)
    if file.format_version != FORMAT_VERSION:
        raise ModelError(
            f"file format {file.format_version}, this reads format {FORMAT_VERSION}",
            subject=str(path),
            remedy="use the version of fusewise that wrote it, or train it again",
        )
    found = hashlib.sha256(file.content).hexdigest()
    if found != file.checksum:
        raise ModelError(
            f"damaged: its checksum is {found[:12]}, it says {file.checksum[:12]}",
            subject=str(path),
            remedy="copy it again from where it came, or train it again with train-costmodel",
        )
    manifest = _decode(bytes(file.content), _ManifestOnly, path).manifest
    if (manifest.features_version, manifest.features_digest) != (
        FEATURES_VERSION,
        FEATURES_DIGEST,
    ):
        raise ModelError(
            f"made for features version {manifest.features_version} "
            f"({manifest.features_digest}), this is version {FEATURES_VERSION} "
            f"({FEATURES_DIGEST})",
            subject=str(path),
            remedy="train it again with train-costmodel",
        )
    content = _decode(bytes(file.content), _Content, path)
    model = TrainedModel(
        content.trees,
        content.difficulty,
        content.calibration,
        content.familiar,
        networks=content.networks,
        gains=content.gains,
        blocks=block_model(content.blocks, f"model {manifest.name}"),
        name=manifest.name,
    )
    return SavedModel(model, manifest)


def read_manifest(path: Path) -> Manifest:
    """The manifest alone, also of a model for other features or of another form.

    The checksum is not looked at.

    Raises:
        ModelError: the file is missing, cut short or no model.
    """
    file = _read(path)
    manifest = _decode(bytes(file.content), _ManifestOnly, path).manifest
    return msgspec.structs.replace(manifest, format_version=file.format_version)


def _read(path: Path) -> _File:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"cannot be read: {error.strerror}", subject=str(path), remedy=_TRAIN
        ) from error
    file = _decode(data, _File, path)
    if file.format != _FORMAT:
        raise ModelError(
            f"not a fusewise cost model, its format is {file.format!r}",
            subject=str(path),
            remedy=_TRAIN,
        )
    return file


def _decode(data: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        cause = f"not a fusewise cost model: {error}"
        raise ModelError(cause, subject=str(path), remedy=_TRAIN) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(
            f"cut short or no model at all ({len(data)} bytes): {error}",
            subject=str(path),
            remedy="copy it again from where it came, or train it again with train-costmodel",
        ) from error
