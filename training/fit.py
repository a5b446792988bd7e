"""Train, judge and keep a cost model: the work behind ``train-costmodel``, without a terminal.

Judged on held-out families or graphs first, then fitted to everything and saved: what is reported
is what the estimator does on graphs it has not seen, what is kept has seen all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES, FEATURES_VERSION
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import save_model
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.trained import TrainedModel
from fusewise.datasets.rows import ModelRow
from fusewise.datasets.samples import KernelSamples, ScheduleSamples
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.evaluate import Scores, merge, score_kernels, score_schedules
from fusewise.training.split import hold_out, take
from fusewise.training.tune import tune

Progress = Callable[[str], None]


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a training or an evaluation."""

    device: str
    #: ``family`` or ``graph``: what was held out whole. ``unseen families`` or ``all`` where an
    #: existing model was evaluated.
    split: Literal["family", "graph", "unseen families", "all"]
    n_train: int
    #: Scores on the held-out kernels and schedules, of the model and of the roofline.
    model: Scores
    roofline: Scores
    #: Parameters that tuning settled on; empty where there was none.
    tuned: dict[str, bool | int | float | str] = {}
    model_id: str = ""
    #: File of the model, "" where none was written.
    path: str = ""


def train(
    store: Store,
    profile: DeviceProfile,
    *,
    seed: int = 0,
    hold_out_families: Collection[str] = (),
    tune_trials: int = 0,
    out: Path | None = None,
    progress: Progress = lambda _: None,
) -> TrainingReport:
    """Train on the store's kernels of the device of ``profile``, judge, save and record.

    Args:
        store: where samples come from and the model is recorded; the model is saved in
            ``models/`` beside it.
        profile: of the device to train for.
        seed: of the split and the estimator; equal stores and seeds give equal models.
        hold_out_families: families to judge by, which are not trained on in the end either;
            a quarter of all where none are named.
        tune_trials: Optuna trials over the estimator's parameters, on the training part only.
        out: file to save the model to instead.
        progress: told in a few words what is being done.

    Raises:
        ModelError: too few kernels, kernels of one graph only, or of other features.
        StoreError: the store cannot be read or written.
    """
    progress("reading samples")
    samples = device_samples(store, profile.key)
    split = hold_out(samples, seed=seed, families=hold_out_families)
    fitted, held = take(samples, split.train), take(samples, split.test)
    if len(fitted) < MIN_ROWS:
        raise ModelError(
            f"{len(fitted)} kernels are left to train on beside the {split.by} held out to judge "
            f"by, at least {MIN_ROWS} are needed",
            subject=f"store {store.path}",
            remedy="collect or compile more graphs",
        )
    estimator = LearnedCostModel(seed=seed)
    tuned: dict[str, bool | int | float | str] = {}
    if tune_trials:
        tuned = tune(
            fitted, split.labels[split.train], trials=tune_trials, seed=seed, progress=progress
        )
        estimator.set_params(**tuned)
    progress(f"fitting to {len(fitted)} kernels")
    estimator.fit(fitted.features, fitted.median_us, split.labels[split.train])
    progress(f"judging by {len(held)} kernels of graphs held out")
    schedules = store.schedule_samples(device_key=profile.key)
    externs = store.extern_times(profile.key) if len(schedules) else {}
    scores = [
        _score(model, held, schedules, profile, externs)
        for model in (estimator.model_, Roofline(profile))
    ]
    final = take(samples, split.final)
    progress(f"fitting to {len(final)} kernels")
    estimator.fit(final.features, final.median_us, split.labels[split.final])
    manifest = _manifest(estimator, final, profile, scores[0])
    model = TrainedModel(estimator.model_.trees, estimator.model_.calibration, name=manifest.name)
    path = save_model(SavedModel(model, manifest), store.path.parent, out)
    store.append(
        ModelRow(
            id=manifest.id,
            path=str(path),
            device_key=profile.key,
            features_version=manifest.features_version,
            manifest=msgspec.to_builtins(manifest),
        )
    )
    store.ingest()
    return TrainingReport(
        device=profile.key,
        split=split.by,
        n_train=len(fitted),
        model=scores[0],
        roofline=scores[1],
        tuned=tuned,
        model_id=manifest.id,
        path=str(path),
    )


