"""Kernels of an older fusewise get the features of this one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusewise.costmodel.feature_table import FEATURES_VERSION
from fusewise.datasets.store import Store
from fusewise.training.refeature import refeature


def test_features_are_computed_anew(make_store: Callable[..., Path]) -> None:
    with Store.open(make_store(version=0)) as store:
        before = store.kernel_samples()
        assert before.features_version == 0
        assert refeature(store) == len(before) > 0
        assert refeature(store) == 0
        found = store.kernel_samples()
    assert found.features_version == FEATURES_VERSION
    assert np.array_equal(found.features, before.features), "the fixture's were right already"
    assert np.array_equal(found.median_us, before.median_us)
