"""Where samples come from: a store of one's own, or a published dataset.

A source says what there is to train on and by what a model is judged; it fits and scores nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.datasets.block_samples import BlockSample
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.rows import DeviceRow, ModelRow
from fusewise.datasets.samples import KernelSamples, Problems, ScheduleSamples
from fusewise.datasets.store import Store, default_store_path
from fusewise.schedule.errors import ModelError
from fusewise.training.refeature import features_of
from fusewise.training.split import Holdout, concatenate, hold_out, published_holdout, take


class Source(Protocol):
    """Something that samples come from."""

    @property
    def subject(self) -> str:
        """What errors name it by."""
        ...

    @property
    def home(self) -> Path:
        """Folder whose ``models/`` a trained model is saved in."""
        ...

    def devices(self) -> list[DeviceRow]:
        """All devices that it knows."""
        ...

    def measured_devices(self) -> list[str]:
        """Keys of the devices that it has measured kernels of, those of the most first."""
        ...

    def kernels(self, profile: DeviceProfile) -> KernelSamples:
        """Measured kernels of the device with features of this version.

        Raises:
            ModelError: there are none; it says what there is instead.
        """
        ...

    def hold_out(self, samples: KernelSamples, *, seed: int, families: Collection[str]) -> Holdout:
        """Which of the kernels to fit to, and which to judge by.

        Raises:
            ModelError: one side has no kernels.
        """
        ...

    def schedules(self, device_key: str) -> ScheduleSamples:
        """Measured schedules of the device that a model may be judged by."""
        ...

    def all_schedules(self, device_key: str) -> ScheduleSamples:
        """Measured schedules of the device, those to learn from and those to judge by."""
        ...

    def blocks(self, device_key: str) -> tuple[BlockSample, ...]:
        """Triton kernels that were timed with several block sizes on the device."""
        ...

    def problems(self) -> Problems:
        """The problems that kernels were taken from, by their key."""
        ...

    def programs(self) -> dict[str, str]:
        """Names of the programs that graphs were taken from, by the graphs' keys."""
        ...

    def extern_times(self, device_key: str) -> dict[str, float]:
        """Median microseconds of extern kernels on the device, by node signature."""
        ...

    def model_name(self, device_key: str, model_id: str, created: datetime) -> str:
        """What a model trained on it is called."""
        ...

    def created(self) -> datetime:
        """When a model trained on it is said to be made."""
        ...

    def record(self, row: ModelRow) -> None:
        """Note that a model was trained on it."""
        ...


@dataclass(frozen=True)
class StoreSource:
    """A store: split like published data where families are known, and told of the models."""

    store: Store

    @property
    def subject(self) -> str:
        """See :class:`Source`."""
        return f"store {self.store.path}"

    @property
    def home(self) -> Path:
        """The store's folder."""
        return self.store.path.parent

    def devices(self) -> list[DeviceRow]:
        """See :class:`Source`."""
        return self.store.devices()

    def measured_devices(self) -> list[str]:
        """See :class:`Source`."""
        counts = Counter(map(str, self.store.kernel_samples().device_key))
        return sorted(counts, key=lambda key: (-counts[key], key))

    def kernels(self, profile: DeviceProfile) -> KernelSamples:
        """See :class:`Source`. Features of another version are computed anew."""
        with self.store.reading() as connection:
            found = connection.execute(
                "SELECT DISTINCT features_version FROM kernels WHERE device_key = ? ORDER BY 1",
                [profile.key],
            ).fetchall()
        parts = []
        for (version,) in found:
            part = self.store.kernel_samples(features_version=version, device_key=profile.key)
            if version != FEATURES_VERSION and len(part):
                part = _with_features(part, profile, self.problems())
            parts.append(part)
        return _usable(concatenate([part for part in parts if len(part)]), profile, self)

    def hold_out(self, samples: KernelSamples, *, seed: int, families: Collection[str]) -> Holdout:
        """See :func:`fusewise.training.split.hold_out`."""
        return hold_out(samples, seed=seed, families=families, subject=self.subject)

    def schedules(self, device_key: str) -> ScheduleSamples:
        """See :class:`Source`."""
        return self.store.schedule_samples(device_key=device_key)

    def all_schedules(self, device_key: str) -> ScheduleSamples:
        """See :class:`Source`."""
        return self.store.schedule_samples(device_key=device_key)

    def blocks(self, device_key: str) -> tuple[BlockSample, ...]:
        """See :class:`Source`."""
        return self.store.block_samples(device_key=device_key)

    def problems(self) -> Problems:
        """See :class:`Source`."""
        return self.store.problems()

    def programs(self) -> dict[str, str]:
        """See :class:`Source`."""
        with self.store.reading() as connection:
            return dict(connection.execute("SELECT key, source FROM graphs").fetchall())

    def extern_times(self, device_key: str) -> dict[str, float]:
        """See :class:`Source`."""
        return self.store.extern_times(device_key)

    def model_name(self, device_key: str, model_id: str, created: datetime) -> str:
        """Device, moment and model."""
        return f"{device_key}-{created:%Y%m%dT%H%M%S}-{model_id[-8:]}"

    def created(self) -> datetime:
        """Now."""
        return datetime.now(UTC)

    def record(self, row: ModelRow) -> None:
        """See :class:`Source`."""
        self.store.append(row)
        self.store.ingest()


