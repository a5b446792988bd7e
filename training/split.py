"""Which kernels a model is judged on: whole families or whole graphs, never single rows.

The splitting itself is that of ``fusewise.datasets.splits``; here is what training asks of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from fusewise.datasets.samples import KernelSamples
from fusewise.datasets.splits import split_by_family, split_groups
from fusewise.schedule.errors import ModelError

#: Families needed for a split by family; with fewer, a family more or less decides everything.
LEAST_FAMILIES: Final = 3
_TEST_SHARE: Final = 0.25
Labels = npt.NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Holdout:
    """Rows to train on and to judge by, and the labels that hold rows together."""

    by: Literal["family", "graph", "published split"]
    #: [n], the family or graph of each row.
    labels: Labels
    #: Row numbers to fit to before judging, and to judge by.
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    #: Row numbers to fit to in the end: all but families that must never be trained on.
    final: npt.NDArray[np.int64]


def hold_out(samples: KernelSamples, *, seed: int, families: Collection[str] = ()) -> Holdout:
    """Hold out ``families``, or else a quarter of all families (of all graphs where they are few).

    Families that are asked for stay out for good; others come back for the last fit.

    Raises:
        ModelError: no kernel is of one of ``families``, or all kernels are of one graph.
    """
    rows = np.arange(len(samples))
    groups = np.array(split_groups(samples.family, samples.graph_key), dtype=np.object_)
    if families:
        _check_known(samples, families)
        out = np.isin(samples.family.astype(str), sorted(families))
        return Holdout("family", groups, rows[~out], rows[out], rows[~out])
    by: Literal["family", "graph"] = "family"
    if len({family for family in samples.family if family}) < LEAST_FAMILIES:
        by, groups = "graph", samples.graph_key
    if len(set(groups)) < 2:  # noqa: PLR2004 - two sides need two groups
        raise ModelError(
            "all measured kernels are of one graph, none is left to judge the model by",
            subject="training data",
            remedy="collect or compile at least two different graphs",
        )
    split = split_by_family(groups, test_fraction=_TEST_SHARE, seed=seed)
    return Holdout(by, groups, split.train, split.test, rows)


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
    chosen = {
        field.name: getattr(samples, field.name)[rows]
        for field in dataclasses.fields(samples)
        if field.name != "features_version"
    }
    return KernelSamples(features_version=samples.features_version, **chosen)


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