def evaluate(
    store: Store,
    profile: DeviceProfile,
    model: CostModel,
    *,
    seen_families: tuple[str, ...] = (),
    progress: Progress = lambda _: None,
) -> TrainingReport:
    """Judge an existing model by the store's kernels of families that it has not seen.

    Where the store has none of those, all kernels count and the report's split says ``all``; what
    the model was trained on then flatters it.

    Raises:
        ModelError: no kernels, or kernels of other features.
        StoreError: the store cannot be read.
    """
    progress("reading samples")
    samples = device_samples(store, profile.key)
    unseen = np.array([family not in seen_families for family in samples.family], dtype=bool)
    held = take(samples, unseen) if unseen.any() and seen_families else samples
    progress(f"judging by {len(held)} kernels")
    schedules = store.schedule_samples(device_key=profile.key)
    externs = store.extern_times(profile.key) if len(schedules) else {}
    return TrainingReport(
        device=profile.key,
        split="unseen families" if len(held) < len(samples) else "all",
        n_train=0,
        model=_score(model, held, schedules, profile, externs),
        roofline=_score(Roofline(profile), held, schedules, profile, externs),
        model_id=model.id,
    )


def device_samples(store: Store, device_key: str) -> KernelSamples:
    """Measured kernels of the device with features of this version, those of no use left out.

    Raises:
        ModelError: there are none; it says what the store has instead.
    """
    samples = store.kernel_samples(features_version=FEATURES_VERSION, device_key=device_key)
    subject = f"store {store.path}"
    if not len(samples):
        others = store.kernel_samples(device_key=device_key)
        if len(others):
            raise ModelError(
                f"its kernels on {device_key} have features of version "
                f"{others.features_version}, this is version {FEATURES_VERSION}",
                subject=subject,
                remedy="collect them again, or compute their features anew",
            )
        raise ModelError(
            f"it has no measured kernels on {device_key}, "
            f"but on {', '.join(measured_devices(store)) or 'no other device either'}",
            subject=subject,
            remedy="choose a device with --device, or collect on this one",
        )
    if samples.features.shape[1] != len(FEATURES):
        raise ModelError(
            f"its kernels have {samples.features.shape[1]} features, version "
            f"{FEATURES_VERSION} has {len(FEATURES)}",
            subject=subject,
            remedy="collect them again, or compute their features anew",
        )
    finite = np.asarray(np.isfinite(samples.features).all(axis=1))
    return take(samples, finite)


def measured_devices(store: Store) -> list[str]:
    """Keys of the devices that the store has measured kernels of, sorted."""
    return sorted({str(key) for key in store.kernel_samples().device_key})


def _score(
    model: CostModel,
    held: KernelSamples,
    schedules: ScheduleSamples,
    profile: DeviceProfile,
    externs: dict[str, float],
) -> Scores:
    # A held-out graph all of whose kernels occur in others is held out by its family.
    keys = {str(key) for key in held.graph_key}
    families = {str(family) for family in held.family if family}
    keys |= {s.graph_key for s in schedules if s.family in families}
    return merge(
        score_kernels(model, held), score_schedules(model, schedules, keys, profile, externs)
    )


def _manifest(
    estimator: LearnedCostModel, samples: KernelSamples, profile: DeviceProfile, scores: Scores
) -> Manifest:
    model = estimator.model_
    created = datetime.now(UTC)
    digest = hashlib.sha256()
    for array in (samples.features, samples.median_us):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update("\n".join(samples.signature).encode())
    metrics: dict[str, Any] = msgspec.to_builtins(scores)
    return Manifest(
        name=f"{profile.key}-{created:%Y%m%dT%H%M%S}-{model.id[-8:]}",
        id=model.id,
        profile=profile,
        dataset_hash=digest.hexdigest(),
        kernels=len(samples),
        graphs=len(set(samples.graph_key)),
        families=tuple(sorted({str(family) for family in samples.family if family})),
        parameters=estimator.get_params(),
        metrics=metrics,
        versions={name: version(name) for name in ("torch", "lightgbm", "numpy", "fusewise")},
        created=created,
    )
