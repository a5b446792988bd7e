"""What loads and stores in C++ loops are told to cost, by how they go along vectors and threads."""

from __future__ import annotations

import math

import msgspec
import pytest

from fusewise.costmodel.cpu_costs import table_of
from fusewise.costmodel.cpu_processors import NARROW
from fusewise.costmodel.cpu_work import WORK, Work
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.meeting import Meeting
from fusewise.schedule.problem import Access, Buffer, Problem
from tests.costmodel.one_node import access, column, problem_of


def test_half_vectors_under_masks_go_through_memory(profile: DeviceProfile) -> None:
    wide = msgspec.structs.replace(profile, kind="cpu", key="cpu-x-1t", threads=1, vector_width=64)

    def each(itemsize: int, length: int, masked: int) -> float:
        n = 64 * length
        read = Access("a", "contiguous", n, itemsize * n, itemsize, 1, f"i0 : {n}")
        write = Access("b", "contiguous", n, itemsize * n, itemsize, 1, f"i0 : {n}")
        problem = problem_of(((64, length), ()), read, write)
        ops = (("load", 1), ("masked", masked), ("store", 1))
        node = msgspec.structs.replace(problem.nodes[0], ops=ops)
        dtype = "torch.bfloat16" if itemsize == 2 else "torch.float32"
        buffers = tuple(msgspec.structs.replace(b, dtype=dtype) for b in problem.buffers)
        problem = msgspec.structs.replace(problem, nodes=(node,), buffers=buffers)
        return column(problem, wide, "instructions") / 64

    more = table_of(wide).masked_half.vector
    # Rows of 16 elements are too short for vectors of 32.
    assert each(2, 16, 1) - each(2, 16, 0) > more
    assert each(2, 32, 1) - each(2, 32, 0) < more / 2
    assert each(4, 16, 1) - each(4, 16, 0) < more / 2


def test_rows_stored_in_part_over_what_was_read_wait(narrow: DeviceProfile) -> None:
    def instructions(row: int, over: bool) -> float:
        size = 4096 * row
        index = f"{row}*i0 + i1 : 4096, {row}"
        read, write = (access("contiguous", index, size, 1, name) for name in "ab")
        problem = problem_of(((4096, row), ()), read, write)
        work = Work(problem, narrow, problem.nodes)
        met = Meeting(problem, narrow, problem.nodes, {"op": 0}).columns([0])
        return work.columns([0], met, 8.0 * size, 4.0 * size * over)[WORK.index("instructions")]

    assert instructions(12, over=True) > 1.5 * instructions(12, over=False)
    assert instructions(16, over=True) == instructions(16, over=False)


def test_tiles_of_rows_a_page_apart_take_longer(narrow: DeviceProfile) -> None:
    def each(pitch: int) -> float:
        size = 512 * 256
        read = access("contiguous", f"{pitch}*i0 + i1 : 512, 256", size, 1)
        write = access("strided", "i0 + 512*i1 : 512, 256", size, 512, "b")
        return column(problem_of(((512, 256), ()), read, write), narrow, "instructions")

    assert each(1024) > 1.1 * each(1000) == pytest.approx(1.1 * each(1040))


def test_what_is_looked_up_once_a_row_is_no_gather(narrow: DeviceProfile) -> None:
    """Its index is read once for all of the row, or for each element."""

    def each(moves: bool) -> float:
        index = "128*i0 + i1 : 64, 128" if moves else "i0 : 64"
        number = Access("n", "contiguous" if moves else "broadcast", 8192, 8192, 8, 1, index)
        read = access("gather", "tmp0 : ", 8192, 0)
        problem = problem_of(((64, 128), ()), read, access("contiguous", "i0 : 8192", 8192, 1, "b"))
        node = msgspec.structs.replace(problem.nodes[0], reads=(number, read))
        numbers = Buffer("n", 8 * 8192, "torch.int64", True, False, ("op",))
        found = msgspec.structs.replace(problem, nodes=(node,), buffers=(*problem.buffers, numbers))
        return column(found, narrow, "lane_by_lane")

    assert each(moves=False) < each(moves=True) / 4


def test_branches_of_few_flags_are_remembered(narrow: DeviceProfile) -> None:
    def each(elements: int) -> float:
        index = f"i0 : {elements}"
        read = access("contiguous", index, elements, 1)
        problem = problem_of(((elements,), ()), read, access("contiguous", index, elements, 1, "b"))
        return column(_flags(problem, "le"), narrow, "lane_by_lane") / elements

    assert each(1 << 14) < 0.35 * each(1 << 22)


