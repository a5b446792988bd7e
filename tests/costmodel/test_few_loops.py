"""What nodes that read other tensors compute of the same positions, or of the same small ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

from fusewise.costmodel.cpu_processors import NARROW
from fusewise.costmodel.device import DeviceProfile
from fusewise.schedule.problem import Access, Buffer, Computed, Node, Problem
from tests.costmodel.one_node import column

ROWS, ROW = 1 << 10, 64
N = ROWS * ROW
#: Loops that operations go along, as bits: the rows, and the elements of one.
ALONG_ROWS, ALONG_ROW, ALONG_BOTH = 1, 2, 3
#: Operations by name and the loops that they go along.
Told = Mapping[str, int]


@pytest.fixture
def two(make_node: Callable[..., Node]) -> Callable[..., Problem]:
    """Nodes "op0" and "op1", each of a tensor of its own and a table of one row, and what else."""

    def make(one: Told, other: Told, *, tables: tuple[str, str] = ("t", "t")) -> Problem:
        def node(i: int, told: Told, table: str) -> Node:
            whole = Access(f"x{i}", "contiguous", N, 4 * N, 4, 1, f"i0 : {N}", ALONG_BOTH)
            row = Access(table, "broadcast", N, 4 * ROW, 4, 1, f"i0 : {ROW}", ALONG_ROW)
            written = Access(f"out{i}", "contiguous", N, 4 * N, 4, 1, f"i0 : {N}", ALONG_BOTH)
            return make_node(
                f"op{i}",
                N,
                (whole, row),
                (written,),
                (("load", 2), *((name, 1) for name in told), ("store", 1)),
                ranges=((ROWS, ROW), ()),
                device="cuda",
                order=i,
                computed=tuple(Computed(name, 1, along, 1.0) for name, along in told.items()),
            )

        nodes = tuple(
            node(i, told, table)
            for i, (told, table) in enumerate(zip((one, other), tables, strict=True))
        )
        sizes = {"x0": N, "x1": N, "out0": N, "out1": N, "t": ROW, "u": ROW}
        buffers = tuple(
            Buffer(name, 4 * size, "torch.float32", not is_output, is_output, ())
            for name, size in sizes.items()
            for is_output in (name.startswith("out"),)
        )
        return Problem("few", "inference", nodes, buffers, (), ())

    return make


TURNED: Told = {"pow": ALONG_ROW, "mul": ALONG_BOTH}


@pytest.mark.parametrize(
    ("other", "tables", "times"),
    [
        pytest.param(TURNED, ("t", "t"), 1, id="of the same row"),
        pytest.param(TURNED, ("t", "u"), 2, id="of another row"),
        pytest.param({"pow": ALONG_BOTH}, ("t", "t"), 2, id="of its own tensor"),
        pytest.param({"pow": ALONG_ROWS}, ("t", "t"), 2, id="along the other loop"),
    ],
)
def test_a_power_along_rows_is_found_once(
    two: Callable[..., Problem],
    gpu: DeviceProfile,
    other: Told,
    tables: tuple[str, str],
    times: int,
) -> None:
    problem = two(TURNED, other, tables=tables)
    alone = column(problem, gpu, "transcendental", "op0")
    both = column(problem, gpu, "transcendental", "op0", "op1")
    assert both == pytest.approx(times * alone)


def test_an_angle_is_brought_into_range_once_for_its_sine_and_its_cosine(
    two: Callable[..., Problem], gpu: DeviceProfile
) -> None:
    problem = two({"sin": ALONG_ROW}, {"cos": ALONG_ROW})
    alone = column(problem, gpu, "transcendental", "op0")
    assert alone < column(problem, gpu, "transcendental", "op0", "op1") < 1.5 * alone


def test_a_loop_in_cpp_finds_it_once_as_well(
    two: Callable[..., Problem], narrow: DeviceProfile
) -> None:
    problem = two(TURNED, TURNED)
    apart = sum(column(problem, narrow, "instructions", name) for name in ("op0", "op1"))
    saved = apart - column(problem, narrow, "instructions", "op0", "op1")
    power = NARROW.operations["pow"].vector * N / 2 / 8
    assert saved == pytest.approx(power, rel=0.1)
    other = two(TURNED, TURNED, tables=("t", "u"))
    assert math.isclose(column(other, narrow, "instructions", "op0", "op1"), apart, rel_tol=0.1)
