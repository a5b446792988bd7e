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
from fusewise.costmodel.network import (
    INPUTS,
    PASSED,
    WEIGHTS,
    Grid,
    Layer,
    Network,
    Networks,
    Scaling,
    parts_of,
    together,
)
from fusewise.costmodel.network_fit import fit_network
from fusewise.costmodel.objective import slope_of

_FIT = """
import sys
import numpy as np
from fusewise.costmodel.network import Scaling
from fusewise.costmodel.network_fit import fit_network
from fusewise.costmodel.objective import slope_of
chance = np.random.default_rng(5)
rows = chance.normal(size=(700, 6))
inputs = Scaling.of(rows).inputs(rows)
network = fit_network(
    inputs,
    rows[:, 3:],
    np.sin(rows[:, 0]),
    slope_of,
    epochs=3,
    width=160,
    dropout=1 / 16,
    seed=(1,),
)
import msgspec
sys.stdout.buffer.write(msgspec.json.encode(network))
"""


def sample(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Rows [n, 5] and a target [n] that is smooth in three columns; the others can be parts."""
    rows = np.random.default_rng(seed).normal(size=(n, 5)) * (1.0, 3.0, 0.1, 0.5, 0.5)
    rows += (2.0, 2.0, 2.0, -1.0, -1.0)
    return rows, 0.3 * np.tanh(rows[:, 0]) + 0.1 * rows[:, 1] - np.maximum(rows[:, 2] - 2.0, 0.0)


def fitted(
    rows: FloatArray,
    target: FloatArray,
    *,
    epochs: int,
    seed: int,
    parts: int = 0,
    width: int = 96,
    dropout: float = 0.0,
) -> Networks:
    """A single network, that weighs so many parts."""
    scaling = Scaling.of(rows)
    network = fit_network(
        scaling.inputs(rows),
        parts_of(rows, parts),
        target,
        slope_of,
        epochs=epochs,
        width=width,
        dropout=dropout,
        seed=(seed,),
    )
    return Networks(scaling, (network,))


@pytest.fixture(scope="module", params=[0, 2])
def networks(request: pytest.FixtureRequest) -> Networks:
    return fitted(*sample(2000, 1), epochs=25, seed=3, parts=request.param)


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


def test_it_learns_what_is_smooth(networks: Networks):
    rows, target = sample(500, 2)
    error = np.abs(networks.ratio(rows) - target).mean()
    assert error < 0.2 * np.abs(target - target.mean()).mean()


@pytest.mark.parametrize("dropout", [1 / 256, 0.25])
def test_what_is_left_out_is_made_up_for(dropout: float):
    rows, target = sample(2000, 1)
    told, wanted = sample(500, 2)
    every = fitted(rows, target, epochs=25, seed=3)
    some = fitted(rows, target, epochs=25, seed=3, dropout=dropout)
    assert some != every
    error = np.abs(some.ratio(told) - wanted).mean()
    assert error < 0.3 * np.abs(wanted - wanted.mean()).mean()
    assert abs((some.ratio(rows) - target).mean()) < 0.1 * target.std()


def test_not_all_is_left_out_however_much_shall_be():
    rows, target = sample(200, 1)
    assert np.isfinite(fitted(rows, target, epochs=1, seed=3, dropout=0.999).ratio(rows)).all()


@pytest.mark.parametrize(("rows", "width", "sums"), [(2000, 24, 24), (2000, 96, 44), (60, 96, 16)])
def test_layers_are_as_wide_as_asked_and_as_the_rows_bear(rows: int, width: int, sums: int):
    (network,) = fitted(*sample(rows, 1), epochs=1, seed=3, width=width).members
    assert [len(layer.offsets) for layer in network.layers] == [sums, sums, sums, 1]


def test_the_order_of_a_sum_changes_no_bit(networks: Networks):
    rows, _ = sample(300, 4)
    [network] = networks.members
    order = np.random.default_rng(0).permutation(len(network.layers[0].offsets))
    first, second, *others = network.layers
    turned = Network(
        (
            Layer(
                tuple(first.weights[at] for at in order), tuple(first.offsets[at] for at in order)
            ),
            Layer(tuple(tuple(row[at] for at in order) for row in second.weights), second.offsets),
            *others,
        )
    )
    assert turned != network
    seen = networks.scaling.inputs(rows), parts_of(rows, network.parts)
    np.testing.assert_array_equal(turned.predict(*seen), network.predict(*seen))
    # Products of single rows go by other code than those of many.
    alone = [networks.ratio(row[None])[0] for row in rows]
    np.testing.assert_array_equal(alone, networks.ratio(rows))


def by_whole_numbers(network: Network, inputs: FloatArray, parts: FloatArray) -> FloatArray:
    """What it says of ``inputs``, in whole numbers of any size but for the parts."""
    found = []
    for row in inputs:
        passed = [int(tick) for tick in row]
        bits = before = INPUTS.bits
        for layer in network.layers:
            sums = [
                sum(w * p for w, p in zip(weights, passed, strict=True)) + (offset << bits)
                for weights, offset in zip(layer.weights, layer.offsets, strict=True)
            ]
            shift = bits + WEIGHTS.bits - PASSED.bits
            passed = [round(min(max(s / (1 << shift), 0), PASSED.ends[1])) for s in sums]
            before, bits = bits, PASSED.bits
        found.append([s / (1 << (before + WEIGHTS.bits)) for s in sums])
    return together(np.array(found), parts)[0]


@pytest.mark.parametrize("weight", [3, 4096])
def test_sums_are_exact_in_floats_of_either_size(networks: Networks, weight: int):
    """Of large weights a sum takes more bits than 32-bit floats have."""
    [network] = networks.members
    first, *others = network.layers
    larger = tuple(tuple(w * weight for w in row) for row in first.weights)
    rows, _ = sample(40, 11)
    seen = networks.scaling.inputs(rows), parts_of(rows, network.parts)
    for each in (network, Network((Layer(larger, first.offsets), *others))):
        np.testing.assert_array_equal(each.predict(*seen), by_whole_numbers(each, *seen))


def test_sums_are_exact_where_only_both_signs_together_are_too_large(networks: Networks):
    """What comes into an inner layer is never below nought: sums end where one sign does."""
    [network] = networks.members
    first, second, *others = network.layers
    wide = len(second.weights[0])
    most = (1 << 24) // (PASSED.ends[1] * (wide // 2))
    signs = tuple(int(most) * (1 if i % 2 else -1) for i in range(wide // 2 * 2))
    row = signs + (0,) * (wide - len(signs))
    inner = Layer((row,) * len(second.weights), (0,) * len(second.offsets))
    rows, _ = sample(40, 11)
    seen = networks.scaling.inputs(rows), parts_of(rows, network.parts)
    found = Network((first, inner, *others))
    np.testing.assert_array_equal(found.predict(*seen), by_whole_numbers(found, *seen))
    assert found._ticks[1].weights.dtype == np.float32


@pytest.mark.parametrize("core", ["Nehalem", "Haswell"])
def test_instructions_of_other_processors_fit_the_same_network(core: str):
    def written(**more: str) -> bytes:
        command = [sys.executable, "-c", _FIT]
        environment = {**os.environ, **more}
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    assert written(OPENBLAS_CORETYPE=core) == written() != b""


def test_seeds_decide_and_few_rows_are_enough():
    rows, target = sample(40, 6)
    first, again, other = (fitted(rows, target, epochs=2, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert np.isfinite(other.ratio(rows)).all()


def test_contributions_add_up_and_what_is_constant_has_none():
    rows, target = sample(1500, 7)
    rows[:, 4] = 1.0
    networks = fitted(rows, target, epochs=15, seed=1)
    told = networks.contributions(rows[:50])
    ratio = networks.ratio(rows[:50])
    np.testing.assert_allclose(told.sum(axis=1), ratio, atol=1e-9)
    assert (told[:, 4] == 0.0).all()
    # What steps leave over is little beside what columns add.
    usual = networks.ratio(np.array(networks.scaling.centre)[None])
    assert np.abs(told[:, -1] - usual).mean() < 0.1 * np.abs(ratio).mean()
    whole = Networks(networks.scaling, 2 * networks.members, 0.25)
    np.testing.assert_allclose(
        whole.beside(np.zeros(50), whole.contributions(rows[:50]).sum(axis=1)), ratio / 4, atol=1e-9
    )


def test_far_off_inputs_are_taken_for_the_farthest_known(networks: Networks):
    rows, _ = sample(5, 8)
    scaling = networks.scaling
    far = (INPUTS.most + 1.0) / np.array(scaling.scale) + np.array(scaling.centre)
    farther = far * 1e6
    # Parts are taken as they are: logs of shares, which are bounded.
    parts = parts_of(far[None], networks.members[0].parts)
    farther[len(far) - parts.shape[1] :] = parts[0]
    np.testing.assert_array_equal(networks.ratio(far[None]), networks.ratio(farther[None]))
    assert len(networks.ratio(rows[:0])) == 0


def test_parts_come_together_as_roots_of_squares():
    chance = np.random.default_rng(4)
    sums, parts = chance.normal(size=(20, 4)), np.log(chance.uniform(0.01, 1.0, size=(20, 3)))
    ratio, slopes = together(sums, parts)
    squares = (np.exp(sums[:, 1:] + parts) ** 2).sum(axis=1)
    np.testing.assert_allclose(ratio, sums[:, 0] + np.log(squares) / 2, atol=1e-4)
    for at in range(4):
        step = np.zeros(4)
        step[at] = 0.01
        rise = together(sums + step, parts)[0] - together(sums - step, parts)[0]
        np.testing.assert_allclose(rise / 0.02, slopes[:, at], atol=5e-3)


@pytest.mark.parametrize(
    "layers",
    [
        (),
        (Layer(((1, 2),), (0,)), Layer(((1, 2),), (0,))),
        (Layer(((1, 2), (3, 4), (5, 6), (7, 8)), (0, 0, 0, 0)),),
        (Layer(((1, 2),), (0, 1)),),
        (Layer(((1, 2), (3,)), (0, 0)), Layer(((1, 2),), (0,))),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers: tuple[Layer, ...]):
    with pytest.raises(ValueError, match="do not fit"):
        Network(layers)


def test_members_of_other_columns_are_refused():
    member = Network((Layer(((1, 2),), (0,)),))
    assert Networks(Scaling((0.0, 0.0), (1.0, 1.0)), (member,))
    for centre, members in (((0.0,), (member,)), ((0.0, 0.0), ())):
        with pytest.raises(ValueError, match="columns"):
            Networks(Scaling(centre, (1.0, 1.0)), members)


def test_they_are_the_same_after_being_written(networks: Networks, tmp_path: Path):
    path = tmp_path / "networks"
    path.write_bytes(msgspec.json.encode(networks))
    read = msgspec.json.decode(path.read_bytes(), type=Networks)
    assert read == networks
    [network] = read.members
    most = max(abs(w) for layer in network.layers for row in layer.weights for w in row)
    assert most <= WEIGHTS.ends[1]