def _flags(problem: Problem, name: str, use: str = "where") -> Problem:
    """``problem`` where what is read is of type bool and called ``name``, for ``use`` to go by."""
    node = problem.nodes[0]
    reads = tuple(msgspec.structs.replace(access, buffer=name) for access in node.reads)
    buffers = tuple(
        msgspec.structs.replace(buffer, dtype="torch.bool", name=name)
        if buffer.name == "a"
        else buffer
        for buffer in problem.buffers
    )
    changed = msgspec.structs.replace(node, reads=reads, ops=((use, 1), *node.ops))
    return msgspec.structs.replace(problem, nodes=(changed,), buffers=buffers)


@pytest.mark.parametrize(
    ("name", "use", "dear"),
    [("le_3", "where", True), ("gt_24", "where", True), ("gt_24", "mul", False)],
)
def test_flags_of_comparisons_could_be_either_as_well(
    narrow: DeviceProfile, name: str, use: str, dear: bool
) -> None:
    """What is chosen by a comparison is told by data; most of what dropout keeps is kept."""
    n = 1 << 22
    read = access("contiguous", f"i0 : {n}", n, 1)
    problem = problem_of(((n,), ()), read, access("contiguous", f"i0 : {n}", n, 1, "b"))
    alike = column(_flags(problem, "eq", use), narrow, "lane_by_lane")
    assert (column(_flags(problem, name, use), narrow, "lane_by_lane") > 2 * alike) is dear


@pytest.mark.parametrize(
    ("loops", "written", "found"),
    [
        # 1040 rows of 49 elements, which two threads part among them.
        ((49, 1040), "i0 + 49*i1 : 49, 1040", 1040),
        # The next row's lines come by themselves where rows are half as far apart.
        ((24, 1040), "i0 + 24*i1 : 24, 1040", 1040 / 8),
        # Each begins at a line, and is parted at one.
        ((64, 1040), "i0 + 64*i1 : 64, 1040", 0),
        # What threads share goes from row to row.
        ((1040, 49), "i0 : 50960", 0),
        # One thread has it all.
        ((8, 1040), "i0 + 8*i1 : 8, 1040", 0),
    ],
)
def test_threads_meet_in_lines_that_they_part(
    narrow: DeviceProfile, loops: tuple[int, ...], written: str, found: float
) -> None:
    n = math.prod(loops)
    read = access("contiguous", f"i0 : {n}", n, 1)
    stride = 1 if "i1" not in written else loops[0]
    problem = problem_of((loops, ()), read, access("strided", written, n, stride, "b"))
    assert column(problem, narrow, "borders") == pytest.approx(found)


def test_flags_that_could_be_either_are_told_apart(narrow: DeviceProfile) -> None:
    n = 1 << 20
    read = access("contiguous", f"i0 : {n}", n, 1)
    problem = problem_of(((n,), ()), read, access("contiguous", f"i0 : {n}", n, 1, "b"))
    assert column(_flags(problem, "eq"), narrow, "unforeseen") == 0
    unforeseen = column(_flags(problem, "le"), narrow, "unforeseen")
    assert 0 < unforeseen < column(_flags(problem, "le"), narrow, "lane_by_lane")


@pytest.mark.parametrize(
    ("index", "stride", "met"),
    [
        # Threads have lines of their own, and additions go on along the row.
        ("1024*i0 + tmp0 : 64", 1024, 0.0),
        # Where no place is looked up each thread goes its own way, too.
        ("i0 : 64", 1, 0.0),
        # Threads add anywhere in 512 lines: (7.2 / 512) ** 0.7.
        ("i0 + 64*tmp0 : 64", 1, 0.0505),
    ],
)
def test_additions_cost_by_the_lines_that_they_go_to(
    narrow: DeviceProfile, index: str, stride: int, met: float
) -> None:
    elements = 64 * 128
    read = access("contiguous", f"i0 : {elements}", elements, 1)
    problem = problem_of(((64, 128), ()), read, access("atomic", index, elements, stride, "b"))
    store, added = NARROW.stores[4].lane, NARROW.atomic.lane
    # Nothing else is taken one by one but a small part of the load.
    each = store + added + met * NARROW.atomic_shared.lane + NARROW.loads[4].lane
    assert column(problem, narrow, "lane_by_lane") / (elements / 2) == pytest.approx(each, rel=0.01)


