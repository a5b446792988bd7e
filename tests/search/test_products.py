"""Which products are offered to templates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from fusewise.schedule.plan import Step, build_plan
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem
from fusewise.schedule.products import templates
from fusewise.schedule.schedule import Choice
from fusewise.search.products import templated
from tests.search.planned import GPU, kernel

ROWS, COLUMNS = 1 << 17, 64
SIZE = ROWS * COLUMNS


def product(name: str = "mm", inner: int = 64, operator: str = "aten.mm.default") -> Node:
    return msgspec.structs.replace(
        kernel(name, SIZE, kind="extern"),
        flops=2 * SIZE * inner,
        origins=("aten.permute.default", operator),
        fx_names=("permute", f"fx_{name}"),
    )


def offered(
    *nodes: Node,
    fused: Sequence[tuple[str, str]] = (),
    kept: bool = False,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
) -> tuple[tuple[Choice, ...], float] | None:
    """Of a graph in which every node that is no product reads the products before it."""
    needs, products = [], []
    for node in nodes:
        if node.kind == "extern":
            products.append(node.name)
        else:
            needs += [Dependency(node.name, made, f"buf_{made}") for made in products]
    buffers = [
        Buffer(
            f"buf_{node.name}",
            dtype.itemsize * node.numel,
            str(dtype),
            False,
            kept or node.kind != "extern",
            tuple(d.consumer for d in needs if d.producer == node.name),
        )
        for node in nodes
    ]
    problem = Problem("key", "inference", nodes, tuple(buffers), tuple(needs), ())
    plan = build_plan([n.name for n in nodes], [Step("fuse", *pair) for pair in fused])
    return templated(problem, plan, msgspec.structs.replace(GPU, kind=device))


def gain_us(*nodes: Node, kept: bool = False) -> float:
    found = offered(*nodes, kept=kept)
    assert found is not None
    return found[1]


def test_a_short_product_takes_in_what_follows() -> None:
    found = offered(product(), kernel("relu", SIZE))
    assert found is not None and templates(found[0]) == {"fx_mm": 64}
    # Neither stored nor read again in a launch of its own, for a fifth of what the library takes.
    moved, computed = 2 * 4 * SIZE / (GPU.copy_gbs * 1e3), 2 * SIZE * 64 / (GPU.flops_gfs * 1e3)
    assert found[1] == pytest.approx(moved - 0.2 * computed + GPU.launch_us)


def test_all_products_of_a_graph_are_offered_together() -> None:
    found = offered(product("a"), product("b"), product("long", 4096), kernel("add", SIZE))
    assert found is not None and templates(found[0]) == {"fx_a": 64, "fx_b": 64}
    assert found[1] == pytest.approx(2 * gain_us(product("a"), kernel("add", SIZE)))


def test_long_sums_of_halves_are_computed_in_taller_blocks() -> None:
    def rows(inner: int, dtype: torch.dtype, numel: int = SIZE) -> set[int]:
        one = msgspec.structs.replace(product(), numel=numel, flops=2 * numel * inner, reads=())
        found = offered(one, kernel("relu", numel), dtype=dtype)
        return set() if found is None else set(templates(found[0]).values())

    assert rows(512, torch.bfloat16) == {128}
    assert rows(256, torch.float16) == rows(256, torch.float32) == {64}
    # As tall, they would leave much of the device without work.
    assert rows(512, torch.bfloat16, 128 * 128) == {64}


def test_what_is_needed_elsewhere_is_stored_all_the_same() -> None:
    alone = gain_us(product(), kernel("relu", SIZE))
    stored = gain_us(product(), kernel("relu", SIZE), kept=True)
    reduced = gain_us(product(), kernel("relu", SIZE), kernel("sum", ROWS, COLUMNS, "reduction"))
    assert (
        stored == reduced == pytest.approx(alone - 4 * SIZE / (GPU.copy_gbs * 1e3) - GPU.launch_us)
    )


@pytest.mark.parametrize(
    "nodes",
    [
        # A library computes long sums at a higher rate.
        (product(inner=4096), kernel("relu", SIZE)),
        (product(), kernel("sum", ROWS, COLUMNS, "reduction")),
        (product(), kernel("wider", 4 * SIZE)),
        (product(operator="aten.bmm.default"), kernel("relu", SIZE)),
        (product(),),
        (product(inner=0), kernel("relu", SIZE)),
    ],
    ids=["long", "reduced", "broadcast", "batched", "last", "uncounted"],
)
def test_what_gains_nothing_is_left_to_the_library(nodes: tuple[Node, ...]) -> None:
    assert offered(*nodes) is None


def test_what_is_reduced_in_the_same_kernel_is_read_there_anyhow() -> None:
    nodes = (product(), kernel("relu", SIZE), kernel("sum", ROWS, COLUMNS, "reduction"))
    assert offered(*nodes, fused=[("relu", "sum")]) is None


def test_what_is_scattered_is_no_part_of_a_template() -> None:
    relu = kernel("relu", SIZE)
    scattered = Access("buf_relu", "atomic", SIZE, 4 * SIZE, 4, 1, "tmp0")
    assert offered(product(), msgspec.structs.replace(relu, writes=(scattered,))) is None


def test_products_that_mostly_read_a_matrix_are_left_alone() -> None:
    matrix = Access("weight", "opaque", 0, 5 * 4 * SIZE, 1, 0, "*")
    few = msgspec.structs.replace(product(), reads=(matrix,))
    assert offered(few, kernel("relu", SIZE)) is None


def test_there_are_none_of_doubles() -> None:
    assert offered(product(), kernel("relu", SIZE), dtype=torch.float64) is None


def test_on_a_cpu_there_are_none() -> None:
    assert offered(product(), kernel("relu", SIZE), device="cpu") is None
