"""What C++ loops are told to cost, from loops and accesses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import pytest

from fusewise.costmodel.cpu_costs import TABLES, body_cost, table_of
from fusewise.costmodel.cpu_loops import nest_of, node_loops
from fusewise.costmodel.cpu_processors import KEEN, NARROW, SWIFT, WIDE
from fusewise.costmodel.cpu_tables import Table
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.features import Featurizer
from fusewise.costmodel.roofline import roofline_us
from fusewise.schedule.problem import Access, Buffer, Problem
from tests.costmodel.one_node import access, column, problem_of


def test_ends_of_rows_are_partial_vectors_and_rows_start_loops(narrow: DeviceProfile) -> None:
    def rows(length: int) -> Problem:
        index = f"{2 * length}*i0 + i1 : 1024, {length}"
        read = access("contiguous", index, 1024 * length, 1)
        write = access("contiguous", f"i0 : {1024 * length}", 1024 * length, 1, "b")
        return problem_of(((1024, length), ()), read, write)

    # 512 rows for each thread, of two vectors, one of which is not full.
    assert column(rows(12), narrow, "partial_vectors") == pytest.approx(512)
    assert column(rows(16), narrow, "partial_vectors") == 0
    assert column(rows(12), narrow, "loop_starts") == pytest.approx(512)
    assert column(rows(12), narrow, "instructions") > column(rows(16), narrow, "instructions")


def test_what_is_reduced_is_stored_once_a_row(narrow: DeviceProfile) -> None:
    """The store of a bool is taken element by element, but only one a row is stored."""
    read = access("contiguous", f"i0 : {1 << 16}", 1 << 16, 1)
    written = Access("b", "contiguous", 1 << 10, 1 << 10, 1, 1, f"i0 : {1 << 10}")
    problem = problem_of(((1 << 10,), (1 << 6,)), read, written)
    # Two threads: 32,768 elements each, but 512 results.
    assert column(problem, narrow, "lane_by_lane") < (1 << 15) * NARROW.stores[0].lane / 10


def test_each_row_of_a_tile_is_a_vector(narrow: DeviceProfile) -> None:
    read = access("contiguous", "i0 : 3072", 3072, 1)
    write = access("strided", "i0 + 3*i1 : 3, 1024", 3072, 3, "b")
    loops = node_loops(
        problem_of(((3, 1024), ()), read, write).nodes[0], problem_of(((3, 1024), ()), read, write)
    )
    nest = nest_of([loops], 1, 32)
    assert nest.tiled == (0, 1)
    # A tile of eight rows has only three of them.
    assert nest.steps == 3 * 1024 / 8


def test_vectors_do_not_lie_along_what_a_tile_reduces(narrow: DeviceProfile) -> None:
    """As in sums over an image of products of what lies in rows and what lies in columns."""
    rows, columns = "40*i0 + i1 : 24, 40", "i0 + 24*i1 : 24, 40"

    def nest(ranges: tuple[tuple[int, ...], tuple[int, ...]], written: str) -> Any:
        n = math.prod(ranges[0])
        problem = problem_of(
            ranges, access("contiguous", rows, 960, 1), access("contiguous", written, n, 1, "b")
        )
        also = access("strided", columns, 960, 24, "c")
        node = msgspec.structs.replace(problem.nodes[0], reads=(*problem.nodes[0].reads, also))
        problem = msgspec.structs.replace(problem, nodes=(node,))
        return nest_of((node_loops(node, problem),), 1, narrow.vector_bytes)

    summed, kept = nest(((24,), (40,)), "i0 : 24"), nest(((24, 40), ()), "i0 : 960")
    assert (summed.tiled, summed.reduced, summed.steps) == ((1, 0), False, 40 * 24 / 8)
    assert (kept.tiled, kept.steps) == ((0, 1), 24 * 40 / 8)


def test_masks_of_a_window_are_found_once_a_row() -> None:
    ops = (("masked", 9), ("index_expr", 36), ("lt", 18), ("maximum", 8))
    still = body_cost(ops, None, table="narrow", still=True)
    assert still.vector == pytest.approx(8 * NARROW.operations["maximum"].vector)
    assert still.lane == 0 < body_cost(ops, None, table="narrow").lane


@pytest.mark.parametrize(
    ("index", "ops", "still"),
    [
        # The gradient of one slice of the middle loop: the others get 0.
        ("16*i0 + i1 : 8, 16", (("eq", 1), ("index_expr", 1), ("load", 1), ("where", 1)), True),
        # What is compared is loaded, too.
        ("16*i0 + i1 : 8, 16", (("gt", 2), ("index_expr", 1), ("load", 1), ("where", 1)), False),
        ("16*i0 + i1 : 8, 16", (("load", 1), ("mul", 1)), False),
        # Positions may be any: all loops move what is read.
        ("i0 : 512", (("eq", 1), ("index_expr", 1), ("load", 1), ("where", 1)), False),
        # They are those in the innermost loop.
        ("4*i0 + i1 : 8, 4", (("eq", 1), ("index_expr", 1), ("load", 1), ("where", 1)), False),
    ],
)
def test_masks_of_slices_stay_along_vectors(
    index: str, ops: tuple[tuple[str, int], ...], still: bool
) -> None:
    read = access("broadcast", index, 128, 1)
    problem = problem_of(((8, 4, 16), ()), read, access("contiguous", "i0 : 512", 512, 1, "b"))
    node = msgspec.structs.replace(problem.nodes[0], ops=(*ops, ("store", 1)))
    assert node_loops(node, problem).still == still


def test_wide_vectors_take_longer_but_not_twice_as_long() -> None:
    for name in ("add", "exp", "tanh"):
        narrow, wide = NARROW.operations[name].vector, WIDE.operations[name].vector
        assert narrow < wide < 2.5 * narrow


def on(device: DeviceProfile, table: Table, **other: float | str) -> DeviceProfile:
    """A device that computes as the processor of a table does, but for what is told."""
    cache, multiplied, exponentials = (rate * device.threads for rate in table.rates)
    rates: dict[str, Any] = {
        "vector_width": table.width,
        "cache_gbs": cache,
        "flops_gfs": multiplied,
        "transcendental_gops": exponentials,
    }
    return msgspec.structs.replace(device, **(rates | other))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_processor_that_is_most_alike_counts(narrow: DeviceProfile, table: Table) -> None:
    """However many threads share the rates, and if these are a little off."""
    for threads, off in itertools.product((1, 2, 16), (0.9, 1.0, 1.1)):
        shared = msgspec.structs.replace(narrow, threads=threads)
        device = on(shared, table._replace(rates=tuple(off * rate for rate in table.rates)))
        assert table_of(msgspec.structs.replace(device, copy_gbs=device.cache_gbs / 4)) is table


def test_what_another_compiler_made_is_as_of_another_processor(narrow: DeviceProfile) -> None:
    assert table_of(on(narrow, WIDE, compiler="gcc 13")) is WIDE
    assert table_of(on(narrow, WIDE, compiler="gcc 12")) is KEEN
    # Of this one no table is.
    assert table_of(on(narrow, WIDE, compiler="clang 17")) is WIDE


def test_a_slower_processor_takes_as_much_longer(narrow: DeviceProfile) -> None:
    read, write = (access("contiguous", f"i0 : {1 << 20}", 1 << 20, 1, name) for name in "ab")
    problem = problem_of(((1 << 20,), ()), read, write)
    exponentials = KEEN.rates[2] * narrow.threads

    def instructions(rate: float) -> float:
        device = on(narrow, KEEN, compiler="gcc 12", transcendental_gops=rate)
        return column(problem, device, "instructions")

    own = instructions(exponentials)
    assert instructions(exponentials / 1.5) == pytest.approx(1.5 * own, rel=1e-3)
    # None is known to be faster than its table.
    assert instructions(exponentials * 1.1) == own


def test_vectors_of_another_width_are_those_of_another_processor(narrow: DeviceProfile) -> None:
    for table in (WIDE, SWIFT):
        assert table_of(on(narrow, table, vector_width=NARROW.width)) is NARROW


@pytest.mark.parametrize(
    ("index", "loops", "broken"),
    [
        ("127*i0 + (ModularIndexing(i1, 1, 127)) : 12, 508", (12, 508), True),
        ("27*i0 + (ModularIndexing(i1 + 24, 1, 27)) : 8, 27", (8, 27), True),
        ("256*((i0//2)) + ((i1//2)) : 512, 512", (512, 512), True),
        # One quotient for whole vectors, and of another loop.
        ("2560*((i1//32)) + (ModularIndexing(i1, 1, 32)) : 5, 64", (5, 64), False),
        ("81*((i0//80)) + (ModularIndexing(i0, 1, 80)) : 400", (400, 1024), False),
        ("128*i0 + i1 : 64, 128", (64, 128), False),
    ],
)
def test_loops_whose_quotients_no_vector_keeps_to(
    narrow: DeviceProfile, index: str, loops: tuple[int, ...], broken: bool
) -> None:
    """With few operations beside they are not vectorised, with many it is each lane for itself."""
    size = math.prod(loops)
    write = access("contiguous", f"i0 : {size}", size, 1, "b")
    problem = problem_of((loops, ()), access("strided", index, size, 1), write)
    assert (column(problem, narrow, "scalar_work") > 0) is broken
    busy = msgspec.structs.replace(problem.nodes[0], ops=(("load", 1), ("add", 30), ("store", 1)))
    problem = msgspec.structs.replace(problem, nodes=(busy,))
    assert column(problem, narrow, "scalar_work") == 0
    assert (column(problem, narrow, "lane_by_lane") > 0.5 * size) is broken


def test_what_is_one_loop_to_a_node_is_several_beside_another(narrow: DeviceProfile) -> None:
    whole = problem_of(
        ((4096 * 15,), ()),
        access("contiguous", f"i0 : {4096 * 15}", 4096 * 15, 1),
        access("contiguous", f"i0 : {4096 * 15}", 4096 * 15, 1, "b"),
    )
    rows = problem_of(
        ((4096, 15), ()),
        access("contiguous", "17*i0 + i1 : 4096, 15", 4096 * 15, 1),
        access("contiguous", f"i0 : {4096 * 15}", 4096 * 15, 1, "b"),
    )
    both = [node_loops(problem.nodes[0], problem) for problem in (whole, rows)]
    nest = nest_of(both, 2, narrow.vector_bytes)
    assert (nest.loops, nest.tiled) == ((4096, 15), (1,))
    assert nest.partial == pytest.approx(1 / 2)


def test_threads_are_sent_off_for_each_row_where_columns_are_few(narrow: DeviceProfile) -> None:
    """A vector of columns that is never full counts as none, and what is reduced is shared."""

    def summed(columns: int) -> Problem:
        size = 4096 * 16 * columns
        index = f"{16 * columns}*i0 + i1 + {columns}*i2 : 4096, {columns}, 16"
        write = access("contiguous", f"i0 : {4096 * columns}", 4096 * columns, 1, "b")
        return problem_of(((4096, columns), (16,)), access("strided", index, size, columns), write)

    assert column(summed(4), narrow, "sent_off") == pytest.approx(4096)
    assert column(summed(8), narrow, "sent_off") == pytest.approx(1)
    alone = msgspec.structs.replace(narrow, threads=1)
    assert column(summed(4), alone, "sent_off") == 0

    def us(columns: int) -> float:
        return float(roofline_us(Featurizer(summed(columns), narrow).group(["op"])[None])[0])

    assert us(4) > 20 * us(8)

    def sent_off_with_more(columns: int) -> float:
        problem = summed(columns)
        numel = 4096 * columns
        after = msgspec.structs.replace(
            problem_of(
                ((4096, columns), ()),
                access("contiguous", f"i0 : {numel}", numel, 1, "b"),
                access("contiguous", f"i0 : {numel}", numel, 1, "c"),
            ).nodes[0],
            name="after",
            order=1,
        )
        problem = msgspec.structs.replace(
            problem,
            nodes=(*problem.nodes, after),
            buffers=(
                *problem.buffers,
                Buffer("c", 4 * numel, "torch.float32", False, True, ("after",)),
            ),
        )
        return column(problem, narrow, "sent_off", "op", "after")

    # Not where more is done with each row.
    assert sent_off_with_more(4) == pytest.approx(1)


def test_indices_that_are_computed_from_numbers_are_worked_out_one_by_one(
    narrow: DeviceProfile,
) -> None:
    """Those of a pooling's offsets, which are stored; a lookup in what has one place is none."""

    def each(dtype: str, written: str) -> float:
        bytes_each = 1 if dtype == "torch.int8" else 4
        read = Access("a", "contiguous", 4096, 4096 * bytes_each, bytes_each, 1, "i0 : 4096")
        problem = problem_of(
            ((64, 64), ()), read, Access("b", "contiguous", 4096, 32768, 8, 1, "i0 : 4096")
        )
        ops = (("load", 1), ("indirect_indexing", 1), ("index_expr", 1), ("store", 1))
        node = msgspec.structs.replace(problem.nodes[0], ops=ops)
        buffers = (
            Buffer("a", 4096, dtype, True, False, ("op",)),
            Buffer("b", 32768, written, False, True, ("op",)),
        )
        problem = msgspec.structs.replace(problem, nodes=(node,), buffers=buffers)
        return column(problem, narrow, "lane_by_lane")

    assert each("torch.int8", "torch.int64") > 10 * each("torch.float32", "torch.int64")
    # What nobody asks for is not worked out.
    assert each("torch.int8", "torch.float64") < each("torch.int8", "torch.int64") / 2


