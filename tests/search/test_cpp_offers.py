"""What is offered for C++ kernels: writing them otherwise, or running them on one thread."""

from __future__ import annotations

import msgspec
import pytest

from fusewise.schedule.schedule import Choice
from tests.search.planned import GPU, finishes, kernel


@pytest.mark.parametrize(("numel", "grain"), [(2048, 2048), (8192, 8192), (40_000, None)])
def test_short_loops_of_a_cpu_are_offered_one_thread(numel: int, grain: int | None) -> None:
    cpu = msgspec.structs.replace(GPU, kind="cpu", threads=2, cores=2)
    found = finishes([kernel("a", numel), kernel("tiny", 64)], device=cpu)
    offers = found.few()
    assert [offer.choices for offer in offers] == (
        [] if grain is None else [(Choice("parallel_grain", grain),)]
    )
    whole = [(Choice("multiply_add", True),)]
    assert [offer.choices for offer in found.every(whole)] == whole


def test_functions_that_take_much_of_the_time_are_written_out() -> None:
    """By how much a call of each costs, held against the whole graph; the greater gain first."""
    cpu = msgspec.structs.replace(GPU, kind="cpu", threads=2, cores=2, transcendental_gops=1.0)
    written, grain = Choice("vector_math", True), Choice("parallel_grain", 8192)

    def offered(op: str, rest: int) -> list[tuple[Choice, ...]]:
        node = msgspec.structs.replace(kernel("a", 8192), ops=(("load", 1), (op, 2)))
        found = finishes([node, kernel("b", rest)], device=cpu)
        return [offer.choices for offer in found.few()]

    assert offered("tanh", 64) == [(written,), (grain, written)]
    assert offered("sin", 64) == offered("add", 64) == [(grain,)]
    assert offered("exp", 1 << 28) == []


@pytest.mark.parametrize(
    ("operation", "flags", "numel", "offered"),
    [
        ("add", "in_a", 1 << 20, True),
        ("add", "buf_a", 1 << 20, True),
        ("rand", "", 1 << 20, True),
        ("randn", "", 1 << 18, True),
        ("add", "", 1 << 20, False),
        # Little beside the rest.
        ("add", "in_a", 1 << 10, False),
    ],
)
def test_flags_and_random_numbers_by_whole_vectors(
    operation: str, flags: str, numel: int, offered: bool
) -> None:
    cpu = msgspec.structs.replace(GPU, kind="cpu", threads=2, cores=2)
    node = msgspec.structs.replace(kernel("a", numel), ops=(("load", 1), (operation, 1)))
    found = finishes([node, kernel("b", 1 << 22)], device=cpu, flags=flags)
    (offer,) = found.cpp.exact() or [None]
    assert (offer is not None) is offered
    if offer is not None:
        assert offer.choices == (Choice("whole_vectors", True),)
        # Nothing is left for a contest to find out.
        assert offer.sure_us == offer.gain_us > 0.0
        assert found.few() == [offer]


@pytest.mark.parametrize(
    ("rows", "columns", "stride", "operation", "flags", "offered"),
    [
        pytest.param(4096, 4096, 4096, "add", "", True, id="columns"),
        pytest.param(4096, 4096, 4096, "add", "in_a", True, id="columns of flags"),
        pytest.param(4096, 4096, 1, "add", "", False, id="rows"),
        pytest.param(4096, 64, 64, "add", "", False, id="few columns"),
        pytest.param(1 << 20, 4096, 4096, "add", "", False, id="rows that threads share"),
        pytest.param(4096, 4096, 4096, "exp", "", False, id="calls of functions"),
    ],
)
def test_columns_with_vectors_side_by_side(
    rows: int, columns: int, stride: int, operation: str, flags: str, *, offered: bool
) -> None:
    cpu = msgspec.structs.replace(GPU, kind="cpu", threads=2, cores=2)
    node = kernel("a", columns, rows, kind="reduction")
    reads = tuple(msgspec.structs.replace(read, stride=stride) for read in node.reads)
    node = msgspec.structs.replace(node, reads=reads, ops=(("load", 1), (operation, 1)))
    found = finishes([node], device=cpu, flags=flags)
    chosen = {choice.name for offer in found.cpp.exact() for choice in offer.choices}
    assert ("wide_columns" in chosen) is offered


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "rest", "offered"),
    [
        pytest.param(4096, 4, 2, 64, True, id="few columns"),
        pytest.param(4096, 16, 2, 64, False, id="whole vectors"),
        pytest.param(4096, 4, 1, 64, False, id="one thread"),
        pytest.param(64, 4, 2, 1 << 31, False, id="little beside the rest"),
    ],
)
def test_threads_that_share_the_rows_of_reductions_of_few_columns(
    rows: int, columns: int, threads: int, rest: int, *, offered: bool
) -> None:
    cpu = msgspec.structs.replace(GPU, kind="cpu", threads=threads, cores=2)
    reduced = 64
    node = kernel("a", rows * columns, reduced, kind="reduction")
    (read,), (write,) = node.reads, node.writes
    index = f"{reduced * columns}*i0 + i1 + {columns}*i2 : {rows}, {columns}, {reduced}"
    node = msgspec.structs.replace(
        node,
        ranges=((rows, columns), (reduced,)),
        reads=(msgspec.structs.replace(read, kind="strided", index=index, stride=columns),),
        writes=(msgspec.structs.replace(write, index=f"i0 : {rows * columns}"),),
    )
    found = finishes([node, kernel("b", rest)], device=cpu).cpp.sent_once()
    assert (found is not None) is offered
    if found is not None:
        assert found.choices == (Choice("outer_threads", True),)
        assert 0.0 < found.sure_us == found.gain_us
