"""Blocks of Triton kernels, guessed, against Inductor's own choice for the same loops."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.costmodel.tiles import Hint, reduction_hint, tile_of
from fusewise.schedule.problem import Access, Node

pytest.importorskip("triton", reason="Inductor keeps its block sizes in Triton's terms")
heuristics = pytest.importorskip("torch._inductor.runtime.triton_heuristics")
hints = pytest.importorskip("torch._inductor.runtime.hints")
CORES = 132
H200 = hints.DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=CORES,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)


REDUCTION = Node(
    name="op0",
    kind="reduction",
    device="cuda:0",
    numel=256,
    rnumel=4096,
    ranges=((256,), (4096,)),
    reduction_type="sum",
    reads=(),
    writes=(),
    ops=(),
    origins=(),
    source="",
    order=0,
    compiler_us=0.0,
    flops=0,
    signature="",
)


def configs(rows: int, length: int, hint: str) -> list[tuple[int, int]]:
    """Block sizes that Inductor would try for a looped reduction."""
    found = heuristics._reduction_configs(
        size_hints={"x": _power(rows), "r0_": _power(length)},
        inductor_meta={
            "reduction_hint": hints.ReductionHint[hint],
            "num_load": 2,
            "num_reduction": 1,
        },
        triton_meta={"device": H200},
    )
    return [(c.kwargs["XBLOCK"], c.kwargs["R0_BLOCK"]) for c in found]


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@pytest.mark.parametrize("rows", [24, 200, 768, 4096, 40000])
@pytest.mark.parametrize("length", [3000, 12672, 100352])
@pytest.mark.parametrize("hint", ["inner", "outer"])
def test_looped_reductions_are_cut_as_inductor_cuts_them(
    rows: int, length: int, hint: Hint
) -> None:
    tile = tile_of(rows * length, [(rows, length, hint)], 2, CORES)
    across, along = tile.elements / tile.along, tile.along
    (expected,) = configs(rows, length, hint.upper())
    # Inductor shrinks some blocks further for registers: within a factor of two is as good.
    assert across == pytest.approx(expected[0], rel=1.0)
    assert along == pytest.approx(expected[1], rel=1.0)
    assert not tile.persistent


@given(
    rows=st.integers(1, 1 << 20),
    length=st.integers(1, 1 << 20),
    hint=st.sampled_from(["inner", "outer", "tuned"]),
    loads=st.integers(1, 30),
)
def test_blocks_cover_the_loops(rows: int, length: int, hint: Hint, loads: int) -> None:
    tile = tile_of(rows * length, [(rows, length, hint)], loads, CORES)
    across = tile.elements / tile.along
    assert tile.programs * across >= rows
    assert tile.turns * tile.along >= length
    assert not tile.persistent or tile.turns == 1


@pytest.mark.parametrize(
    ("told", "expected"),
    [("inner", "inner"), ("outer", "outer"), ("default", "tuned"), ("outer_tiny", "tuned")],
)
def test_a_hint_that_was_kept_is_taken(told: str, expected: str) -> None:
    read = Access("x", "strided", 1 << 20, 1 << 22, 4, 256, "i0 + 256*i1 : 256, 4096")
    node = msgspec.structs.replace(REDUCTION, reads=(read,), hint=told)
    assert reduction_hint(node, CORES) == expected


def test_a_hint_is_guessed_from_how_the_largest_reads_lie() -> None:
    across = Access("x", "strided", 1 << 20, 1 << 22, 4, 256, "i0 + 256*i1 : 256, 4096")
    padded = Access("x", "contiguous", 1 << 20, 1 << 22, 4, 1, "8192*i0 + i1 : 256, 4096")
    assert reduction_hint(msgspec.structs.replace(REDUCTION, reads=(across,)), CORES) == "outer"
    assert reduction_hint(msgspec.structs.replace(REDUCTION, reads=(padded,)), CORES) == "inner"


def test_short_rows_are_held_whole() -> None:
    assert tile_of(4096 * 768, [(4096, 768, "inner")], 2, CORES).persistent
    assert not tile_of(4096 * 768, [(4096, 768, "outer")], 2, CORES).persistent
    assert tile_of(4096 * 48, [(4096, 48, "outer")], 2, CORES).persistent


def test_reductions_along_both_ways_share_rows_between_blocks() -> None:
    tile = tile_of(1 << 24, [(65536, 256, "inner"), (256, 65536, "outer")], 2, CORES)
    assert tile.programs >= CORES
    assert tile.programs * tile.turns >= 65536


def test_pointwise_kernels_have_no_reduction() -> None:
    tile = tile_of(1 << 20, [], 2, CORES)
    assert (tile.programs, tile.turns, tile.along) == (1024, 1, 1)
