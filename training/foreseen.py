"""The record of a model that is being trained, and what it comes to on samples held out.

Says which model may predict which schedule: none that saw its family. What is made of the
predictions is :mod:`fusewise.training.foresight`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import USUAL, Gains, gains_of
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import LearnedCostModel, folds_of
from fusewise.costmodel.overheads import NONE, Amounts, Overheads
from fusewise.costmodel.plan_cost import PlanCost, PlanPrediction, is_unsure
from fusewise.costmodel.plan_margins import PlanMargins, plan_margins
from fusewise.costmodel.settled import settled_record
from fusewise.datasets.samples import KernelSamples, ScheduleSample, ScheduleSamples
from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import check_plan
from fusewise.training.calls import calls_known
from fusewise.training.companions import Companions
from fusewise.training.foresight import (
    ENOUGH,
    Foresight,
    Tried,
    foresight,
    gains_from,
    tried_schedules,
)
from fusewise.training.overheads import overheads_from
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
    companions: Companions | None = None,
) -> Gains:
    """What predictions of a model may take, by models of parts of what it is trained on.

    What is usual where too few graphs had several schedules measured for any kind to pass.
    Schedules of all devices that it is trained on count; what plans take beyond their kernels is
    of the device itself.

    Args:
        source: of the samples.
        profile: of the device.
        fitted: kernels that the model is fitted to before it is judged.
        labels: of these, what holds them together.
        fit: fits a model to kernels with labels, and leaves families out of all else it adds.
        families: those that the model is judged by.
        companions: other devices whose kernels ``fit`` adds.
    """
    samples = source.all_schedules(profile.key)
    joined, by = fitted, labels
    if companions is not None:
        joined, by = companions.beside(fitted, labels, families)
    known = {str(label) for label in by}
    if _graphs(samples, known) < ENOUGH or len(set(labels)) < _PARTS:
        return USUAL[profile.kind]
    models: dict[str, CostModel] = {}
    for rows, held in folds_of(by, _PARTS):
        out = {str(label) for label in by[held]}
        leave_out = {*families, *(str(family) for family in joined.family[held])}
        own = rows[rows < len(fitted)]
        model = fit(take(fitted, own), labels[own], sorted(leave_out)).model_
        models |= dict.fromkeys(out, model)

    def model_of(sample: ScheduleSample) -> CostModel | None:
        label = _label(sample, known)
        return None if label is None else models[label]

    extern_us = calls_known(source.extern_times(profile.key), samples)
    plans = _predicted_plans(samples, profile, extern_us, model_of)
    overheads = overheads_from(np.array([p.measured_us for p in plans]), [p.amounts for p in plans])
    tried = tried_schedules(samples, profile, extern_us, model_of, overheads)
    for other in () if companions is None else companions.profiles:
        tried += _tried_on(other, source, model_of, overheads)
    found = msgspec.structs.replace(
        gains_from(tried, profile.kind),
        plans=_margins(plans, overheads or NONE),
        overheads=overheads,
    )
    return settled_record(found)


class _PredictedPlan(NamedTuple):
    """A measured schedule that was predicted by the model that saw nothing of its family."""

    measured_us: float
    #: Of its kernels alone.
    alone: PlanPrediction
    amounts: Amounts
    unsure: bool
    label: str


def _predicted_plans(
    samples: ScheduleSamples,
    profile: DeviceProfile,
    extern_us: Mapping[str, float],
    model_of: Callable[[ScheduleSample], CostModel | None],
) -> list[_PredictedPlan]:
    costs: dict[str, PlanCost] = {}
    rows = []
    for sample in samples:
        plan, model = sample.schedule.plan, model_of(sample)
        if plan is None or model is None or not samples.has_problem(sample):
            continue
        key = sample.problem_key
        if key not in costs:
            costs[key] = PlanCost(samples.problem(sample), profile, model, extern_us, NONE)
        cost = costs[key]
        try:
            check_plan(cost.problem, plan)
        except PlanError:
            # Of another lowering of the graph: no fault of a model.
            continue
        found = cost.plan(plan)
        if found.us > 0.0:
            unsure = is_unsure(cost.breakdown(plan))
            label = sample.family or sample.graph_key
            amounts = cost.amounts(plan)
            rows.append(_PredictedPlan(sample.median_us, found, amounts, unsure, label))
    return rows


def _margins(plans: Sequence[_PredictedPlan], overheads: Overheads) -> PlanMargins | None:
    """Margins of whole plans, with what they take beyond their kernels."""
    if not plans:
        return None
    more = np.array([overheads.around_us(plan.amounts) for plan in plans])
    return plan_margins(
        measured=np.array([plan.measured_us for plan in plans]),
        us=more + [plan.alone.us for plan in plans],
        low_us=more + [plan.alone.low_us for plan in plans],
        high_us=more + [plan.alone.high_us for plan in plans],
        unsure=np.array([plan.unsure for plan in plans], dtype=bool),
        labels=np.array([plan.label for plan in plans], dtype=object),
    )


def foreseen(
    source: Source, held: KernelSamples, profile: DeviceProfile, model: CostModel
) -> Foresight | None:
    """What comes of choosing by predictions of ``model`` among schedules of graphs held out."""
    keys = {str(key) for key in held.graph_key}
    families = {str(family) for family in held.family if family}

    def model_of(sample: ScheduleSample) -> CostModel | None:
        return model if sample.graph_key in keys or sample.family in families else None

    return foresight(_tried_on(profile, source, model_of), gains_of(model, profile.kind))


def _tried_on(
    profile: DeviceProfile,
    source: Source,
    model_of: Callable[[ScheduleSample], CostModel | None],
    overheads: Overheads | None = None,
) -> list[Tried]:
    """Schedules of a device of ``source`` that were measured beside the compiler's own."""
    samples = source.all_schedules(profile.key)
    extern_us = calls_known(source.extern_times(profile.key), samples)
    return tried_schedules(samples, profile, extern_us, model_of, overheads)


def _graphs(samples: ScheduleSamples, known: Collection[str]) -> int:
    """Graphs with labels of which several schedules were measured."""
    counts = Counter(s.graph_key for s in samples if _label(s, known) is not None)
    return sum(count > 1 for count in counts.values())


def _label(sample: ScheduleSample, known: Collection[str]) -> str | None:
    if sample.split == "test":
        return None
    return next((label for label in (sample.family, sample.graph_key) if label in known), None)
