"""Train, judge and keep a cost model: the work behind ``train-costmodel``, without a terminal.

Judged on held-out families or graphs first, then fitted to everything and saved: what is reported
is what the estimator does on graphs it has not seen, what is kept has seen all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel, estimator_for
from fusewise.costmodel.model_file import Manifest, SavedModel
from fusewise.costmodel.registry import save_model
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.settled import settled_record
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.rows import ModelRow
from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.training.adapt import Adaptation, AdaptedCostModel
from fusewise.training.base import open_base, open_device
from fusewise.training.block_training import BlockReport, HeldOut, train_blocks
from fusewise.training.calls import calls_known
from fusewise.training.companions import Companions
from fusewise.training.curve import CurvePoint, learning_curve
from fusewise.training.evaluate import Evaluation, Judge
from fusewise.training.foreseen import foreseen, record_made
from fusewise.training.foresight import Foresight
from fusewise.training.judged import JudgedKernels, judged_schedules
from fusewise.training.out_of_range import OutOfRange, out_of_range
from fusewise.training.scores import Judgement
from fusewise.training.source import Source, source_of
from fusewise.training.split import Holdout, Labels, SplitBy, take
from fusewise.training.tune import Parameters, tune

Progress = Callable[[str], None]


#: Parts that the intervals of a model of some families are from, to save fits; those of the model
#: that is kept are from as many as the estimator says.
_PARTS_OF_A_PART: Final = 2


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a training or an evaluation."""

    device: str
    #: ``family`` or ``graph``: what was held out whole; ``published split``: families that are
    #: never trained on; ``unseen families`` or ``all`` where an existing model was evaluated.
    split: SplitBy | Literal["unseen families", "all"]
    n_train: int
    #: Scores on the held-out kernels and schedules, of the model, of the roofline, and of what
    #: Inductor goes by (``fusewise.training.contenders``).
    model: Judgement
    roofline: Judgement
    baselines: dict[str, Judgement] = {}
    #: Measured schedules of held-out graphs that cannot be predicted: over no stored problem.
    n_schedules_skipped: int = 0
    #: What was adapted, "" where nothing was.
    base: str = ""
    #: Parameters that tuning settled on; empty where there was none.
    tuned: Parameters = {}
    #: The learning curve, where it was asked for.
    curve: tuple[CurvePoint, ...] = ()
    #: What comes of choosing schedules by prediction alone, on graphs held out; None where no
    #: other schedules than the compiler's own were measured of any.
    foresight: Foresight | None = None
    #: What came of leaving classes and sizes out, where it was asked for.
    out_of_range: OutOfRange | None = None
    #: What is known about block sizes; None where no kernels were timed with several.
    blocks: BlockReport | None = None
    #: Device of the model that answered, where none was trained for this one.
    borrowed_from: str = ""
    model_id: str = ""
    #: File of the model, "" where none was written.
    path: str = ""


class Trained(msgspec.Struct, frozen=True):
    """The report, and what it is about: for whoever tells more of it."""

    report: TrainingReport
    judge: Judge
    #: The model that was judged, which saw nothing of what it was judged by.
    judged: CostModel