@pytest.mark.parametrize(
    ("read", "written", "op", "more"),
    [
        # Which of some values is the largest, beside the largest itself.
        ("torch.float32", "torch.int8", "where", True),
        ("torch.int32", "torch.int8", "where", False),
        ("torch.float32", "torch.int8", "mul", False),
        # Numbers of eight bytes are compared and chosen by two vectors for one.
        ("torch.int64", "torch.int32", "where", True),
        ("torch.int64", "torch.int32", "to_dtype", False),
    ],
)
def test_numbers_of_eight_bytes_take_longer(
    narrow: DeviceProfile, read: str, written: str, op: str, more: bool
) -> None:
    """More than what is made of values of four bytes, that is."""

    def instructions(dtypes: tuple[str, str]) -> float:
        index = "i0 : 4096"
        problem = problem_of(
            ((4096,), ()),
            access("contiguous", index, 4096, 1),
            access("contiguous", index, 4096, 1, "b"),
        )
        ops = (("load", 1), (op, 16), ("store", 1))
        node = msgspec.structs.replace(problem.nodes[0], ops=ops)
        buffers = tuple(
            msgspec.structs.replace(buffer, dtype=dtype)
            for buffer, dtype in zip(problem.buffers, dtypes, strict=True)
        )
        problem = msgspec.structs.replace(problem, nodes=(node,), buffers=buffers)
        return column(problem, narrow, "instructions")

    plain = instructions(("torch.float32", "torch.float32"))
    assert (instructions((read, written)) > 1.2 * plain) is more


