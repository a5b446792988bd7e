"""Scores against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import FEATURES_VERSION
from fusewise.costmodel.interface import FloatArray, Prediction
from fusewise.datasets.samples import KernelSamples
from fusewise.training.evaluate import ordered_pairs, score_kernels
from fusewise.training.split import hold_out


class Fixed:
    """A cost model that says what it was told to."""

    id = name = "fixed"
    features_version = FEATURES_VERSION

    def __init__(self, *us: float) -> None:
        self.us = np.array(us)

    def predict(self, features: FloatArray) -> Prediction:
        assert len(features) == len(self.us)
        sources = ("learned", *("roofline",) * (len(self.us) - 1))
        return Prediction(self.us, self.us * 0.9, self.us * 1.1, sources)  # type: ignore[arg-type]


def samples(us: list[float], graph: list[str], family: list[str] | None = None) -> KernelSamples:
    n = len(us)
    return KernelSamples(
        features_version=FEATURES_VERSION,
        features=np.zeros((n, 1)),
        median_us=np.array(us),
        spread=np.zeros(n),
        low_us=np.full(n, np.nan),
        high_us=np.full(n, np.nan),
        compiler_us=np.full(n, np.nan),
        threads=np.zeros(n, dtype=np.int64),
        signature=np.array([f"k{i}" for i in range(n)], dtype=object),
        graph_key=np.array(graph, dtype=object),
        nodes=np.array([None] * n, dtype=object),
        family=np.array(family or [""] * n, dtype=object),
        split=np.array(["train"] * n, dtype=object),
        device_key=np.array(["cpu"] * n, dtype=object),
    )


def test_kernel_scores():
    found = score_kernels(
        Fixed(11.0, 20.0, 30.0, 1.5), samples([10.0, 40.0, 30.0, 1.0], ["a", "a", "b", "b"])
    )
    assert found.n_kernels == 4
    assert found.mape_5us == pytest.approx((0.1 + 0.5 + 0.0) / 3)
    assert found.mape_small == pytest.approx(0.5)
    assert found.median_error_5us == pytest.approx(0.1)
    assert found.kendall_tau == 1.0
    assert found.pairwise == 1.0
    assert found.coverage90 == 0.5
    assert found.learned_share == 0.25
    flat = score_kernels(Fixed(1.0, 1.0), samples([10.0, 20.0], ["a", "a"]))
    assert (flat.kendall_tau, flat.pairwise) == (0.0, 0.5)
    assert score_kernels(Fixed(), samples([], [])).mape_5us is None
    assert score_kernels(Fixed(1.0), samples([1.0], ["a"])).pairwise is None


def test_pairs_of_different_graphs_and_equal_times_do_not_count():
    assert ordered_pairs(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == (0.0, 0)
    assert ordered_pairs(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == (2.0, 3)
    across = score_kernels(Fixed(2.0, 1.0), samples([10.0, 20.0], ["a", "b"]))
    assert across.pairwise is None


def test_groups_never_stand_on_both_sides(profile: DeviceProfile):
    graphs = [f"g{i % 8}" for i in range(80)]
    for families in (None, [f"f{i % 4}" for i in range(80)]):
        made = samples([1.0] * 80, graphs, families)
        split = hold_out(made, seed=0)
        assert split.by == ("graph" if families is None else "family")
        assert not set(split.labels[split.train]) & set(split.labels[split.test])
        assert len(split.train) + len(split.test) == len(split.final) == 80
    kept = hold_out(made, seed=0, families=("f1",))
    assert set(made.family[kept.test]) == {"f1"}
    assert np.array_equal(kept.final, kept.train)
