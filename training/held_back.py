"""A part of the data as if it were another device's: what adapting is worth where one is at hand.

The base is trained on the kernels that are not of the part, and adapted to ever more of those that
are. Saves no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.dataset import Dataset
from fusewise.datasets.samples import KernelSamples, Problems
from fusewise.datasets.store import Store
from fusewise.schedule.errors import ModelError
from fusewise.schedule.problem import Problem
from fusewise.training.adapt import Adaptation
from fusewise.training.base import base_of
from fusewise.training.curve import CurvePoint, learning_curve
from fusewise.training.judged import rows_by
from fusewise.training.source import source_of
from fusewise.training.split import take

#: Parts that can be held back.
PARTS: Final = ("half",)
_HALF_BYTES: Final = 2


class HeldBackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The learning curve from the rest of the data to a part of it."""

    device: str
    #: One of :data:`PARTS`: ``half`` are kernels most of whose bytes are of two-byte elements.
    held_back: str
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
    """The learning curve from all kernels that are not of ``part`` to those that are.

    Judged by kernels of the part that the split holds out; the base sees nothing of their families
    either.

    Raises:
        ModelError: too few kernels on one of the sides.
        StoreError: the store cannot be read.
        DatasetError: the dataset is damaged.
    """
    source = source_of(data)
    progress("reading samples")
    samples = source.kernels(profile)
    split = source.hold_out(samples, seed=seed, families=())
    inside = _halves(samples, source.problems())
    rest, train, test = (
        split.train[~inside[split.train]],
        split.train[inside[split.train]],
        split.test[inside[split.test]],
    )
    for name, rows, least in (
        (f"are not of the part {part}", rest, MIN_ROWS),
        (f"are of the part {part}, to train on", train, MIN_ROWS),
        (f"are of the part {part}, to judge by", test, 1),
    ):
        if len(rows) < least:
            raise ModelError(
                f"{len(rows)} kernels {name}, at least {least} are needed",
                subject=source.subject,
                remedy="collect more kernels, or use another dataset or store",
            )
    progress(f"training the base on {len(rest)} kernels")
    base = base_of("the rest", profile, take(samples, rest), split.labels[rest], source, seed=seed)
    curve = learning_curve(
        take(samples, train),
        split.labels[train],
        take(samples, test),
        Roofline(profile),
        estimator=LearnedCostModel(seed=seed),
        adaptation=Adaptation(base, profile, source.problems()),
        progress=progress,
    )
    return HeldBackReport(
        device=profile.key,
        held_back=part,
        n_base=len(rest),
        n_train=len(train),
        n_kernels=len(test),
        curve=curve,
    )


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