@pytest.mark.parametrize(
    ("name", "dear"),
    [
        # A mask of attention is looked up by a position, and chosen by.
        ("where", True),
        # Bounds of what a mask loads are part of the mask.
        ("masked", False),
    ],
)
def test_positions_within_bounds_take_long_to_choose_by(
    narrow: DeviceProfile, name: str, dear: bool
) -> None:
    choosing = (("load", 1), ("index_expr", 1), ("ge", 1), (name, 1), ("store", 1))

    def instructions(ops: tuple[tuple[str, int], ...]) -> float:
        read, written = (access("contiguous", "i0 : 4096", 4096, 1, name) for name in "ab")
        problem = problem_of(((64, 64), ()), read, written)
        node = msgspec.structs.replace(problem.nodes[0], ops=ops)
        return column(msgspec.structs.replace(problem, nodes=(node,)), narrow, "instructions")

    bounded = instructions((*choosing, ("check_bounds", 2)))
    assert (bounded > 2 * instructions(choosing)) is dear


@pytest.mark.parametrize(
    ("loops", "index", "written", "dear"),
    [
        ((1024, 512), "i0 : 524288", "i0 : 524288", True),
        # The same along a row, for all rows, and for all elements.
        ((1024, 512), "i0 : 1024", "i0 : 524288", False),
        ((1024, 512), "i0 : 512", "i0 : 524288", True),
        ((1024, 512), "0 : ", "i0 : 524288", False),
        # Along the other side of a tile that is transposed: once for all of its rows.
        ((1024, 512), "i0 : 512", "i0 + 1024*i1 : 1024, 512", False),
    ],
)
def test_roots_are_found_where_what_they_are_of_moves(
    narrow: DeviceProfile, loops: tuple[int, ...], index: str, written: str, dear: bool
) -> None:
    n = math.prod(loops)
    data = access("contiguous", f"i0 : {n}", n, 1, "d")
    read = access("broadcast", index, n, 1)
    problem = problem_of((loops, ()), read, access("strided", written, n, 1, "b"))

    def instructions(name: str) -> float:
        ops = (("load", 2), (name, 1), ("mul", 1), ("store", 1))
        node = msgspec.structs.replace(problem.nodes[0], reads=(read, data), ops=ops)
        return column(msgspec.structs.replace(problem, nodes=(node,)), narrow, "instructions")

    more = instructions("rsqrt") - instructions("mul")
    each = NARROW.operations["rsqrt"].vector - NARROW.operations["mul"].vector
    assert (more > 0.5 * each * n / 8 / 2) is dear


