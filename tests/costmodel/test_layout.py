"""What a block moves of an access."""

from __future__ import annotations

import msgspec
import pytest

from fusewise.costmodel.layout import (
    LINE_BYTES,
    Layout,
    layout_of,
    merged_loops,
    moved,
    turned,
)
from fusewise.schedule.problem import UNPLACED, Access, AccessKind


def layout(
    index: str,
    loops: tuple[int, ...],
    *,
    itemsize: int = 4,
    stride: int = 1,
    kind: AccessKind = "strided",
) -> Layout:
    found = layout_of(Access("x", kind, 1, 1, itemsize, stride, index), loops)
    assert found is not None
    return found


def test_a_step_for_each_loop() -> None:
    assert layout("256*i0 + i1 : 16, 64", (4, 4, 64)).steps == (1024, 256, 1)
    # A vector added to each row; the same along the outer loop of as many turns.
    assert layout("i0 : 64", (64, 64)).steps == (0, 1)
    assert layout("i0 : 64", (64, 64), stride=0).steps == (1, 0)


@pytest.mark.parametrize(
    ("index", "loops", "itemsize", "vector"),
    [
        ("i0 : 4096", (4096,), 4, 4),
        ("i0 : 4096", (4096,), 2, 8),
        # Neither 8-byte loads nor masks that end where they do.
        ("i0 : 4097", (4097,), 4, 1),
        ("i0 + 2 : 4096", (4096,), 4, 2),
        ("130*i0 + i1 : 64, 128", (64, 128), 4, 2),
        ("64*i1 + i0 : 64, 64", (64, 64), 4, 4),
        ("3*i0 : 4096", (4096,), 4, 1),
    ],
)
def test_how_wide_a_load_is(index: str, loops: tuple[int, ...], itemsize: int, vector: int) -> None:
    assert layout(index, loops, itemsize=itemsize).vector == vector


def test_sectors_of_rows_columns_and_tiles() -> None:
    rows = layout("1024*i0 + i1 : 1024, 1024", (1024, 1024))
    columns = layout("i0 + 1024*i1 : 1024, 1024", (1024, 1024))
    flat = [(float(1 << 20), 256.0)]
    assert moved(rows, flat) == (32.0, 256.0)
    assert moved(columns, flat) == (256.0, 256.0)
    # A square block touches whole sectors either way.
    square = [(1024.0, 32.0), (1024.0, 32.0)]
    assert moved(rows, square)[0] == moved(columns, square)[0] == 128.0


def test_lines_hold_four_sectors_where_these_are_neighbours() -> None:
    rows = layout("1024*i0 + i1 : 1024, 1024", (1024, 1024))
    columns = layout("i0 + 1024*i1 : 1024, 1024", (1024, 1024))
    apart = layout("8*i0 : 4096", (4096,))
    warp = [(float(1 << 20), 32.0)]
    assert moved(rows, warp)[0] == 4.0
    assert moved(rows, warp, LINE_BYTES)[0] == 1.0
    assert moved(columns, warp)[0] == moved(columns, warp, LINE_BYTES)[0] == 32.0
    # Every eighth element is in a sector of its own, and four of these in a line.
    assert moved(apart, [(4096.0, 32.0)])[0] == pytest.approx(32.0, rel=0.05)
    assert moved(apart, [(4096.0, 32.0)], LINE_BYTES)[0] == pytest.approx(8.0, rel=0.15)


def test_what_is_looked_up_lies_anywhere() -> None:
    # Whole rows of 64 from a table, and single elements.
    rows = layout("64*tmp0 + i0 : 64", (1024, 64), kind="gather")
    assert moved(rows, [(65536.0, 512.0)])[0] == 8 * 8
    single = layout("tmp0 : ", (1024,), kind="gather", stride=0)
    assert moved(single, [(1024.0, 256.0)])[0] == 256.0


