"""Which products are offered to templates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from fusewise.costmodel.products import Product, library_us, template_us
from fusewise.schedule.plan import Step, build_plan
from fusewise.schedule.problem import Access, Buffer, Dependency, Node, Problem
from fusewise.schedule.products import templates
from fusewise.schedule.schedule import Choice
from fusewise.search.products import templated
from tests.search.planned import GPU, kernel

ROWS, COLUMNS = 1 << 17, 64
SIZE = ROWS * COLUMNS


def product(
    name: str = "mm",
    inner: int = 64,
    operator: str = "aten.mm.default",
    rows: int = ROWS,
    columns: int = COLUMNS,
    itemsize: int = 4,
) -> Node:
    def matrix(buffer: str, size: int) -> Access:
        return Access(buffer, "opaque", size, itemsize * size, 1, 0, "*")

    return msgspec.structs.replace(
        kernel(name, rows * columns, kind="extern"),
        reads=(matrix("x", rows * inner), matrix("w", inner * columns)),
        flops=2 * rows * columns * inner,
        origins=("aten.permute.default", operator),
        fx_names=("permute", f"fx_{name}"),
    )


def offered(
    *nodes: Node,
    fused: Sequence[tuple[str, str]] = (),
    kept: bool = False,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
    unsuited: Sequence[str] = (),
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
    suited = frozenset(products) - {*unsuited}
    return templated(problem, plan, msgspec.structs.replace(GPU, kind=device), suited)


def gain_us(*nodes: Node, kept: bool = False) -> float:
    found = offered(*nodes, kept=kept)
    assert found is not None
    return found[1]


def test_a_short_product_takes_in_what_follows() -> None:
    found = offered(product(), kernel("relu", SIZE))
    assert found is not None and templates(found[0]) == {"fx_mm": 64}
    # Neither stored nor read again in a launch of its own.
    moved_us = 2 * 4 * SIZE / (GPU.copy_gbs * 1e3) + GPU.launch_us
    one = Product(1, ROWS, COLUMNS, 64, half=False)
    slower_us = template_us(one, GPU) - library_us(one, GPU)
    assert found[1] == pytest.approx(moved_us - slower_us)


def test_a_product_that_leaves_a_library_without_work_is_a_template_s() -> None:
    # Half as many blocks again as there are processors, and few columns for its blocks.
    uneven = product(rows=20_000, columns=256, inner=256)
    (choices, _) = offered(uneven) or ((), 0.0)
    assert templates(choices) == {"fx_mm": 64}


def test_products_whose_matrices_lie_otherwise_are_left_to_the_library() -> None:
    assert offered(product(), kernel("relu", SIZE), unsuited=["mm"]) is None
    both = offered(product("a"), product("b"), kernel("add", SIZE), unsuited=["b"])
    assert both is not None and templates(both[0]) == {"fx_a": 64}


def test_all_products_of_a_graph_are_offered_together() -> None:
    long = product("long", 4096)
    found = offered(product("a"), product("b"), long, kernel("add", SIZE))
    assert found is not None and templates(found[0]) == {"fx_a": 64, "fx_b": 64}
    assert found[1] == pytest.approx(2 * gain_us(product("a"), kernel("add", SIZE)))


def test_long_sums_of_halves_are_computed_in_taller_blocks() -> None:
    def rows(inner: int, dtype: torch.dtype) -> set[int]:
        one = product(rows=16_384, columns=768, inner=inner, itemsize=dtype.itemsize)
        found = offered(one, kernel("relu", one.numel), dtype=dtype)
        return set() if found is None else set(templates(found[0]).values())

    assert rows(512, torch.bfloat16) == {128}
    assert rows(256, torch.float16) == rows(256, torch.float32) == {64}


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
        (product(operator="aten.bmm.default"), kernel("relu", SIZE)),
        (msgspec.structs.replace(product(), flops=0), kernel("relu", SIZE)),
    ],
    ids=["long", "batched", "uncounted"],
)
def test_what_gains_nothing_is_left_to_the_library(nodes: tuple[Node, ...]) -> None:
    assert offered(*nodes) is None


def test_what_computes_more_than_each_element_is_no_part_of_a_template() -> None:
    alone = gain_us(product())
    relu, summed = kernel("relu", SIZE), kernel("sum", ROWS, COLUMNS, "reduction")
    assert gain_us(product(), summed) == gain_us(product(), kernel("wider", 4 * SIZE)) == alone
    # What is reduced in the same kernel is read there anyhow.
    found = offered(product(), relu, summed, fused=[("relu", "sum")])
    assert found is not None and found[1] == alone
    scattered = Access("buf_relu", "atomic", SIZE, 4 * SIZE, 4, 1, "tmp0")
    assert gain_us(product(), msgspec.structs.replace(relu, writes=(scattered,))) == alone
    assert gain_us(product(), relu) > alone


def test_products_that_mostly_read_a_matrix_are_left_alone() -> None:
    few = product(rows=2048, columns=256, inner=4096)
    assert offered(few, kernel("relu", few.numel)) is None


def test_there_are_none_of_doubles() -> None:
    assert offered(product(), kernel("relu", SIZE), dtype=torch.float64) is None


def test_on_a_cpu_there_are_none() -> None:
    assert offered(product(), kernel("relu", SIZE), device="cpu") is None