@dataclass(frozen=True)
class DatasetSource:
    """A published dataset: its split is its own, and equal trainings give equal files."""

    dataset: Dataset
    #: The folder of one's own store: a dataset's is not written to.
    home: Path

    @property
    def subject(self) -> str:
        """See :class:`Source`."""
        return f"dataset {self.dataset.name}"

    def devices(self) -> list[DeviceRow]:
        """See :class:`Source`."""
        return self.dataset.devices()

    def measured_devices(self) -> list[str]:
        """See :class:`Source`."""
        devices = self.dataset.manifest.devices
        ranked = sorted(devices, key=lambda device: (-device.kernels, device.key))
        return [device.key for device in ranked if device.kernels]

    def kernels(self, profile: DeviceProfile) -> KernelSamples:
        """See :class:`Source`. Features of another version are computed anew."""
        samples = self.dataset.kernels(device_key=profile.key)
        if len(samples) and samples.features_version != FEATURES_VERSION:
            samples = _with_features(samples, profile, self.dataset.problems)
        return _usable(samples, profile, self)

    def hold_out(self, samples: KernelSamples, *, seed: int, families: Collection[str]) -> Holdout:
        """The published split; nothing is drawn."""
        del seed, families
        return published_holdout(samples, self.subject)

    def schedules(self, device_key: str) -> ScheduleSamples:
        """Those of the test split."""
        return self.dataset.schedules(split="test", device_key=device_key)

    def all_schedules(self, device_key: str) -> ScheduleSamples:
        """See :class:`Source`."""
        return self.dataset.schedules(device_key=device_key)

    def blocks(self, device_key: str) -> tuple[BlockSample, ...]:
        """See :class:`Source`."""
        return self.dataset.blocks(device_key=device_key)

    def problems(self) -> Problems:
        """See :class:`Source`."""
        return self.dataset.problems

    def programs(self) -> dict[str, str]:
        """See :class:`Source`."""
        return {row["key"]: row["source"] for row in self.dataset.records("graphs")}

    def extern_times(self, device_key: str) -> dict[str, float]:
        """See :class:`Source`."""
        return self.dataset.extern_times(device_key)

    def model_name(self, device_key: str, model_id: str, created: datetime) -> str:
        """Device, dataset and model."""
        del created
        return f"{device_key}-{self.dataset.name}-{model_id[-8:]}"

    def created(self) -> datetime:
        """When the dataset was: the same dataset and seed give the same file, whenever."""
        return self.dataset.manifest.created

    def record(self, row: ModelRow) -> None:
        """Nothing: the file is all there is."""


def source_of(data: Store | Dataset, home: Path | None = None) -> Source:
    """``data`` as a source; ``home`` is where models of a dataset go, by default your own folder.

    Raises:
        StoreError: the folder cannot be told.
    """
    if isinstance(data, Store):
        return StoreSource(data)
    return DatasetSource(data, home or default_store_path().parent)


def _with_features(
    samples: KernelSamples, profile: DeviceProfile, problems: Problems
) -> KernelSamples:
    """The samples with features of this version; nan where the problem was not kept."""
    features = features_of(problems, profile, samples.graph_key, list(samples.nodes))
    return dataclasses.replace(samples, features=features, features_version=FEATURES_VERSION)


def _usable(samples: KernelSamples | None, profile: DeviceProfile, source: Source) -> KernelSamples:
    """The samples with finite features.

    Raises:
        ModelError: there are none, or they have another number of features.
    """
    if samples is None or not len(samples):
        others = ", ".join(source.measured_devices()) or "no other device either"
        raise ModelError(
            f"it has no measured kernels on {profile.key}, but on {others}",
            subject=source.subject,
            remedy="choose a device with --device, or collect on this one",
        )
    if samples.features.shape[1] != len(FEATURES):
        raise ModelError(
            f"its kernels have {samples.features.shape[1]} features, version "
            f"{FEATURES_VERSION} has {len(FEATURES)}",
            subject=source.subject,
            remedy="collect them again, or compute their features anew",
        )
    finite = np.asarray(np.isfinite(samples.features).all(axis=1))
    if not finite.any():
        raise ModelError(
            f"its {len(samples)} kernels have features of another version than "
            f"{FEATURES_VERSION}, and the problems to compute them anew from were not kept",
            subject=source.subject,
            remedy="collect them again with this fusewise",
        )
    return take(samples, finite)
