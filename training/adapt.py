"""From a model of one device to one of another, by a few hundred kernels of the latter.

Every kernel of the base device becomes one of the new device: its features as that device has
them, its time as that device would take. The roofline knows most of the difference; what it does
not know is a law of few numbers, found from the new kernels:

    log(measured / roofline) on the new device
        = r + a + b r + c log(roofline on the new device) + d of the kernel's class,

with r the same ratio on the base device: of a new kernel what the base model gives for it. The
numbers are held near nought by a ridge, so that few kernels move them little. One model is then
fitted to both kinds of kernels, and its intervals come from kernels of the new device alone. In
comparison (see docs/training.md) this did better than trees on the base model's residuals, and
than mixing in the base kernels unchanged.

Reads nothing and judges nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel, FloatArray
from fusewise.costmodel.learned import LearnedCostModel, Rows
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets.samples import KernelSamples, Problems
from fusewise.training.judged import JudgedKernels
from fusewise.training.refeature import features_of
from fusewise.training.split import Labels

#: Strength of the ridge on the numbers of the law, in kernels: an offset is found from few, a
#: slope or what sets a class apart needs more.
_RIDGE: Final = (1.5, 15.0, 15.0)
_CLASS_RIDGE: Final = 15.0
#: About where log(roofline) of kernels that count lies, so that offset and slope are not mixed up.
_CENTRE: Final = 2.0
#: Part of all rows that the new device's own are brought up to, by repeating each as often as
#: this at most.
_OWN_SHARE: Final = 0.05
_MOST_REPEATS: Final = 10
#: Begins the labels of rows that come from the base.
_OF_BASE: Final = "\x1fbase "


@dataclass(frozen=True)
class Base:
    """What is adapted: a model with the kernels that it was trained on."""

    name: str
    profile: DeviceProfile
    model: CostModel
    samples: KernelSamples
    #: [n], family or graph of each kernel.
    labels: Labels
    problems: Problems


@dataclass(frozen=True)
class Law:
    """How the log ratio of measured to roofline time changes from one device to another."""

    offset: float = 0.0
    slope: float = 0.0
    by_size: float = 0.0
    #: What sets a kernel class apart from the others.
    by_class: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def found(
        cls,
        base_ratio: FloatArray,
        ratio: FloatArray,
        log_roofline: FloatArray,
        classes: Sequence[str],
    ) -> Law:
        """The law between the log ratios [n] on the base and on the new device.

        ``log_roofline`` [n] is of the new device, ``classes`` [n] are as of
        ``fusewise.training.strata``. Without kernels nothing changes.
        """
        names = sorted(set(classes))
        each = np.array(classes, dtype=object)[:, None] == np.array(names, dtype=object)
        terms = np.column_stack([_terms(base_ratio, log_roofline), each.astype(np.float64)])
        gram = terms.T @ terms + np.diag((*_RIDGE, *(_CLASS_RIDGE for _ in names)))
        numbers = np.linalg.solve(gram, terms.T @ (ratio - base_ratio)).tolist()
        offset, slope, by_size, *apart = numbers
        return cls(offset, slope, by_size, dict(zip(names, apart, strict=True)))

    def __call__(
        self, base_ratio: FloatArray, log_roofline: FloatArray, classes: Sequence[str]
    ) -> FloatArray:
        """Log ratios [n] on the new device."""
        numbers = np.array([self.offset, self.slope, self.by_size])
        apart = np.array([self.by_class.get(name, 0.0) for name in classes])
        changed: FloatArray = base_ratio + _terms(base_ratio, log_roofline) @ numbers + apart
        return changed


class AdaptedCostModel(LearnedCostModel):
    """The estimator on rows of two devices: intervals come from rows of the new one.

    Rows that came from the base are known by their labels; :class:`Adaptation` gives them.
    """

    def _folds(self, labels: Labels) -> list[tuple[Rows, Rows]]:
        own = np.array([not str(label).startswith(_OF_BASE) for label in labels], dtype=bool)
        if len(set(labels[own].tolist())) < 2:  # noqa: PLR2004 - nothing can be held out of one
            return super()._folds(labels)
        base, rows = np.flatnonzero(~own), np.flatnonzero(own)
        return [
            (np.sort(np.concatenate([base, rows[fitted]])), rows[held])
            for fitted, held in super()._folds(labels[rows])
        ]


class Adaptation:
    """A base, told in terms of a new device once, and fitted together with its kernels."""

    def __init__(self, base: Base, profile: DeviceProfile, problems: Problems) -> None:
        """``problems`` are those that kernels of the new device were taken from."""
        self.base = base
        self.profile = profile
        self._problems = problems
        samples = base.samples
        told = _features(samples, base.problems, profile)
        self._features = told
        self._ratio = np.log(samples.median_us / roofline_us(samples.features))
        self._log_roofline = np.log(roofline_us(told))
        self._classes = JudgedKernels(samples, base.problems).classes

    def fit(
        self,
        estimator: AdaptedCostModel,
        samples: KernelSamples,
        labels: Labels,
        leave_out: Collection[str] = (),
    ) -> AdaptedCostModel:
        """The estimator fitted to the base and to ``samples`` of the new device, n of them.

        ``leave_out`` are families of the base to leave out: those that it is to be judged by.

        Raises:
            ModelError: as of ``LearnedCostModel.fit``.
        """
        law = self.law(samples)
        count = len(samples)
        left_out = set(leave_out)
        kept = np.array([family not in left_out for family in self.base.samples.family], dtype=bool)
        repeats = 0
        if count:
            wanted = _OWN_SHARE * np.count_nonzero(kept) / count
            repeats = int(np.clip(round(wanted), 1, _MOST_REPEATS))
        own = _at_least_two(labels)
        return estimator.fit(
            np.concatenate([self._features[kept], *[samples.features] * repeats]),
            np.concatenate([self._times(law)[kept], *[samples.median_us] * repeats]),
            np.concatenate([_of_base(self.base.labels[kept]), *[own] * repeats]),
        )

    def law(self, samples: KernelSamples) -> Law:
        """The law between the base device and the new one, by its kernels."""
        there = _features(samples, self._problems, self.base.profile)
        base_ratio = np.log(self.base.model.predict(there).us / roofline_us(there))
        here = roofline_us(samples.features)
        ratio = np.log(samples.median_us / here)
        classes = JudgedKernels(samples, self._problems).classes
        return Law.found(base_ratio, ratio, np.log(here), classes)

    def _times(self, law: Law) -> FloatArray:
        ratio = law(self._ratio, self._log_roofline, self._classes)
        times: FloatArray = np.exp(self._log_roofline + ratio)
        return times


def _features(samples: KernelSamples, problems: Problems, profile: DeviceProfile) -> FloatArray:
    """Features as the device of ``profile`` has them; as they were where no problem was kept."""
    found = features_of(problems, profile, samples.graph_key, list(samples.nodes))
    known = np.asarray(np.isfinite(found).all(axis=1))
    features: FloatArray = np.where(known[:, None], found, samples.features)
    return features


def _terms(base_ratio: FloatArray, log_roofline: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(base_ratio)), base_ratio, log_roofline - _CENTRE])


def _of_base(labels: Labels) -> Labels:
    return np.array([f"{_OF_BASE}{label}" for label in labels], dtype=object)


def _at_least_two(labels: Labels) -> Labels:
    """The labels; a number a row where all are the same, so that repeats of a row stay together."""
    if len(set(labels)) > 1:
        return labels
    return np.array([f"row {row}" for row in range(len(labels))], dtype=object)