def train(
    data: Store | Dataset,
    profile: DeviceProfile,
    *,
    seed: int = 0,
    hold_out_families: Collection[str] = (),
    tune_trials: int = 0,
    out: Path | None = None,
    base: str | None = None,
    curve: bool = False,
    strange: bool = False,
    together: bool = True,
    progress: Progress = lambda _: None,
) -> Trained:
    """Train on kernels of the device of ``profile``, judge, save and record.

    Args:
        data: where samples come from. A store records the model, which is saved in ``models/``
            beside it; a model of a dataset is saved in ``models/`` of your own folder.
        profile: of the device to train for.
        seed: of the split and the estimator; equal data and seeds give equal models.
        hold_out_families: families to judge by, which are not trained on in the end either. A
            dataset brings its own; ``fusewise.training.split.hold_out`` says what else counts.
        tune_trials: Optuna trials over the estimator's parameters, on the training part only.
        out: file to save the model to instead.
        base: another device of ``data`` to adapt the kernels of, by its key; or a dataset, store
            or model; ``fusewise.training.base.open_base`` says more.
        curve: whether to make the learning curve, too.
        strange: whether to leave classes and sizes out, too, and see if that is noticed.
        together: whether to train on the kernels of all devices of the same kind; those of a
            ``base`` are instead of these.
        progress: told in a few words what is being done.

    Raises:
        ModelError: too few kernels, kernels of one graph or family only, or of other features; a
            base that cannot be used.
        StoreError: the store cannot be read or written.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split = source.hold_out(samples, seed=seed, families=hold_out_families)
    fitted, held = take(samples, split.train), take(samples, split.test)
    labels = split.labels[split.train]
    _check_enough(fitted, split, source)
    estimator = estimator_for(profile.kind, seed=seed)
    tuned: Parameters = {}
    if tune_trials:
        tuned = tune(
            fitted,
            labels,
            trials=tune_trials,
            seed=seed,
            estimator=estimator,
            progress=progress,
        )
        estimator.set_params(**tuned)
    adaptation = None
    if base is not None:
        adaptation = _adaptation(base, source, profile, seed, progress)
    families = sorted({str(family) for family in held.family if family})
    companions = Companions(source, profile) if together and base is None else None

    def fit(
        chosen: KernelSamples, by: Labels, leave_out: Collection[str], **instead: int
    ) -> LearnedCostModel:
        progress(f"fitting to {len(chosen)} kernels")
        parameters = estimator.get_params() | instead
        if companions is not None:
            chosen, by = companions.beside(chosen, by, leave_out)
        if adaptation is None:
            plain = LearnedCostModel(**parameters)
            return plain.fit(chosen.features, chosen.median_us, by)
        return adaptation.fit(AdaptedCostModel(**parameters), chosen, by, leave_out)

    def fit_part(chosen: KernelSamples, by: Labels, leave_out: Collection[str]) -> LearnedCostModel:
        return fit(chosen, by, leave_out, folds=min(_PARTS_OF_A_PART, estimator.folds))

    candidate = fit(fitted, labels, families)
    gains = record_made(source, profile, fitted, labels, fit_part, families, companions)
    candidate.model_ = candidate.model_.with_gains(gains)
    progress(f"judging by {len(held)} kernels of graphs held out")
    judge = judge_of(source, held, profile)
    found = judge.evaluate(candidate.model_)
    points: tuple[CurvePoint, ...] = ()
    if curve:
        points = learning_curve(
            fitted,
            labels,
            held,
            Roofline(profile),
            estimator=estimator,
            adaptation=adaptation,
            progress=progress,
        )
    unknown = (
        out_of_range(JudgedKernels(fitted, source.problems()), labels, estimator, progress)
        if strange
        else None
    )
    final = take(samples, split.final)
    # Families that come back for the last fit may come from the base, too.
    out_for_good = set(families) - {str(family) for family in final.family}
    # Families of a published test split never come back: the last fit is then the first.
    again = len(final) > len(fitted) or out_for_good != set(families)
    kept = fit(final, split.labels[split.final], out_for_good) if again else candidate
    blocks, told_of_blocks = train_blocks(
        source.blocks(profile.key),
        HeldOut.of(split.by, held, out_for_good),
        seed=seed,
        progress=progress,
    )
    kept.model_ = kept.model_.with_gains(gains).with_blocks(blocks)
    if companions is not None:
        final, _ = companions.beside(final, split.labels[split.final], out_for_good)
    devices = () if companions is None else tuple(each.key for each in companions.profiles)
    manifest = _manifest(kept, final, profile, found, source, adaptation, devices)
    saved = SavedModel(kept.model_.renamed(manifest.name), manifest)
    path = save_model(saved, source.home, out)
    source.record(
        ModelRow(
            id=manifest.id,
            path=str(path),
            device_key=profile.key,
            features_version=manifest.features_version,
            manifest=msgspec.to_builtins(manifest),
        )
    )
    report = TrainingReport(
        device=profile.key,
        split=split.by,
        n_train=len(fitted),
        model=found.model,
        roofline=found.roofline,
        baselines=found.baselines,
        n_schedules_skipped=found.skipped,
        base=base or "",
        tuned=tuned,
        foresight=foreseen(source, held, profile, candidate.model_),
        curve=points,
        out_of_range=unknown,
        blocks=told_of_blocks,
        model_id=manifest.id,
        path=str(path),
    )
    return Trained(report, judge, candidate.model_)


def _adaptation(
    base: str, source: Source, profile: DeviceProfile, seed: int, progress: Progress
) -> Adaptation:
    """From the device of ``source`` whose key ``base`` is, else from what it names."""
    if base != profile.key and base in source.measured_devices():
        lender = open_device(base, source, seed=seed, progress=progress)
    else:
        lender = open_base(base, source.home, profile, seed=seed, progress=progress)
    return Adaptation(lender, profile, source.problems())


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
        calls_known(source.extern_times(profile.key), schedules),
    )


def _check_enough(fitted: KernelSamples, split: Holdout, source: Source) -> None:
    if len(fitted) < MIN_ROWS:
        raise ModelError(
            f"{len(fitted)} kernels are left to train on beside the {split.by} held out to judge "
            f"by, at least {MIN_ROWS} are needed",
            subject=source.subject,
            remedy="collect or compile more graphs",
        )


def _manifest(
    estimator: LearnedCostModel,
    samples: KernelSamples,
    profile: DeviceProfile,
    found: Evaluation,
    source: Source,
    adaptation: Adaptation | None,
    companions: tuple[str, ...],
) -> Manifest:
    model = estimator.model_
    created = source.created()
    digest = hashlib.sha256()
    every = [samples] if adaptation is None else [samples, adaptation.base.samples]
    for part in every:
        for array in (part.features, part.median_us):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update("\n".join(part.signature).encode())
    told: dict[str, Any] = msgspec.to_builtins(found.model)
    parameters = estimator.get_params()
    if adaptation is not None:
        parameters["base"] = adaptation.base.name
    return Manifest(
        name=source.model_name(profile.key, model.id, created),
        id=model.id,
        profile=profile,
        companions=companions,
        dataset_hash=digest.hexdigest(),
        kernels=len(samples),
        graphs=len(set(samples.graph_key)),
        families=tuple(sorted({str(f) for part in every for f in part.family if f})),
        parameters=parameters,
        metrics=settled_record(
            {k: value for k, value in told.items() if not isinstance(value, dict)}
        ),
        versions={name: version(name) for name in ("torch", "lightgbm", "numpy", "fusewise")},
        created=created,
    )
