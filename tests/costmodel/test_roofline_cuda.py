"""The roofline of Triton kernels: what makes one slower."""

from __future__ import annotations

import numpy as np
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.feature_table import FEATURES
from fusewise.costmodel.partials import device_amounts
from fusewise.costmodel.roofline import roofline_parts, roofline_us

H200 = DeviceProfile(
    key="cuda-NVIDIA_H200",
    kind="cuda",
    name="NVIDIA H200",
    threads=270336,
    copy_gbs=4250.0,
    gather_gbs=142.0,
    flops_gfs=51674.0,
    transcendental_gops=911.0,
    launch_us=1.08,
    cache_bytes=62914560,
    cores=132,
    cache_gbs=7990.0,
)


def row(**amounts: float) -> np.ndarray:
    """Features of a kernel that reads and stores 256 MB in 64-kB blocks, but for ``amounts``."""
    base = {
        "read_contiguous": 256e6,
        "written_contiguous": 256e6,
        "sector_bytes": 512e6,
        "wavefronts": 4e6,
        "programs": 65536.0,
        "warps": 4.0,
        "waves": 31.0,
        "rounds": 31.0,
        "loads": 1.0,
        "turn_loads": 1.0,
        "even": 1.0,
        **device_amounts(H200),
        **amounts,
    }
    values = [base.get(feature.name, 0.0) for feature in FEATURES]
    logs = [feature.unit.startswith("log2") for feature in FEATURES]
    return np.where(logs, np.log2(1.0 + np.array(values)), values)[None, :]


def test_a_large_copy_takes_what_memory_takes() -> None:
    assert roofline_us(row())[0] == pytest.approx(512e6 / 4250e3, rel=0.1)


@pytest.mark.parametrize(
    "amounts",
    [
        {"sector_bytes": 8 * 512e6},
        {"wavefronts": 32 * 4e6 * 8},
        {"lines": 32 * 4e6 * 8},
        {"programs": 16.0},
        {"rounds": 6000.0},
        {"random_bytes": 256e6},
        {"transcendental": 4e9},
        {"address": 1e10},
        {"combining": 3e4},
        {"atomic_turns": 1e9},
        {"atomic_crowd": 1e6},
        {"requests": 1e8},
        {"spread": 4e9},
        {"stored_sectors": 400e6, "spread": 1.2e9},
        {"atomic_halves": 1e8},
        {"welford": 3e9},
        {"issued": 1e8},
        {"issued": 2e7, "reductions": 1.0},
        {"issued": 2e7, "reductions": 1.0, "persistent": 1.0},
    ],
)
def test_what_makes_a_kernel_slower(amounts: dict[str, float]) -> None:
    assert roofline_us(row(**amounts))[0] > 1.3 * roofline_us(row())[0]


def test_a_masked_loop_waits_longer() -> None:
    turns = {"rounds": 4000.0, "programs": 16.0}
    even, masked = row(**turns), row(**turns, even=0.0)
    assert roofline_parts(masked).waiting[0] > roofline_parts(even).waiting[0]


def test_a_loop_that_loads_nothing_new_does_not_wait_for_memory() -> None:
    turns = {"rounds": 4000.0, "programs": 16.0}
    loading, counting = row(**turns), row(**turns, turn_loads=0.0)
    assert roofline_parts(counting).waiting[0] < 0.1 * roofline_parts(loading).waiting[0]


def test_means_with_variances_cost_more_in_a_loop() -> None:
    reduced = {"welford": 1e9, "combining": 1e3}
    looped, held = row(**reduced), row(**reduced, persistent=1.0)
    assert roofline_us(looped)[0] > roofline_us(held)[0]


def test_lanes_beyond_the_ends_of_rows_compute_like_the_others() -> None:
    """A row of 513 elements is held in 1024 lanes."""
    reduced = {"reductions": 1.0, "reducing": 3e9, "transcendental": 4e9}
    full, padded = (roofline_parts(row(**reduced, padding=share)) for share in (0.0, 0.99))
    for term in ("operations", "functions"):
        assert padded.terms[term][0] > 1.5 * full.terms[term][0]


def test_nothing_is_beyond_where_nothing_is_reduced() -> None:
    work = {"arithmetic": 3e9}
    assert roofline_us(row(**work, padding=0.9)) == roofline_us(row(**work))


def test_a_loop_across_rows_hides_less_of_its_waiting() -> None:
    turns = {"rounds": 2000.0, "programs": 132.0, "reductions": 1.0}
    along, across = row(**turns), row(**turns, outer_reductions=1.0)
    assert roofline_us(across)[0] > 1.1 * roofline_us(along)[0]
    held = {**turns, "persistent": 1.0}
    assert roofline_us(row(**held, outer_reductions=1.0)) == roofline_us(row(**held))


def test_masks_make_loads_of_a_loop_slower() -> None:
    loop = {"issued": 2e7, "reductions": 1.0, "loads": 2.0}
    assert roofline_us(row(**loop, op_masked=2.0))[0] > 1.1 * roofline_us(row(**loop))[0]


def test_whole_vectors_hide_behind_what_is_moved() -> None:
    whole = {"touched": 512e6, "issued": 1e6}
    assert roofline_us(row(**whole))[0] == roofline_us(row(touched=512e6))[0]
