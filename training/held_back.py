"""Devices that a model was not trained on: what it is worth there, and what adapting is.

A part of the data is held back: one of several devices, or, where there is one only, a part of its
kernels as if they were another's. The base is trained on the rest, tried on the part as it is, and
adapted to ever more of its kernels. Saves no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.borrowed import BorrowedModel, distance
from fusewise.costmodel.calibration import grouped_quantile
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import CostModel
from fusewise.costmodel.learned import MIN_ROWS, estimator_for
from fusewise.costmodel.roofline import Roofline
from fusewise.costmodel.trained import TrainedModel
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.samples import KernelSamples, Problems
from fusewise.datasets.splits import split_groups
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.schedule.problem import Problem
from fusewise.training.adapt import Adaptation
from fusewise.training.base import base_of
from fusewise.training.curve import CurvePoint, learning_curve
from fusewise.training.judged import rows_by
from fusewise.training.metrics import mean, relative_errors
from fusewise.training.refeature import profile_of
from fusewise.training.scores import LARGE_US
from fusewise.training.source import Source, source_of
from fusewise.training.split import take

#: Parts that can be held back.
PARTS: Final = ("half", "device")
_HALF_BYTES: Final = 2


class Unadapted(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is worth on kernels of a device that it was not trained on."""

    #: Kernels that the lender knows of; to the others the roofline answers.
    n_borrowed: int
    #: Of these: mean absolute percentage error of 5 us and more, of the model and the roofline.
    mape_5us: float | None
    roofline_mape_5us: float | None
    #: Of these: part inside the interval.
    coverage90: float | None
    #: What would have to be added to the log half widths of the lender's own intervals, for nine
    #: of ten kernels of a family that was not seen to lie inside; less than 0 where they are wide.
    width_needed: float | None


class HeldBackReport(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the rest of the data on a part of it, as it is and adapted."""

    device: str
    #: One of :data:`PARTS`: ``half`` are kernels most of whose bytes are of two-byte elements;
    #: ``device`` are all kernels of the device, the rest those of the nearest other one.
    held_back: str
    #: Device that the base is of.
    base: str
    unadapted: Unadapted
    #: Kernels of the rest, of the part, and of the part that is judged by.
    n_base: int
    n_train: int
    n_kernels: int
    curve: tuple[CurvePoint, ...]


def held_back_curve(
    data: Store | Dataset,
    profile: DeviceProfile,
    part: str,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> HeldBackReport:
    """A model of all kernels that are not of ``part``, on those that are.

    Judged by kernels of the part that the split holds out; the base sees nothing of their families
    either.

    Raises:
        ModelError: too few kernels on one of the sides, or no other device of the same kind.
        StoreError: the store cannot be read.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split = source.hold_out(samples, seed=seed, families=())
    if part == "device":
        lender = _nearest(source, profile)
        others = source.kernels(lender)
        out = {str(family) for family in samples.family[split.test] if family}
        usable = np.array([str(family) not in out for family in others.family], dtype=bool)
        rest = take(others, usable & (others.split == "train"))
        labels = np.array(split_groups(rest.family, rest.graph_key), dtype=np.object_)
        train, test = split.train, split.test
    else:
        lender, inside = profile, _halves(samples, source.problems())
        rows = split.train[~inside[split.train]]
        rest, labels = take(samples, rows), split.labels[rows]
        train, test = split.train[inside[split.train]], split.test[inside[split.test]]
    for name, count, least in (
        (f"are not of the part {part}", len(rest), MIN_ROWS),
        (f"are of the part {part}, to train on", len(train), MIN_ROWS),
        (f"are of the part {part}, to judge by", len(test), 1),
    ):
        if count < least:
            raise ModelError(
                f"{count} kernels {name}, at least {least} are needed",
                subject=source.subject,
                remedy="collect more kernels, or use another dataset or store",
            )
    progress(f"training the base on {len(rest)} kernels")
    base = base_of("the rest", lender, rest, labels, source, seed=seed)
    held = take(samples, test)
    curve = learning_curve(
        take(samples, train),
        split.labels[train],
        held,
        Roofline(profile),
        estimator=estimator_for(profile.kind, seed=seed),
        adaptation=Adaptation(base, profile, source.problems()),
        progress=progress,
    )
    return HeldBackReport(
        device=profile.key,
        held_back=part,
        base=lender.key,
        unadapted=unadapted(base.model, lender, profile, held),
        n_base=len(rest),
        n_train=len(train),
        n_kernels=len(test),
        curve=curve,
    )


def unadapted(
    model: CostModel, lender: DeviceProfile, profile: DeviceProfile, held: KernelSamples
) -> Unadapted:
    """What ``model`` of the device ``lender`` is worth on kernels ``held`` back of another.

    Raises:
        ModelError: the model is not a trained one, or the features are not its.
    """
    if not isinstance(model, TrainedModel):
        raise ModelError(
            "only a trained model can stand in for another device",
            subject=f"model {model.name}",
            remedy="use a base that was trained",
        )
    borrowed = BorrowedModel(model, lender, profile)
    found = borrowed.predict(held.features)
    known = np.array([source == "borrowed" for source in found.source], dtype=bool)
    if not known.any():
        return Unadapted(
            n_borrowed=0,
            mape_5us=None,
            roofline_mape_5us=None,
            coverage90=None,
            width_needed=None,
        )
    us, middle = held.median_us[known], found.us[known]
    large = us >= LARGE_US
    base = Roofline(profile).predict(held.features[known]).us
    error = np.abs(np.log(us / middle))
    own = np.log(found.high_us[known] / middle) - borrowed.width_added
    labels = np.array(split_groups(held.family[known], held.graph_key[known]), dtype=np.object_)
    return Unadapted(
        n_borrowed=int(known.sum()),
        mape_5us=mean(relative_errors(us[large], middle[large])),
        roofline_mape_5us=mean(relative_errors(us[large], base[large])),
        coverage90=mean(error <= own + borrowed.width_added),
        width_needed=grouped_quantile(error - own, labels, model.calibration.confidence),
    )


def _nearest(source: Source, profile: DeviceProfile) -> DeviceProfile:
    """The device of the source that is most like the one of ``profile``, but not that."""
    measured = set(source.measured_devices()) - {profile.key}
    rows = [row for row in source.devices() if row.key in measured and row.kind == profile.kind]
    if not rows:
        raise ModelError(
            f"it has kernels of no other {profile.kind} device than {profile.key}",
            subject=source.subject,
            remedy="collect on a second one, or hold back another part with --hold-back half",
        )
    others = [profile_of(row, source.subject) for row in rows]
    return min(others, key=lambda other: (distance(other, profile), other.key))


def _halves(samples: KernelSamples, problems: Problems) -> npt.NDArray[np.bool_]:
    """Which of n kernels move mostly two-byte elements; those without a problem do not."""
    halves = np.zeros(len(samples), dtype=bool)
    for key, rows in rows_by(samples.graph_key).items():
        if key in problems:
            problem = problems[key]
            for row in rows:
                halves[row] = _is_half(problem, samples.nodes[row])
    return halves


def _is_half(problem: Problem, names: Sequence[str]) -> bool:
    every = half = 0
    for name in names:
        node = problem.node_by_name[name]
        for access in (*node.reads, *node.writes):
            moved = access.touched * access.itemsize
            every += moved
            half += moved if access.itemsize == _HALF_BYTES else 0
    return 2 * half > every
