"""Kernels unlike those trained on are told: of a kind never seen, of a size never seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from fusewise.costmodel.familiar import Familiar, familiarise, signatures
from fusewise.costmodel.feature_table import COLUMN
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.learned import LearnedCostModel, folds_of
from fusewise.costmodel.roofline import roofline_us

MakeKernels = Callable[[int, int], Any]


def learned(features: FloatArray, labels: Any, false_alarms: float = 0.03) -> Familiar:
    return familiarise(
        features,
        np.log(roofline_us(features)),
        labels,
        folds_of(labels, 5),
        margin=1.0,
        false_alarms=false_alarms,
    )


def covers(familiar: Familiar, features: FloatArray) -> Any:
    return familiar.covers(features, np.log(roofline_us(features)))


@pytest.mark.parametrize("column", ["reductions", "transcendental", "read_strided"])
@pytest.mark.parametrize("without", [True, False])
def test_what_was_never_seen_is_strange(kernels: MakeKernels, column: str, without: bool):
    """Kernels with the feature where it was left out, and without it where all had it."""
    some = kernels(1200, 1)
    there = some.features[:, COLUMN[column]] > 0.0
    strange = there if without else ~there
    familiar = learned(some.features[~strange], some.graph[~strange])
    assert not covers(familiar, some.features[strange]).any()
    # What was trained on is not strange, but for what was hardly seen.
    assert covers(familiar, some.features[~strange]).mean() > 0.95


def test_what_was_seen_on_another_processor_alone_is_strange(kernels: MakeKernels) -> None:
    some = kernels(1200, 1)
    there = some.features[:, COLUMN["reductions"]] > 0.0
    both = some.features.copy()
    both[::2, COLUMN["device_threads"]] = np.log2(1.0 + 16.0)
    other = both[:, COLUMN["device_threads"]] > np.log2(16.0)
    # Reductions on the other processor only, all else on both.
    kept = other | ~there
    familiar = learned(both[kept], some.graph[kept])
    assert not covers(familiar, both[~kept]).any()
    assert covers(familiar, both[kept]).mean() > 0.95


def test_families_not_seen_are_not_strange(kernels: MakeKernels):
    train, test = kernels(1500, 2), kernels(1500, 3)
    familiar = learned(train.features, train.graph)
    assert 1.0 - covers(familiar, test.features).mean() <= 0.05


def test_ten_times_as_large_is_strange(kernels: MakeKernels):
    some = kernels(1500, 4)
    for name in ("iterations", "distinct"):
        size = some.features[:, COLUMN[name]]
        cut = np.median(size)
        familiar = learned(some.features[size <= cut], some.graph[size <= cut])
        assert not covers(familiar, some.features[size >= cut + np.log2(10.0)]).any()


@pytest.mark.parametrize(
    ("strays", "families", "known"), [(2, 2, False), (60, 1, False), (60, 3, True)]
)
def test_a_size_is_known_from_kernels_of_several_families(
    kernels: MakeKernels, strays: int, families: int, known: bool
) -> None:
    some = kernels(1500, 4)
    size = some.features[:, COLUMN["iterations"]]
    cut = np.median(size)
    small, large = np.flatnonzero(size <= cut), np.flatnonzero(size >= cut + np.log2(10.0))
    labels = np.asarray(some.graph, dtype=object).copy()
    # The largest of all stray into the training.
    stray = large[np.argsort(-size[large])[:strays]]
    labels[stray] = [f"stray{i % families}" for i in range(strays)]
    chosen = np.concatenate([small, stray])
    familiar = learned(some.features[chosen], labels[chosen])
    like = np.setdiff1d(large, stray)
    assert bool(covers(familiar, some.features[like]).mean() > 0.5) == known


def test_a_size_is_large_for_its_kind(kernels: MakeKernels):
    """Reductions were seen small only, others in every size."""
    some = kernels(1500, 5)
    reduces = some.features[:, COLUMN["reductions"]] > 0.0
    size = some.features[:, COLUMN["iterations"]]
    cut = np.median(size[reduces])
    left = ~reduces | (size <= cut)
    familiar = learned(some.features[left], some.graph[left])
    assert not covers(familiar, some.features[reduces & (size >= cut + np.log2(10.0))]).any()
    assert covers(familiar, some.features[~reduces & (size >= cut + np.log2(10.0))]).mean() > 0.9


def test_one_family_or_two_kernels_are_not_enough(kernels: MakeKernels):
    """A kind of kernel that a single family has is as good as none."""
    some = kernels(600, 6)
    reduces = some.features[:, COLUMN["reductions"]] > 0.0
    labels = np.where(reduces, 0.0, some.graph + 1.0)
    assert not covers(learned(some.features, labels), some.features[reduces]).any()
    two = ~reduces
    two[np.flatnonzero(reduces)[:2]] = True
    familiar = learned(some.features[two], some.graph[two])
    assert not covers(familiar, some.features[reduces]).any()


def test_more_alarms_allowed_ask_for_more_to_have_been_seen(kernels: MakeKernels):
    some = kernels(1500, 7)
    few, many = (learned(some.features, some.graph, share) for share in (0.0, 0.3))
    assert set(many.patterns) < set(few.patterns)
    assert covers(few, some.features).mean() > covers(many, some.features).mean() > 0.6


def test_a_signature_is_of_what_a_kernel_does_and_not_of_its_size(kernels: MakeKernels):
    some = kernels(400, 8)
    larger = some.features.copy()
    for name in ("iterations", "numel", "distinct", "touched"):
        larger[:, COLUMN[name]] += 3.0
    assert np.array_equal(signatures(larger), signatures(some.features))
    assert len(np.unique(signatures(some.features))) > 4


def test_it_is_told_with_the_model_and_survives_writing(kernels: MakeKernels):
    some = kernels(600, 9)
    calm = some.features[:, COLUMN["transcendental"]] == 0.0
    model = LearnedCostModel(n_estimators=20, networks=1, epochs=4).fit(
        some.features[calm], some.us[calm], some.graph[calm]
    )
    found = model.predict_interval(some.features)
    assert set(np.array(found.source)[~calm]) == {"roofline"}
    # Of kinds that were left out less is known than of those that were not.
    width = np.log(found.high_us / found.low_us)
    assert width[~calm].min() > np.median(width[calm])
    familiar = model.model_.familiar
    again = msgspec.json.decode(msgspec.json.encode(familiar), type=Familiar)
    assert np.array_equal(covers(again, some.features), covers(familiar, some.features))
