"""Which kernels a model is judged on: whole families or whole graphs, never single rows.

The splitting itself is that of ``fusewise.datasets.splits``; here is what training asks of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import split_by_family, split_groups
from fusewise.schedule.errors import ModelError

#: Families needed for a split by family; with fewer, a family more or less decides everything.
LEAST_FAMILIES: Final = 3
#: Kernels of the reserved families that are enough to judge by.
LEAST_TEST: Final = 50
_TEST_SHARE: Final = 0.25
Labels = npt.NDArray[np.object_]
SplitBy = Literal["family", "graph", "published split"]


@dataclass(frozen=True, slots=True)
class Holdout:
    """Rows to train on and to judge by, and the labels that hold rows together."""

    by: SplitBy
    #: [n], the family or graph of each row.
    labels: Labels
    #: Row numbers to fit to before judging, and to judge by.
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    #: Row numbers to fit to in the end: all but families that must never be trained on.
    final: npt.NDArray[np.int64]


def hold_out(
    samples: KernelSamples, *, seed: int, families: Collection[str] = (), subject: str = "store"
) -> Holdout:
    """What to judge by of samples that bring no split of their own.

    Families that are reserved for testing (``fusewise.datasets.splits.split_of``) are never
    trained on, whatever else is asked for. Judged is by ``families`` where some are named; else by
    the reserved ones, as published data is; else, where there are too few kernels of these, by a
    quarter of the other families (of their graphs, where they have none or are few), which come
    back for the last fit.

    Raises:
        ModelError: no kernel is of one of ``families``; all are of reserved families, of one
            family, or of one graph.
    """
    groups = np.array(split_groups(samples.family, samples.graph_key), dtype=np.object_)
    reserved = samples.split == "test"
    ours = np.flatnonzero(~reserved)
    if not len(ours):
        told = ", ".join(sorted({str(family) for family in samples.family})[:5])
        raise ModelError(
            f"all {len(samples)} kernels are of families that are only for testing: {told}",
            subject=subject,
            remedy="collect others beside them, or judge a model by these with --evaluate-only",
        )
    if families:
        _check_known(samples, families)
        out = np.isin(samples.family.astype(str), sorted(families))
        train = np.flatnonzero(~out & ~reserved)
        return Holdout("family", groups, train, np.flatnonzero(out), train)
    if np.count_nonzero(reserved) >= LEAST_TEST:
        return Holdout("published split", groups, ours, np.flatnonzero(reserved), ours)
    by: SplitBy = "family"
    named = {str(family) for family in samples.family[ours]}
    if len(set(samples.graph_key[ours])) < 2:  # noqa: PLR2004 - two sides need two groups
        raise ModelError(
            "all measured kernels are of one graph, none is left to judge the model by",
            subject=subject,
            remedy="collect or compile at least two different graphs",
        )
    if len(named) == 1 and "" not in named:
        raise ModelError(
            f"all {len(ours)} kernels are of one family, {named.pop()!r}: nothing would tell how "
            "the model does on any other",
            subject=subject,
            remedy="collect other families beside it, as with: fusewise collect --corpus generated",
        )
    if len(named - {""}) < LEAST_FAMILIES:
        by, groups = "graph", samples.graph_key
    split = split_by_family(groups[ours], test_fraction=_TEST_SHARE, seed=seed)
    return Holdout(by, groups, ours[split.train], ours[split.test], ours)


def published_holdout(samples: KernelSamples, subject: str) -> Holdout:
    """The split that the samples come with: its test side is never fitted to.

    Raises:
        ModelError: one side has no kernels.
    """
    test = samples.split == "test"
    for side, rows in (("train", ~test), ("test", test)):
        if not rows.any():
            raise ModelError(
                f"none of its {len(samples)} kernels is of the {side} split",
                subject=subject,
                remedy="choose another device with --device, or another dataset",
            )
    groups = np.array(split_groups(samples.family, samples.graph_key), dtype=np.object_)
    train = np.flatnonzero(~test)
    return Holdout("published split", groups, train, np.flatnonzero(test), train)


def take(samples: KernelSamples, rows: npt.NDArray[Any]) -> KernelSamples:
    """The samples of ``rows`` (numbers or a mask)."""
    chosen = {name: getattr(samples, name)[rows] for name in _COLUMNS}
    return KernelSamples(features_version=samples.features_version, **chosen)


def concatenate(parts: Sequence[KernelSamples]) -> KernelSamples | None:
    """The samples of all ``parts``, which are of one features version; None of nothing."""
    if not parts:
        return None
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return KernelSamples(features_version=parts[0].features_version, **joined)


_COLUMNS: Final = tuple(
    field.name for field in dataclasses.fields(KernelSamples) if field.name != "features_version"
)


def _check_known(samples: KernelSamples, families: Collection[str]) -> None:
    known = {family for family in samples.family if family}
    unknown = sorted(set(families) - known)
    if unknown:
        raise ModelError(
            f"no measured kernel is of family {unknown[0]!r}, "
            f"there are: {', '.join(sorted(known)) or 'none'}",
            subject="--hold-out",
            remedy="name families that the store has",
        )
