"""The base of an adaptation: a shipped or own model with the kernels that it was trained on.

Finds and reads; what is made of it is ``adapt.py``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusewise.costmodel.borrowed import distance
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.learned import estimator_for
from fusewise.costmodel.model_file import SUFFIX, read_model
from fusewise.costmodel.registry import list_models
from fusewise.costmodel.trained import TrainedModel
from fusewise.datasets.dataset import load, shipped_names
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import split_groups
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.adapt import Base
from fusewise.training.refeature import profile_of
from fusewise.training.source import DatasetSource, Source, StoreSource
from fusewise.training.split import Labels, take


def open_base(
    name: str,
    home: Path,
    adapted: DeviceProfile,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Base:
    """The base of that name: of a dataset (``h200``), or the path of a dataset, store or model.

    Its kernels are those of the train split, of one device: of several, the one that is most like
    the device which is adapted to. A model is taken with the dataset that has its name; a dataset
    or store with the model that has its name, else one is trained.

    Args:
        name: see above.
        home: folder whose ``models/`` is looked into, beside the shipped models.
        adapted: the device that is adapted to.
        seed: of the training, where there has to be one.
        progress: told in a few words what is being done.

    Raises:
        ModelError: there is no such base, it has no kernels of this kind of device, or was made
            for other features.
        DatasetError: its dataset is damaged.
        StoreError: its store cannot be read.
    """
    progress(f"reading the base {name}")
    if name.endswith(SUFFIX):
        saved = read_model(Path(name).expanduser())
        source = _dataset(saved.manifest.name, home, f"model {name}")
        samples, labels = _kernels(source, saved.manifest.profile)
        return Base(name, saved.manifest.profile, saved.model, samples, labels, source.problems())
    path = Path(name).expanduser()
    if path.is_file():
        # Kernels and problems are in memory once they are read.
        with Store.open(path) as store:
            return _of_source(StoreSource(store), name, home, adapted, seed, progress)
    found = _dataset(name, home, f"--base {name}")
    return _of_source(found, name, home, adapted, seed, progress)


def open_device(
    key: str, source: Source, *, seed: int = 0, progress: Callable[[str], None] = lambda _: None
) -> Base:
    """The base of another device of the same ``source``: of its kernels of the train split.

    A model is trained on them: that which is kept for the device may have seen others, too.

    Raises:
        ModelError: the device has no kernels of the train split, or too few.
    """
    (row,) = [row for row in source.devices() if row.key == key]
    profile = profile_of(row, source.subject)
    samples, labels = _kernels(source, profile)
    progress(f"training the base on {len(samples)} kernels")
    return base_of(key, profile, samples, labels, source, seed=seed)


def base_of(
    name: str,
    profile: DeviceProfile,
    samples: KernelSamples,
    labels: Labels,
    source: Source,
    *,
    seed: int = 0,
) -> Base:
    """A base of kernels at hand: a model is trained on them.

    Raises:
        ModelError: they are too few.
    """
    estimator = estimator_for(profile.kind, seed=seed)
    estimator.fit(samples.features, samples.median_us, labels)
    return Base(name, profile, estimator.model_, samples, labels, source.problems())


def _of_source(
    source: Source,
    name: str,
    home: Path,
    adapted: DeviceProfile,
    seed: int,
    progress: Callable[[str], None],
) -> Base:
    measured = source.measured_devices()
    rows = [row for row in source.devices() if row.key in measured and row.kind == adapted.kind]
    if not rows:
        raise ModelError(
            f"it has kernels of {', '.join(measured) or 'no device'}, the base of a {adapted.kind} "
            "device has to be another one",
            subject=source.subject,
            remedy=f"use a base with kernels of a {adapted.kind} device as --base",
        )
    profiles = [profile_of(row, source.subject) for row in rows]
    profile = min(profiles, key=lambda each: (distance(each, adapted), each.key))
    samples, labels = _kernels(source, profile)
    model = _model_of(name, profile, home)
    if model is None:
        progress(f"training the base on {len(samples)} kernels")
        return base_of(name, profile, samples, labels, source, seed=seed)
    return Base(name, profile, model, samples, labels, source.problems())


def _dataset(name: str, home: Path, subject: str) -> Source:
    known = shipped_names()
    if name not in known and not Path(name).expanduser().is_dir():
        raise ModelError(
            "the kernels that it was trained on are not at hand, and without them nothing can be "
            f"adapted; there are the datasets: {', '.join(known) or 'none'}",
            subject=subject,
            remedy="use one of these as --base, or the path of a dataset or store",
        )
    return DatasetSource(load(name), home)


def _kernels(source: Source, profile: DeviceProfile) -> tuple[KernelSamples, Labels]:
    """Kernels of the train split, and their family or graph."""
    samples = source.kernels(profile)
    samples = take(samples, np.asarray(samples.split == "train"))
    if not len(samples):
        raise ModelError(
            "none of its kernels is of the train split",
            subject=source.subject,
            remedy="use another base as --base",
        )
    return samples, np.array(split_groups(samples.family, samples.graph_key), dtype=np.object_)


def _model_of(name: str, profile: DeviceProfile, home: Path) -> TrainedModel | None:
    """The model of that name that knows the device, where there is one of these features."""
    for entry in list_models(home):
        known = (entry.manifest.profile.key, *entry.manifest.companions)
        if entry.name == name and profile.key in known and entry.usable:
            return read_model(entry.path).model
    return None
