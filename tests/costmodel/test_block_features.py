"""What block sizes do to a kernel: sectors against brute force, and features that always exist."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusewise.costmodel.block_features import block_features
from fusewise.costmodel.block_table import (
    BLOCK_FEATURES,
    BLOCKS_DIGEST,
    BLOCKS_VERSION,
    OF_KERNEL,
    OF_SIZES,
)
from fusewise.costmodel.block_tiles import SECTOR, Tiles
from fusewise.costmodel.triton_facts import Access, KernelFacts
from fusewise.costmodel.triton_index import Level
from fusewise.costmodel.triton_source import facts_of
from fusewise.schedule.block_sizes import BlockSizes

KernelText = Callable[[str], str]
DIMS = ("y", "x")


def access(
    levels: Sequence[Sequence[tuple[int, int]]], width: int = 4, masked: Sequence[str] = ()
) -> Access:
    return Access(
        doing="load",
        pointer="in_ptr0",
        width=width,
        dims=DIMS[-len(levels) :],
        levels=tuple(tuple(Level(*level) for level in moves) for moves in levels),
        indirect=False,
        share=1.0,
        looped=frozenset(),
        eviction="",
        masked=frozenset(masked),
    )


def tile(*extents: int) -> np.ndarray:
    return np.array(extents, dtype=float)[:, None, None]


def told(source: str, sizes: Sequence[BlockSizes]) -> list[dict[str, float]]:
    facts = facts_of(source)
    assert facts is not None
    names = [feature.name for feature in BLOCK_FEATURES]
    return [
        dict(zip(names, map(float, row), strict=True))
        for row in block_features(facts, sizes, sizes[0])
    ]


def sizes_of(warps: int, **constants: int) -> BlockSizes:
    return BlockSizes(tuple(sorted(constants.items())), warps, 1)


@given(
    inner=st.sampled_from([1, 2, 4, 8, 16, 64]),
    pitch=st.sampled_from([8, 64, 256, 1024]),
    y=st.sampled_from([1, 2, 8, 32]),
    x=st.sampled_from([1, 2, 8, 32, 128]),
    width=st.sampled_from([2, 4, 8]),
)
def test_sectors_are_those_of_the_addresses(
    inner: int, pitch: int, y: int, x: int, width: int
) -> None:
    """Rows of which each ``inner``-th element is touched, a whole number of sectors apart."""
    pitch = max(pitch, 128 * inner)
    one = access([[(1024, pitch)], [(128, inner)]], width)
    found = Tiles([one], DIMS).touched(tile(y, x))[0, 0]
    places = {
        (i * pitch + j * inner) * width // SECTOR for i, j in itertools.product(range(y), range(x))
    }
    assert found == len(places)


def test_a_tile_across_rows_touches_whole_sectors_again() -> None:
    tiles = Tiles([access([[(64, 1024)], [(1024, 1)]])], DIMS)
    assert tiles.touched(tile(1, 32))[0, 0] == 4
    assert tiles.touched(tile(32, 1))[0, 0] == 32
    # Where a row ends, the next one goes on elsewhere.
    short = Tiles([access([[(8, 1), (1024, 4096)]])], ("x",))
    assert short.touched(tile(64))[0, 0] == 8


@pytest.mark.parametrize(
    ("one", "elements"),
    [
        (access([[(1024, 1)]]), 4),
        (access([[(1024, 1)]], 2), 8),
        (access([[(1024, 1)]], 8), 2),
        (access([[(1024, 2)]]), 1),
        (access([[(770, 1), (64, 1024)]]), 2),
        (access([[(1000, 1)]], masked=["x"]), 4),
        (access([[(1001, 1)]], masked=["x"]), 1),
        (access([[(64, 1025)], [(1024, 1)]]), 1),
        (access([[(64, 0)], [(1024, 1)]]), 4),
    ],
)
def test_a_thread_takes_what_is_sure_to_lie_side_by_side(one: Access, elements: int) -> None:
    assert Tiles([one], DIMS).vector_most[0, 0] == elements


def test_columns_have_units_and_no_two_have_a_name() -> None:
    names = [feature.name for feature in BLOCK_FEATURES]
    assert len(names) == len(set(names)) == len(OF_KERNEL) + 2 * len(OF_SIZES)
    # Who changes the table raises the version, and writes the digest of it here.
    assert (BLOCKS_VERSION, BLOCKS_DIGEST) == (1, "ab837c56d52d")


def test_a_copy_of_rows(kernel_text: KernelText) -> None:
    small, large = told(
        kernel_text("broadcast"), [sizes_of(4, XBLOCK=512), sizes_of(4, XBLOCK=1024)]
    )
    assert small["programs"] == pytest.approx(np.log2(786432 / 512))
    assert (small["each"], large["each"], large["each_change"]) == (2, 3, 1)
    assert large["programs_change"] == -1 and small["programs_change"] == 0
    assert small["padding"] == 0 and small["turns"] == 0
    # 768 elements of two bytes: 8 at once.
    assert large["vector_loads"] == 4 and small["vector_loads"] == 3
    assert large["bytes"] == pytest.approx(np.log2(2 * 786432 * 2 + 768 * 2), abs=0.01)


def test_a_square_tile_reads_both_ways_well(kernel_text: KernelText) -> None:
    flat, square = told(
        kernel_text("transposed"),
        [sizes_of(4, XBLOCK=1024, YBLOCK=1), sizes_of(4, XBLOCK=32, YBLOCK=32)],
    )
    # A third of the accesses takes a sector for each of its elements.
    assert flat["sector_ratio"] == pytest.approx(np.log2((2 + 8) / 3), abs=0.01)
    assert square["sector_ratio"] == 0
    assert square["sector_ratio_change"] == -flat["sector_ratio"]


def test_rows_are_shared_by_threads_or_not(kernel_text: KernelText) -> None:
    alone, wide = told(
        kernel_text("softmax_looped"),
        [sizes_of(16, XBLOCK=1, R0_BLOCK=2048), sizes_of(2, XBLOCK=64, R0_BLOCK=8)],
    )
    assert (alone["row_threads"], alone["row_warps"]) == (9, 4)
    assert alone["turns"] == pytest.approx(np.log2(np.ceil(50257 / 2048)))
    assert wide["row_threads"] == 3 and wide["row_warps"] == 0
    (columns,) = told(kernel_text("column_sum"), [sizes_of(8, XBLOCK=64, R0_BLOCK=64)])
    # 16 threads with four columns each, and 16 rows of them.
    assert (columns["run_threads"], columns["row_threads"], columns["row_warps"]) == (4, 4, 3)


def test_a_block_goes_through_rows_of_its_own(kernel_text: KernelText) -> None:
    few, many = told(
        kernel_text("mixed_order"),
        [sizes_of(8, XBLOCK=1, RSPLIT_SIZE=16), sizes_of(8, XBLOCK=2, RSPLIT_SIZE=64)],
    )
    assert (few["programs"], few["turns"], many["programs"], many["turns"]) == (9, 4, 7, 5)


POWERS = st.integers(0, 12).map(lambda at: 1 << at)


@settings(deadline=None)
@given(data=st.data())
def test_features_are_finite_whatever_the_sizes(
    data: st.DataObject, every_kernel: tuple[str, ...]
) -> None:
    facts = facts_of(data.draw(st.sampled_from(every_kernel)))
    if facts is None:
        return
    sizes = data.draw(st.lists(any_sizes(facts), min_size=1, max_size=5))
    with np.errstate(all="raise"):
        found = block_features(facts, sizes, sizes[-1])
    assert found.shape == (len(sizes), len(BLOCK_FEATURES)) and np.isfinite(found).all()
    assert (found[-1, -len(OF_SIZES) :] == 0.0).all()
    # Each row is what it is alone, whatever stands beside it.
    alone = block_features(facts, sizes[:1], sizes[-1])
    assert (alone[0] == found[0]).all()


def any_sizes(facts: KernelFacts) -> st.SearchStrategy[BlockSizes]:
    names = [f"{dim.upper()}BLOCK" for dim in facts.numels]
    blocks = {name: POWERS for name in names if name not in facts.blocks}
    return st.builds(
        lambda constants, warps, stages: BlockSizes(
            tuple(sorted(constants.items())), 1 << warps, stages
        ),
        st.fixed_dictionaries(blocks),
        st.integers(0, 5),
        st.integers(1, 5),
    )
