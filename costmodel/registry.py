"""Which model to use: by name, by path, or the best one there is for a device.

Looks in ``<home>/models/``, then among the models that come with the package. It neither trains
nor changes a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fusewise.costmodel.borrowed import BorrowedModel, distance
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES_DIGEST, FEATURES_VERSION
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.model_file import (
    FORMAT_VERSION,
    SUFFIX,
    Manifest,
    SavedModel,
    read_manifest,
    read_model,
    write_model,
)
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.errors import ModelError

_PRETRAINED = Path(__file__).parent / "pretrained"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be asked for by name."""

    name: str
    path: Path
    manifest: Manifest
    #: Whether it came with the package.
    shipped: bool

    @property
    def usable(self) -> bool:
        """Whether it is of this form, and was made for the features of this version."""
        m = self.manifest
        return (m.format_version, m.features_version, m.features_digest) == (
            FORMAT_VERSION,
            FEATURES_VERSION,
            FEATURES_DIGEST,
        )


def list_models(home: Path) -> list[ModelEntry]:
    """Models in ``<home>/models/``, newest first, then the shipped ones, newest first.

    Raises:
        ModelError: a file among them is damaged.
    """
    entries: list[ModelEntry] = []
    for folder, shipped in ((home / "models", False), (_PRETRAINED, True)):
        found = [
            ModelEntry(_stem(path), path, read_manifest(path), shipped) for path in _files(folder)
        ]
        entries += sorted(found, key=lambda e: (e.manifest.created, e.name), reverse=True)
    return entries


def load_model(name_or_path: str | None, profile: DeviceProfile, home: Path) -> CostModel:
    """The cost model to use on the device of ``profile``.

    ``None`` takes the newest model trained for the device's key in ``<home>/models/``, else a
    shipped one for that key, else one that was trained on its kernels too, else the shipped one of
    the nearest device of its kind, else the roofline. ``"roofline"`` takes that. Any other text is
    a name that :func:`list_models` gives or a path. A model of another device of the same kind is
    borrowed, which its name, the source of its predictions and their intervals say; one of another
    kind gives its roofline.

    Raises:
        ModelError: no such model, or a file that :func:`read_model` refuses.
    """
    if name_or_path == Roofline.name:
        return Roofline(profile)
    if name_or_path is not None:
        return _on(read_model(find_model(name_or_path, home)), profile)
    entries = [entry for entry in list_models(home) if entry.usable]
    for entry in entries:
        if entry.manifest.profile.key == profile.key:
            return read_model(entry.path).model
    for entry in entries:
        if profile.key in entry.manifest.companions:
            return read_model(entry.path).model
    apart = [
        (distance(entry.manifest.profile, profile), at)
        for at, entry in enumerate(entries)
        if entry.shipped and entry.manifest.profile.kind == profile.kind
    ]
    if not apart:
        return Roofline(profile)
    return _on(read_model(entries[min(apart)[1]].path), profile)


def _on(saved: SavedModel, profile: DeviceProfile) -> CostModel:
    """The model on the device of ``profile``, be it the one that it was trained on or not."""
    trained = saved.manifest.profile
    known = {trained.key, *saved.manifest.companions}
    if profile.key in known or trained.kind != profile.kind:
        return saved.model
    return BorrowedModel(saved.model, trained, profile)


def find_model(name_or_path: str, home: Path) -> Path:
    """File of the model ``name_or_path``, which need not exist where a path is given.

    Raises:
        ModelError: a name that nothing has; it lists the ones there are.
    """
    if name_or_path.endswith(SUFFIX) or os.sep in name_or_path:
        return Path(name_or_path).expanduser()
    # By file name, so that a damaged neighbour does not stand in the way.
    files = [*_files(home / "models"), *_files(_PRETRAINED)]
    for path in files:
        if _stem(path) == name_or_path:
            return path
    known = ", ".join([Roofline.name, *sorted({_stem(path) for path in files})])
    raise ModelError(
        f"no model {name_or_path!r}, there are: {known}",
        subject="model",
        remedy=f"use one of these, a path that ends in {SUFFIX}, or train one with train-costmodel",
    )


def save_model(saved: SavedModel, home: Path, path: Path | None = None) -> Path:
    """Write the model to ``<home>/models/<name>.fusewise.json``, or to ``path``; gives the file.

    Raises:
        ModelError: it cannot be written.
    """
    target = path or home / "models" / f"{saved.manifest.name}{SUFFIX}"
    write_model(saved, target)
    return target


def _files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob(f"*{SUFFIX}")))


def _stem(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)