def test_what_does_not_move_along_a_row_is_done_once_a_row(narrow: DeviceProfile) -> None:
    n = 1024 * 512

    def instructions(index: str) -> float:
        read = access("broadcast", index, n, 1)
        written = access("contiguous", f"i0 : {n}", n, 1, "b")
        problem = problem_of(((1024, 512), ()), read, written)
        ops = (("exp", 1), ("load", 1), ("store", 1))
        node = msgspec.structs.replace(problem.nodes[0], ops=ops)
        return column(msgspec.structs.replace(problem, nodes=(node,)), narrow, "instructions")

    assert instructions("i0 : 512") == pytest.approx(instructions(f"i0 : {n}"))
    assert 0 < instructions("i0 : 1024") < instructions(f"i0 : {n}") / 3


def test_long_sums_of_fp32_are_cascades(profile: DeviceProfile) -> None:
    """Those of other elements, and shorter ones, add up in a register."""
    table = table_of(profile)

    def each(length: int, dtype: str) -> float:
        read = access("contiguous", f"i0 : {64 * length}", 64 * length, 1)
        problem = problem_of(((64,), (length,)), read, access("contiguous", "i0 : 64", 64, 1, "b"))
        buffers = tuple(
            msgspec.structs.replace(buffer, dtype=dtype) if buffer.name == "b" else buffer
            for buffer in problem.buffers
        )
        changed = msgspec.structs.replace(problem, buffers=buffers)
        return column(changed, profile, "instructions") / length

    more = table.steps["cascade"].vector - table.steps["sum"].vector
    long = each(8192, "torch.float32") - each(8192, "torch.bfloat16")
    assert abs(long) > 0
    assert (long > 0) == (more > 0)
    assert each(4096, "torch.float32") == pytest.approx(each(4096, "torch.bfloat16"))