def test_what_is_looked_up_within_a_row_lies_no_farther_apart_than_the_row() -> None:
    # 400 lookups in each row of 64 elements of two bytes: one line, four sectors.
    index = "64*i0 + tmp0 : 1000"
    found = layout_of(Access("x", "gather", 400_000, 128_000, 2, 64, index), (1000, 400))
    assert found is not None
    warp = [(400_000.0, 32.0)]
    assert moved(found, warp)[0] == pytest.approx(4.0, rel=0.1)
    assert moved(found, warp, LINE_BYTES)[0] == pytest.approx(1.0, rel=0.1)
    # Few lookups come to few places.
    assert moved(found, [(400_000.0, 2.0)])[0] == pytest.approx(2.0, rel=0.1)
    # A place of a larger step may be anywhere in the table.
    rows = layout("i0 + 64*tmp0 : 64", (1024, 64), kind="gather")
    assert (rows.places, rows.reach) == (0, 0)


def test_an_index_that_cannot_be_read_has_no_layout() -> None:
    assert layout_of(Access("x", "strided", 1, 1, 4, 1, "f(i0) : 8"), (8,)) is None


def test_turning_and_merging_loops() -> None:
    nchw = layout("i0 : 131072", (4, 32, 1024))
    nhwc = turned(nchw, (0, 2, 1))
    assert nhwc.loops == (4, 1024, 32)
    assert nhwc.steps == (32768, 1, 1024)
    assert nhwc.inside == 32
    assert merged_loops(nchw.loops, 3, [nchw]) == ((131072,), ())
    assert merged_loops(nhwc.loops, 3, [nhwc]) == ((4, 1024, 32), ())
    assert merged_loops(nchw.loops, 2, [nchw]) == ((128,), (1024,))


def test_what_is_told_of_loops_goes_before_a_guess() -> None:
    loops = (8, 8, 8)
    row = Access("x", "broadcast", 512, 32, 4, 1, "i0 : 8")

    def steps(along: int) -> tuple[int, ...]:
        found = layout_of(msgspec.structs.replace(row, along=along), loops)
        assert found is not None
        return found.steps

    assert steps(UNPLACED) == steps(0b100) == (0, 0, 1)
    assert steps(0b001) == (1, 0, 0)
    assert steps(0b010) == (0, 1, 0)
    # What does not fit is not believed.
    assert steps(0b110) == (0, 0, 1)


def test_inductor_looks_at_the_first_turns_of_each_loop() -> None:
    # Where nothing goes on by one from there, a loop that it stays in place for counts instead.
    assert layout("256*i0 + i1 : 16, 64", (16, 64)).taken == 1
    halved = "14*(i0//2) + Min(i1//2, 13) : 28, 28"
    assert layout(halved, (28, 28)).taken == 0
    assert layout("3*i0 + 128*i1 : 16, 64", (16, 64)).taken == -1
    assert turned(layout("256*i0 + i1 : 16, 64", (16, 64)), (1, 0)).taken == 0


def test_rows_that_a_kernel_goes_through_by_themselves_begin_anywhere() -> None:
    rows = layout("i0 : 3136", (64, 49), itemsize=2)
    assert rows.vector == rows.vector_within(3136) == 8
    assert rows.vector_within(49) == 1
    assert layout("i0 : 3200", (64, 50), itemsize=2).vector_within(50) == 2


def test_for_how_long_an_access_stays_in_place() -> None:
    each = layout("i0 : 16", (16, 8, 4))
    assert each.stays(4)
    assert each.stays(32)
    assert not each.stays(512)
    assert not layout("8*i0 + i1 : 16, 8", (16, 8, 4)).stays(32)


def test_loops_that_a_place_tells_apart_are_not_one() -> None:
    nchw = layout("i0 : 131072", (4, 32, 1024))
    assert merged_loops(nchw.loops, 3, [nchw], [{2}]) == ((128, 1024), ())
    assert merged_loops(nchw.loops, 3, [nchw], [{1}, {2}]) == ((4, 32, 1024), ())
    assert merged_loops(nchw.loops, 3, [nchw], [{0, 1, 2}]) == ((131072,), ())
