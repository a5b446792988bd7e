"""Whether a model knows what it does not know: kinds and sizes of kernels that it never saw.

Each class of kernels or operations in turn, and all that is large, is left out of the training;
then it is counted how many of those kernels are taken to be unlike those trained on. What is known
of kernels does not depend on the trees, so none are grown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fusewise.costmodel.familiar import Familiar, familiarise
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.learned import MIN_ROWS, LearnedCostModel, folds_of
from fusewise.costmodel.operations import CLASSES
from fusewise.costmodel.roofline import roofline_us
from fusewise.datasets.kernel_class import UNKNOWN
from fusewise.training.judged import JudgedKernels
from fusewise.training.metrics import mean
from fusewise.training.split import Labels

Mask = npt.NDArray[np.bool_]

#: How much larger kernels are that are judged by than those that were trained on.
LARGER: Final = 10.0
#: Parts of the kernels, from the smallest, that are trained on.
_CUTS: Final = (0.5, 0.8)
#: As above of one class of kernels, beside all kernels of the others.
_CLASS_CUT: Final = 0.7
#: Kernels that a count must be over.
_LEAST: Final = 5


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """What came of leaving some kernels out of the training."""

    #: ``kernel class`` and ``operation class``: all kernels of it, and with it; ``size``: all that
    #: are larger than a cut, judged by those ten times as large.
    kind: Literal["kernel class", "operation class", "size"]
    name: str
    #: Kernels trained on, and judged by.
    n_train: int
    n_kernels: int
    #: Part of the latter that were taken to be unlike the former.
    flagged: float


class OutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """How well kernels unlike those trained on are told."""

    #: Part of the kernels of families left out that were taken for strange, though nothing of
    #: their kind was left out.
    false_alarms: float
    left_out: tuple[LeftOut, ...]


def out_of_range(
    judged: JudgedKernels,
    labels: Labels,
    estimator: LearnedCostModel,
    progress: Callable[[str], None] = lambda _: None,
) -> OutOfRange | None:
    """Leave classes and sizes of n training kernels out, one at a time.

    None where there are too few kernels or labels to leave anything out.

    Args:
        judged: the kernels that a model may be trained on.
        labels: [n], family or graph of each.
        estimator: whose margin, false alarms and folds are used.
        progress: told of what is left out.
    """
    features = judged.samples.features
    if len(features) < 2 * MIN_ROWS or len(set(labels.tolist())) < 2 * estimator.folds:
        return None
    log_base = np.log(roofline_us(features))

    def learned(rows: Mask) -> Familiar:
        some = np.flatnonzero(rows)
        return familiarise(
            features[some],
            log_base[some],
            labels[some],
            folds_of(labels[some], estimator.folds),
            margin=estimator.margin,
            false_alarms=estimator.false_alarms,
        )

    progress("leaving families out")
    alarms = np.zeros(len(features), dtype=bool)
    for _, held in folds_of(labels, estimator.folds):
        rows = np.ones(len(features), dtype=bool)
        rows[held] = False
        alarms[held] = ~learned(rows).covers(features[held], log_base[held])
    found = []
    for kind, name, train, test in _cases(judged):
        count = int(np.count_nonzero(train))
        enough = count >= MIN_ROWS and len(set(labels[train].tolist())) > 1
        if not enough or np.count_nonzero(test) < _LEAST:
            continue
        progress(f"leaving out: {name}")
        strange = ~learned(train).covers(features[test], log_base[test])
        found.append(
            LeftOut(
                kind=kind,
                name=name,
                n_train=count,
                n_kernels=int(np.count_nonzero(test)),
                flagged=float(strange.mean()),
            )
        )
    return OutOfRange(false_alarms=mean(alarms) or 0.0, left_out=tuple(found))


def _cases(
    judged: JudgedKernels,
) -> Iterator[tuple[Literal["kernel class", "operation class", "size"], str, Mask, Mask]]:
    """What is left out: its kind and name, the kernels to train on, and those to judge by."""
    features = judged.samples.features
    classes = np.array(judged.coarse_classes, dtype=object)
    known = sorted(set(classes) - {UNKNOWN})
    for name in known:
        yield "kernel class", str(name), classes != name, classes == name
    for name in CLASSES:
        there = features[:, COLUMN[name]] > 0.0
        yield "operation class", name, ~there, there
    sizes = {
        "iterations": features[:, COLUMN["iterations"]],
        "bytes": features[:, COLUMN["distinct"]],
        "measured time": np.log2(judged.samples.median_us),
    }
    every = np.ones(len(features), dtype=bool)
    for title, size in sizes.items():
        for part in _CUTS:
            yield "size", f"{title}, {part:.0%} smallest", *_cut(size, every, part)
        for name in known:
            mine = classes == name
            if mine.any():
                train, test = _cut(size, mine, _CLASS_CUT)
                yield "size", f"{title} of {name}", train | ~mine, test


def _cut(size: FloatArray, among: Mask, part: float) -> tuple[Mask, Mask]:
    """Of some kernels the part with the least size [n], in doublings, and the much larger ones."""
    cut = float(np.quantile(size[among], part))
    return among & (size <= cut), among & (size >= cut + np.log2(LARGER))
