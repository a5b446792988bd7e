"""Costs that are known exactly, and graphs as a survey without a search finds them."""

from __future__ import annotations

from typing import Any

import msgspec

from fusewise.compiler.survey import Predictor, Survey
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import USUAL, Gains
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Candidate, Choice, Schedule
from fusewise.search.result import unsearched


class Known:
    """The roofline of a device, as sure of itself as it is told, and with a record."""

    name = "known"

    def __init__(self, profile: DeviceProfile, gains: Gains, *, factor: float = 1.05) -> None:
        self._roofline = Roofline(profile)
        self._factor = factor
        self.gains: Gains | None = gains
        self.id = f"known-{factor}"
        self.features_version = self._roofline.features_version

    def predict(self, features: FloatArray) -> Prediction:
        us = self._roofline.predict(features).us
        return Prediction(us, us / self._factor, us * self._factor, ("learned",) * len(us))


def predictor_of(data: Any, gains: Gains = USUAL["cuda"], factor: float = 1.05) -> Predictor:
    (device,) = (each for each in data.devices() if each.key == "cuda-NVIDIA_H200")
    profile = msgspec.convert(device.profile, DeviceProfile)
    return Predictor(Known(profile, gains, factor=factor), profile, {})


def seen(predictor: Predictor, problem: Any, plan: Plan, *choices: Choice, **told: Any) -> Survey:
    """A graph under choices, as a survey without a search of plans finds it."""
    cost = predictor.plans(problem)
    interval = cost.plan(plan)
    candidate = Candidate(
        schedule=Schedule(plan=plan, lowering=choices),
        origin="choices" if choices else "default",
        groups=len(plan.groups),
        predicted_us=interval.us,
        predicted_low_us=interval.low_us,
        predicted_high_us=interval.high_us,
    )
    result = unsearched(plan, interval.us)
    return Survey(tuple(choices), problem, plan, result, (candidate,), (), **told)


def of_family(data: Any, family: str) -> tuple[Any, Plan]:
    """A problem of the dataset and Inductor's plan for it."""
    return next(
        (data.problems[sample.graph_key], sample.schedule.plan)
        for sample in data.schedules()
        if sample.family == family and sample.origin == "default"
    )
