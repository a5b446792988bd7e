"""The straight part: what it finds, that it stays within bounds, and that batches do not matter."""

from __future__ import annotations

import msgspec
import numpy as np

from fusewise.costmodel.linear import Linear


def test_it_finds_a_straight_line_and_holds_columns_that_never_change_at_nought():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(5.0, 2.0, (3000, 3)), np.full(3000, 7.0)])
    y = 1.0 + x[:, 0] - 0.5 * x[:, 1]
    line = Linear.fit(x, y, 1e-3)
    np.testing.assert_allclose(line.predict(x), y, atol=0.05)
    assert line.weight[3] == 0.0
    moved = x[:5].copy()
    moved[:, 3] = 1e6
    assert np.array_equal(line.predict(moved), line.predict(x[:5]))
    # A strong ridge says nothing but the mean.
    assert np.ptp(Linear.fit(x, y, 1e9).predict(x)) < 1e-3


def test_nothing_runs_away():
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, 1.0, (500, 4))
    line = Linear.fit(x, x[:, 0], 1.0)
    assert abs(line.predict(np.array([[1e9, 0.0, 0.0, 0.0]]))[0]) < 4.5


def test_parts_add_up_and_batches_do_not_matter():
    rng = np.random.default_rng(2)
    x = rng.normal(0.0, 3.0, (257, 84))
    line = Linear.fit(x, rng.normal(0.0, 1.0, 257), 10.0)
    whole = line.predict(x)
    assert np.array_equal(whole, [line.predict(row[None])[0] for row in x])
    assert np.array_equal(whole, line.predict(np.asfortranarray(x)))
    np.testing.assert_allclose(line.offset + line.parts(x).sum(axis=1), whole)
    again = msgspec.json.decode(msgspec.json.encode(line), type=Linear)
    assert np.array_equal(again.predict(x), whole)
