"""Networks: their sums are exact in any order, they learn, and what they say can be told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.network import INPUTS, WEIGHTS, Grid, Layer, Network, Networks
from fusewise.costmodel.network_fit import fit_network
from fusewise.costmodel.objective import slope_of

_FIT = """
import sys
import numpy as np
from fusewise.costmodel.network_fit import fit_network
from fusewise.costmodel.objective import slope_of
chance = np.random.default_rng(5)
rows = chance.normal(size=(700, 6))
network = fit_network(rows, np.sin(rows[:, 0]), slope_of, epochs=3, seed=(1,))
import msgspec
sys.stdout.buffer.write(msgspec.json.encode(network))
"""


def sample(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Rows [n, 5] and a target [n] that is smooth in three of the columns."""
    rows = np.random.default_rng(seed).normal(size=(n, 5)) * (1.0, 3.0, 0.1, 10.0, 1.0) + 2.0
    return rows, 0.3 * np.tanh(rows[:, 0]) + 0.1 * rows[:, 1] - np.maximum(rows[:, 2] - 2.0, 0.0)


@pytest.fixture(scope="module")
def network() -> Network:
    return fit_network(*sample(2000, 1), slope_of, epochs=15, seed=(3,))


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1),
    st.integers(0, 20),
    st.integers(1, 64),
)
def test_a_grid_takes_the_nearest_within_its_ends(values: list[float], bits: int, most: int):
    grid = Grid(bits, float(most))
    found = grid.nearest(np.array(values))
    assert (np.abs(found) <= most).all()
    assert (found * 2**bits == np.rint(found * 2**bits)).all()
    wanted = np.clip(values, -most, most)
    np.testing.assert_allclose(found, wanted, rtol=0.0, atol=0.5**bits / 2)
    np.testing.assert_array_equal(grid.nearest(found), found)


def test_it_learns_what_is_smooth(network: Network):
    rows, target = sample(500, 2)
    error = np.abs(network.predict(rows) - target).mean()
    assert error < 0.2 * np.abs(target - target.mean()).mean()


def test_the_order_of_a_sum_changes_no_bit(network: Network):
    rows, _ = sample(300, 4)
    order = np.random.default_rng(0).permutation(len(network.layers[0].offsets))
    first, second, *others = network.layers
    turned = msgspec.structs.replace(
        network,
        layers=(
            Layer(
                tuple(first.weights[at] for at in order), tuple(first.offsets[at] for at in order)
            ),
            Layer(tuple(tuple(row[at] for at in order) for row in second.weights), second.offsets),
            *others,
        ),
    )
    assert turned != network
    np.testing.assert_array_equal(turned.predict(rows), network.predict(rows))
    # Products of single rows go by other code than those of many.
    alone = [network.predict(row[None])[0] for row in rows]
    np.testing.assert_array_equal(alone, network.predict(rows))


@pytest.mark.parametrize("core", ["Nehalem", "Haswell"])
def test_instructions_of_other_processors_fit_the_same_network(core: str):
    def fitted(**more: str) -> bytes:
        command = [sys.executable, "-c", _FIT]
        environment = {**os.environ, **more}
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    assert fitted(OPENBLAS_CORETYPE=core) == fitted() != b""


def test_seeds_decide_and_few_rows_are_enough():
    rows, target = sample(40, 6)
    first, again, other = (
        fit_network(rows, target, slope_of, epochs=2, seed=(seed,)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert np.isfinite(other.predict(rows)).all()


def test_contributions_add_up_and_what_is_constant_has_none():
    rows, target = sample(1500, 7)
    rows[:, 4] = 1.0
    network = fit_network(rows, target, slope_of, epochs=15, seed=(1,))
    told = network.contributions(rows[:50])
    ratio = network.predict(rows[:50])
    np.testing.assert_allclose(told.sum(axis=1), ratio, atol=1e-9)
    assert (told[:, 4] == 0.0).all()
    # What steps leave over is little beside what columns add.
    usual = network.predict(np.array(network.centre)[None])
    assert np.abs(told[:, -1] - usual).mean() < 0.1 * np.abs(ratio).mean()
    whole = Networks((network, network), 0.25)
    np.testing.assert_allclose(
        whole.beside(np.zeros(50), whole.contributions(rows[:50]).sum(axis=1)), ratio / 4, atol=1e-9
    )


def test_far_off_inputs_are_taken_for_the_farthest_known(network: Network):
    rows, _ = sample(5, 8)
    far = (INPUTS.most + 1.0) / np.array(network.scale) + np.array(network.centre)
    np.testing.assert_array_equal(network.predict(far[None]), network.predict(far[None] * 1e6))
    assert len(network.predict(rows[:0])) == 0


@pytest.mark.parametrize(
    "layers",
    [
        (),
        (Layer(((1, 2),), (0,)), Layer(((1, 2),), (0,))),
        (Layer(((1, 2), (3, 4)), (0, 0)),),
        (Layer(((1, 2),), (0, 1)),),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers: tuple[Layer, ...]):
    with pytest.raises(ValueError, match="do not fit"):
        Network((0.0, 0.0), (1.0, 1.0), layers)


def test_it_is_the_same_after_being_written(network: Network, tmp_path: Path):
    path = tmp_path / "network"
    path.write_bytes(msgspec.json.encode(network))
    read = msgspec.json.decode(path.read_bytes(), type=Network)
    assert read == network
    most = max(abs(w) for layer in read.layers for row in layer.weights for w in row)
    assert most <= WEIGHTS.ends[1]
