"""The record of a model that is being trained, and what it comes to on samples held out.

Says which model may predict which schedule: none that saw its family. What is made of the
predictions is :mod:`fusewise.training.foresight`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import USUAL, Gains, gains_of
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import LearnedCostModel, folds_of
from fusewise.datasets.samples import KernelSamples, ScheduleSample, ScheduleSamples
from fusewise.training.foresight import (
    ENOUGH,
    Foresight,
    foresight,
    gains_from,
    tried_schedules,
)
from fusewise.training.source import Source
from fusewise.training.split import Labels, take

#: Parts that families are cut into, each predicted by a model of the others.
_PARTS: Final = 5

Fit = Callable[[KernelSamples, Labels, Collection[str]], LearnedCostModel]


def record_made(
    source: Source,
    profile: DeviceProfile,
    fitted: KernelSamples,
    labels: Labels,
    fit: Fit,
    families: Collection[str],
) -> Gains:
    """What predictions of a model may take, by models of parts of what it is trained on.

    What is usual where too few graphs had several schedules measured for any kind to pass.

    Args:
        source: of the samples.
        profile: of the device.
        fitted: kernels that the model is fitted to before it is judged.
        labels: of these, what holds them together.
        fit: fits a model to kernels with labels, and leaves families out of all else it adds.
        families: those that the model is judged by.
    """
    samples = source.all_schedules(profile.key)
    known = {str(label) for label in labels}
    if _graphs(samples, known) < ENOUGH or len(known) < _PARTS:
        return USUAL[profile.kind]
    models: dict[str, CostModel] = {}
    for rows, held in folds_of(labels, _PARTS):
        out = {str(label) for label in labels[held]}
        leave_out = {*families, *(str(family) for family in fitted.family[held])}
        model = fit(take(fitted, rows), labels[rows], sorted(leave_out)).model_
        models |= dict.fromkeys(out, model)

    def model_of(sample: ScheduleSample) -> CostModel | None:
        label = _label(sample, known)
        return None if label is None else models[label]

    extern_us = source.extern_times(profile.key)
    return gains_from(tried_schedules(samples, profile, extern_us, model_of), profile.kind)


def foreseen(
    source: Source, held: KernelSamples, profile: DeviceProfile, model: CostModel
) -> Foresight | None:
    """What comes of choosing by predictions of ``model`` among schedules of graphs held out."""
    keys = {str(key) for key in held.graph_key}
    families = {str(family) for family in held.family if family}

    def model_of(sample: ScheduleSample) -> CostModel | None:
        return model if sample.graph_key in keys or sample.family in families else None

    extern_us = source.extern_times(profile.key)
    tried = tried_schedules(source.all_schedules(profile.key), profile, extern_us, model_of)
    return foresight(tried, gains_of(model, profile.kind))


def _graphs(samples: ScheduleSamples, known: Collection[str]) -> int:
    """Graphs with labels of which several schedules were measured."""
    counts = Counter(s.graph_key for s in samples if _label(s, known) is not None)
    return sum(count > 1 for count in counts.values())


def _label(sample: ScheduleSample, known: Collection[str]) -> str | None:
    if sample.split == "test":
        return None
    return next((label for label in (sample.family, sample.graph_key) if label in known), None)