def _rows_added_to(narrow: DeviceProfile, rows: int, turns: int) -> float:
    """Nanoseconds of each addition to ``rows`` of 128 elements, the gradient of an embedding."""
    n = turns * 128
    numbers = Access("n", "broadcast", turns, n, 8, 0, f"i0 : {turns}")
    write = Access("b", "atomic", rows * 128, 4 * n, 4, 1, "i0 + 128*tmp0 : 128")
    problem = problem_of(((turns, 128), ()), numbers, write)
    buffers = (
        Buffer("n", 8 * turns, "torch.int64", True, False, ("op",)),
        Buffer("b", 4 * rows * 128, "torch.float32", False, True, ()),
    )
    problem = msgspec.structs.replace(problem, buffers=buffers)
    return column(problem, narrow, "lane_by_lane") / n * column(problem, narrow, "workers")


def test_threads_that_add_to_few_rows_meet_in_them(narrow: DeviceProfile) -> None:
    """As for two types of tokens, beside many tokens; unless one thread adds them all."""
    shared = table_of(narrow).atomic_shared.lane
    many = _rows_added_to(narrow, 512, 64)
    assert _rows_added_to(narrow, 2, 64) - many > 0.1 * shared
    assert _rows_added_to(narrow, 2, 4) == pytest.approx(many, rel=0.1)


def test_flags_of_positions_go_over_now_and_then(narrow: DeviceProfile) -> None:
    """A causal mask is no guess, what is told of data may be."""
    n = 1 << 20
    index = f"i0 : {n}"
    problem = problem_of(
        ((n,), ()), access("contiguous", index, n, 1), access("contiguous", index, n, 1, "b")
    )
    buffers = tuple(
        msgspec.structs.replace(each, dtype="torch.bool") if each.name == "b" else each
        for each in problem.buffers
    )
    compares = msgspec.structs.replace(problem.nodes[0], ops=(("le", 1), ("store", 1)))
    told = msgspec.structs.replace(compares, reads=(), ops=(("index_expr", 1), *compares.ops))
    of_data, of_positions = (
        msgspec.structs.replace(problem, nodes=(node,), buffers=buffers)
        for node in (compares, told)
    )
    assert column(of_data, narrow, "unforeseen") > 0
    assert column(of_positions, narrow, "unforeseen") == 0


@pytest.mark.parametrize(
    ("index", "ops", "waits"),
    [
        ("256*((i0//2)) + ((i1//2)) : 512, 512", (("gt", 1), ("where", 1)), True),
        # A value that is chosen several times over is told anew.
        ("256*((i0//2)) + ((i1//2)) : 512, 512", (("gt", 2), ("where", 2)), True),
        # Positions go over from one to the other now and then, and most equalities fail.
        (
            "256*((i0//2)) + ((i1//2)) : 512, 512",
            (("gt", 1), ("index_expr", 1), ("where", 1)),
            False,
        ),
        ("256*((i0//2)) + ((i1//2)) : 512, 512", (("eq", 1), ("where", 1)), False),
        # Compared only; and vectors choose without a branch.
        ("256*((i0//2)) + ((i1//2)) : 512, 512", (("gt", 1),), False),
        ("512*i0 + i1 : 512, 512", (("gt", 1), ("where", 1)), False),
    ],
)
def test_an_element_by_itself_is_chosen_by_a_branch(
    narrow: DeviceProfile, index: str, ops: tuple[tuple[str, int], ...], waits: bool
) -> None:
    n = 512 * 512
    problem = problem_of(
        ((512, 512), ()),
        access("strided", index, n, 1),
        access("contiguous", f"i0 : {n}", n, 1, "b"),
    )
    node = msgspec.structs.replace(problem.nodes[0], ops=(("load", 1), *ops, ("store", 1)))
    chosen = msgspec.structs.replace(problem, nodes=(node,))
    branch = table_of(narrow).unforeseen.lane * n / narrow.threads
    unforeseen = column(chosen, narrow, "unforeseen")
    # A few elements' ways are remembered.
    assert unforeseen == pytest.approx(branch * waits, rel=0.1)
    assert column(chosen, narrow, "scalar_work") >= unforeseen
