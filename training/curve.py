"""The learning curve: how good a model gets by the number of kernels, adapted and from scratch.

Fits models to ever more of the kernels to train on, and judges each by the kernels held out. Saves
none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from sklearn.base import clone

from fusewise.costmodel.interface import Prediction
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.samples import KernelSamples
from fusewise.training.adapt import Adaptation, AdaptedCostModel
from fusewise.training.metrics import mean
from fusewise.training.scores import kernel_scores
from fusewise.training.split import Labels, take

#: Numbers of kernels; what there is in all comes last.
COUNTS: Final = (0, 100, 300, 1000, 3000)
#: Draws of the kernels that a model is fitted to. Scores are means over them.
DRAWS: Final = 3


class CurveScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one model, means over the draws; as of ``Scores``."""

    mape_5us: float | None
    median_error_5us: float | None
    mape_small: float | None
    coverage90: float | None


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What so many kernels of the device are worth."""

    kernels: int
    #: From these kernels alone; the roofline where there are none.
    scratch: CurveScores
    #: From the base and these kernels; the base as it is where there are none.
    adapted: CurveScores | None = None


def learning_curve(
    train: KernelSamples,
    labels: Labels,
    held: KernelSamples,
    roofline: Roofline,
    *,
    estimator: LearnedCostModel,
    adaptation: Adaptation | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[CurvePoint, ...]:
    """Points of the curve, in the order of :data:`COUNTS` and with all n kernels last.

    Args:
        train: n kernels to take from.
        labels: [n], family or graph of each.
        held: to judge by.
        roofline: of the device.
        estimator: whose parameters and seed are used.
        adaptation: the base, where there is one.
        progress: told of each point.
    """
    families = sorted({str(family) for family in held.family if family})
    points = []
    for count in [*(count for count in COUNTS if count < len(train)), len(train)]:
        progress(f"learning curve, {count} kernels")
        scratch, adapted = [], []
        for draw in range(DRAWS if 0 < count < len(train) else 1):
            rng = np.random.default_rng([int(estimator.seed), draw])
            rows = np.sort(rng.permutation(len(train))[:count])
            some, their = take(train, rows), labels[rows]
            if count >= MIN_ROWS:
                fitted = clone(estimator).fit(some.features, some.median_us, their)
                scratch.append(_scores(held, fitted.predict_interval(held.features)))
            elif not count:
                scratch.append(_scores(held, roofline.predict(held.features)))
            if adaptation is not None:
                fresh = AdaptedCostModel(**estimator.get_params())
                found = adaptation.fit(fresh, some, their, families)
                adapted.append(_scores(held, found.predict_interval(held.features)))
        if scratch:
            points.append(
                CurvePoint(
                    kernels=count,
                    scratch=_mean(scratch),
                    adapted=_mean(adapted) if adapted else None,
                )
            )
    return tuple(points)


def _scores(held: KernelSamples, found: Prediction) -> CurveScores:
    scores = kernel_scores(
        held.median_us, found.us, held.graph_key, low_us=found.low_us, high_us=found.high_us
    )
    return CurveScores(**{name: getattr(scores, name) for name in CurveScores.__struct_fields__})


def _mean(draws: list[CurveScores]) -> CurveScores:
    def of(name: str) -> float | None:
        return mean([value for one in draws if (value := getattr(one, name)) is not None])

    return CurveScores(**{name: of(name) for name in CurveScores.__struct_fields__})
