"""Intervals hold what they say on families that were not seen, and are wide where errors are."""

from __future__ import annotations

import numpy as np
import pytest

from fusewise.costmodel.calibration import calibrate, grouped_quantile
from fusewise.costmodel.roofline import INTERVAL_FACTOR


def test_of_single_rows_it_is_split_conformal():
    scores = np.random.default_rng(0).permutation(np.arange(99.0))
    # The ceil(0.9 (99 + 1))-th smallest of 99.
    assert grouped_quantile(scores, np.arange(99), 0.9) == np.sort(scores)[89]
    assert grouped_quantile(scores[:5], np.arange(5), 0.9) == scores[:5].max()


def test_a_family_counts_by_the_root_of_its_kernels():
    scores = np.concatenate([np.full(1000, 0.1), np.linspace(1.0, 2.0, 39)])
    labels = np.concatenate([np.zeros(1000, dtype=int), np.arange(1, 40)])
    # By rows nearly all would be 0.1.
    assert 1.7 < grouped_quantile(scores, labels, 0.9) < 1.9
    few = np.concatenate([np.zeros(1000, dtype=int), np.ones(39, dtype=int)])
    assert 1.3 < grouped_quantile(scores, few, 0.9) < 1.5


def test_draws_of_one_grammar_count_as_one():
    rng = np.random.default_rng(3)
    n = 4000
    drawn = np.arange(n) % 2 == 1
    # Random structures err by far more, and are many; families that have names are few.
    error = rng.normal(0.0, np.where(drawn, 0.5, 0.1))
    names = [f"drawn_{i % 500}" if odd else f"family {i % 80}" for i, odd in enumerate(drawn)]
    alone = [f"drawn {i % 500}" if odd else f"family {i % 80}" for i, odd in enumerate(drawn)]

    def width(labels: list[str]) -> float:
        found = calibrate(
            log_base=np.zeros(n),
            log_ratio=error,
            learned_error=error,
            difficulty=np.full(n, 0.1),
            labels=np.array(labels, dtype=object),
            kinds=np.zeros(n, dtype=np.int64),
            devices=np.zeros((n, 2)),
            confidence=0.9,
        )
        return float(found.learned_width(np.zeros(1), np.full(1, 0.1), np.zeros((1, 2)))[0])

    assert width(names) < 0.6 * width(alone)


def test_nine_of_ten_kernels_of_a_family_not_seen():
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(200):
        # Families differ in how well they are predicted, and in how many kernels they have.
        spread = rng.lognormal(0.0, 0.6, 41)
        counts = rng.integers(1, 60, 41)
        labels = np.repeat(np.arange(41), counts)
        scores = np.abs(rng.normal(0.0, 1.0, len(labels))) * spread[labels]
        seen = labels < 40
        width = grouped_quantile(scores[seen], labels[seen], 0.9)
        inside.append(np.mean(scores[~seen] <= width))
    assert 0.87 < np.mean(inside) < 0.92


def test_widths_follow_difficulty_and_strange_kinds_are_wide():
    rng = np.random.default_rng(2)
    n = 6000
    labels, kinds = rng.integers(0, 60, n), rng.integers(0, 5, n)
    log_base = rng.uniform(0.0, 6.0, n)
    difficulty = rng.choice([0.05, 0.5], n)
    # The roofline is off by a factor for each kind; the trees know that.
    log_ratio = 0.4 * kinds + rng.normal(0.0, 0.02, n)
    found = calibrate(
        log_base=log_base,
        log_ratio=log_ratio,
        learned_error=rng.normal(0.0, difficulty),
        difficulty=difficulty,
        labels=labels,
        kinds=kinds,
        devices=np.zeros((n, 2)),
        confidence=0.9,
    )
    assert found.scale == pytest.approx([1.65] * len(found.scale), abs=0.15)
    widths = found.learned_width(np.full(3, 2.0), np.array([0.05, 0.5, 0.0]), np.zeros((3, 2)))
    assert widths[1] == pytest.approx(10 * widths[0])
    # No width is nought, however sure the trees are.
    assert 0.0 < widths[2] < widths[0]
    # What nothing was learned of lies as far off as the kinds lie apart.
    assert found.strange_width > 0.7
    assert set(found.bins(np.array([-5.0, 3.0, 50.0]))) <= set(range(len(found.trusted)))
    alone = calibrate(
        log_base=log_base,
        log_ratio=log_ratio,
        learned_error=log_ratio,
        difficulty=difficulty,
        labels=labels,
        kinds=np.zeros(n, dtype=np.int64),
        devices=np.zeros((n, 2)),
        confidence=0.9,
    )
    assert alone.strange_width == pytest.approx(np.log(INTERVAL_FACTOR))
    # Where trees are no better than the roofline they are not asked.
    assert not any(alone.trusted)


def test_each_device_has_intervals_as_wide_as_its_errors():
    rng = np.random.default_rng(3)
    n = 9000
    labels, on = rng.integers(0, 60, n), rng.choice(3, n, p=[0.6, 0.395, 0.005])
    devices = np.array([[1.0, 4.0], [1.0, 6.0], [2.0, 2.0]])
    spread = np.array([0.05, 0.2, 0.2])[on]
    found = calibrate(
        log_base=rng.uniform(0.0, 6.0, n),
        log_ratio=rng.normal(0.0, 1.0, n),
        learned_error=rng.normal(0.0, spread),
        # What was expected of each knows nothing of devices.
        difficulty=np.full(n, 0.1),
        labels=labels,
        kinds=np.zeros(n, dtype=np.int64),
        devices=devices[on],
        confidence=0.9,
    )
    asked = np.vstack([devices[:2], devices[0] + 0.1, [[9.0, 9.0]], devices[2:]])
    quiet, noisy, like_quiet, unknown, rare = found.learned_width(
        np.full(5, 2.0), np.full(5, 0.1), asked
    )
    assert quiet == pytest.approx(1.65 * 0.05, rel=0.1)
    assert noisy == pytest.approx(1.65 * 0.2, rel=0.1)
    assert like_quiet == quiet
    # Of neither enough is known: as wide as for all together.
    assert quiet < unknown < noisy
    assert rare == unknown
