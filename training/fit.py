"""Train, judge and keep a cost model: the work behind ``train-costmodel``, without a terminal.

Judged on held-out families or graphs first, then fitted to everything and saved: what is reported
is what the estimator does on graphs it has not seen, what is kept has seen all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import save_model
from fusewise.costmodel.trained import TrainedModel
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.rows import ModelRow
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.evaluate import Judge
from fusewise.training.judged import JudgedKernels, judged_schedules
from fusewise.training.scores import Judgement
from fusewise.training.source import Source, source_of
from fusewise.training.split import published_holdout, take
from fusewise.training.tune import tune

Progress = Callable[[str], None]


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a training or an evaluation."""

    device: str
    #: ``family`` or ``graph``: what was held out whole; ``published split`` for a dataset's own.
    #: ``unseen families`` or ``all`` where an existing model was evaluated.
    split: Literal["family", "graph", "published split", "unseen families", "all"]
    n_train: int
    #: Scores on the held-out kernels and schedules, of the model, of the roofline, and of what
    #: Inductor goes by (``fusewise.training.contenders``).
    model: Judgement
    roofline: Judgement
    baselines: dict[str, Judgement] = {}
    #: Measured schedules of held-out graphs that cannot be predicted: over no stored problem.
    n_schedules_skipped: int = 0
    #: Parameters that tuning settled on; empty where there was none.
    tuned: dict[str, bool | int | float | str] = {}
    model_id: str = ""
    #: File of the model, "" where none was written.
    path: str = ""


def train(
    data: Store | Dataset,
    profile: DeviceProfile,
    *,
    seed: int = 0,
    hold_out_families: Collection[str] = (),
    tune_trials: int = 0,
    out: Path | None = None,
    progress: Progress = lambda _: None,
) -> TrainingReport:
    """Train on kernels of the device of ``profile``, judge, save and record.

    Args:
        data: where samples come from. A store records the model, which is saved in ``models/``
            beside it; a model of a dataset is saved in ``models/`` of your own folder.
        profile: of the device to train for.
        seed: of the split and the estimator; equal data and seeds give equal models.
        hold_out_families: families to judge by, which are not trained on in the end either;
            a quarter of all where none are named. A dataset brings its own.
        tune_trials: Optuna trials over the estimator's parameters, on the training part only.
        out: file to save the model to instead.
        progress: told in a few words what is being done.

    Raises:
        ModelError: too few kernels, kernels of one graph only, or of other features.
        StoreError: the store cannot be read or written.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split = source.hold_out(samples, seed=seed, families=hold_out_families)
    fitted, held = take(samples, split.train), take(samples, split.test)
    if len(fitted) < MIN_ROWS:
        raise ModelError(
            f"{len(fitted)} kernels are left to train on beside the {split.by} held out to judge "
            f"by, at least {MIN_ROWS} are needed",
            subject=source.subject,
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
    found = judge_of(source, held, profile).evaluate(estimator.model_)
    final = take(samples, split.final)
    progress(f"fitting to {len(final)} kernels")
    estimator.fit(final.features, final.median_us, split.labels[split.final])
    manifest = _manifest(estimator, final, profile, found.model, source)
    model = TrainedModel(estimator.model_.trees, estimator.model_.calibration, name=manifest.name)
    path = save_model(SavedModel(model, manifest), source.home, out)
    source.record(
        ModelRow(
            id=manifest.id,
            path=str(path),
            device_key=profile.key,
            features_version=manifest.features_version,
            manifest=msgspec.to_builtins(manifest),
        )
    )
    return TrainingReport(
        device=profile.key,
        split=split.by,
        n_train=len(fitted),
        model=found.model,
        roofline=found.roofline,
        baselines=found.baselines,
        n_schedules_skipped=found.skipped,
        tuned=tuned,
        model_id=manifest.id,
        path=str(path),
    )


def evaluate(
    data: Store | Dataset,
    profile: DeviceProfile,
    model: CostModel,
    *,
    seen_families: tuple[str, ...] = (),
    progress: Progress = lambda _: None,
) -> TrainingReport:
    """Judge an existing model by kernels of families that it has not seen.

    Where a store has none of those, all kernels count and the report's split says ``all``; what
    the model was trained on then flatters it. Of a dataset the test split counts, whatever the
    model has seen.

    Raises:
        ModelError: no kernels, or kernels of other features.
        StoreError: the store cannot be read.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split: Literal["published split", "unseen families", "all"] = "all"
    held = samples
    if isinstance(data, Dataset):
        split = "published split"
        held = take(samples, published_holdout(samples, source.subject).test)
    elif seen_families:
        unseen = np.array([family not in seen_families for family in samples.family], dtype=bool)
        if unseen.any() and not unseen.all():
            split, held = "unseen families", take(samples, unseen)
    progress(f"judging by {len(held)} kernels")
    found = judge_of(source, held, profile).evaluate(model)
    return TrainingReport(
        device=profile.key,
        split=split,
        n_train=0,
        model=found.model,
        roofline=found.roofline,
        baselines=found.baselines,
        n_schedules_skipped=found.skipped,
        model_id=model.id,
    )


def judge_of(source: Source, held: KernelSamples, profile: DeviceProfile) -> Judge:
    """What models are judged by: the kernels ``held`` out, and schedules of their graphs."""
    schedules = source.schedules(profile.key)
    # A held-out graph all of whose kernels occur in others is held out by its family.
    keys = {str(key) for key in held.graph_key}
    families = {str(family) for family in held.family if family}
    keys |= {sample.graph_key for sample in schedules if sample.family in families}
    return Judge(
        JudgedKernels(held, source.problems()),
        judged_schedules(schedules, keys, profile),
        profile,
        source.extern_times(profile.key),
    )


def _manifest(
    estimator: LearnedCostModel,
    samples: KernelSamples,
    profile: DeviceProfile,
    scores: Judgement,
    source: Source,
) -> Manifest:
    model = estimator.model_
    created = source.created()
    digest = hashlib.sha256()
    for array in (samples.features, samples.median_us):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update("\n".join(samples.signature).encode())
    told: dict[str, Any] = msgspec.to_builtins(scores)
    metrics = {name: value for name, value in told.items() if not isinstance(value, dict)}
    return Manifest(
        name=source.model_name(profile.key, model.id, created),
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
