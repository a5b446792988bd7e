"""Which products are offered to templates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

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
    *nodes: Node, fused: Sequence[tuple[str, str]] = (), kept: bool = False, device: str = "cuda"
) -> list[tuple[tuple[Choice, ...], float]]:
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
            4 * node.numel,
            "torch.float32",
            False,
            kept or node.kind != "extern",
            tuple(d.consumer for d in needs if d.producer == node.name),
        )
        for node in nodes
    ]
    problem = Problem("key", "inference", nodes, tuple(buffers), tuple(needs), ())
    plan = build_plan([n.name for n in nodes], [Step("fuse", *pair) for pair in fused])
    return templated(problem, plan, msgspec.structs.replace(GPU, kind=device))


def test_a_short_product_takes_in_what_follows() -> None:
    ((choices, us),) = offered(product(), kernel("relu", SIZE))
    assert templates(choices) == {"fx_mm": 64}
    # Neither stored nor read again, for half of what the library computes for.
    moved, computed = 2 * 4 * SIZE / (GPU.copy_gbs * 1e3), 2 * SIZE * 64 / (GPU.flops_gfs * 1e3)
    assert us == pytest.approx(moved - 0.5 * computed)


def test_like_products_are_decided_alike() -> None:
    ((choices, us),) = offered(product("a"), product("b"), kernel("add", SIZE))
    ((_, one),) = offered(product("a"), kernel("add", SIZE))
    assert templates(choices) == {"fx_a": 64, "fx_b": 64}
    assert us == pytest.approx(2 * one)


def test_what_is_needed_elsewhere_is_stored_all_the_same() -> None:
    ((_, alone),) = offered(product(inner=16), kernel("relu", SIZE))
    ((_, stored),) = offered(product(inner=16), kernel("relu", SIZE), kept=True)
    ((_, reduced),) = offered(
        product(inner=16), kernel("relu", SIZE), kernel("sum", ROWS, COLUMNS, "reduction")
    )
    assert stored == reduced == pytest.approx(alone - 4 * SIZE / (GPU.copy_gbs * 1e3))


@pytest.mark.parametrize(
    "nodes",
    [
        # A library computes long sums at a higher rate.
        (product(inner=1024), kernel("relu", SIZE)),
        (product(), kernel("sum", ROWS, COLUMNS, "reduction")),
        (product(), kernel("wider", 4 * SIZE)),
        (product(operator="aten.bmm.default"), kernel("relu", SIZE)),
        (product(),),
    ],
    ids=["long", "reduced", "broadcast", "batched", "last"],
)
def test_what_gains_nothing_is_left_to_the_library(nodes: tuple[Node, ...]) -> None:
    assert offered(*nodes) == []


def test_what_is_reduced_in_the_same_kernel_is_read_there_anyhow() -> None:
    nodes = (product(), kernel("relu", SIZE), kernel("sum", ROWS, COLUMNS, "reduction"))
    assert offered(*nodes, fused=[("relu", "sum")]) == []


def test_what_is_scattered_is_no_part_of_a_template() -> None:
    relu = kernel("relu", SIZE)
    scattered = Access("buf_relu", "atomic", SIZE, 4 * SIZE, 4, 1, "tmp0")
    assert offered(product(), msgspec.structs.replace(relu, writes=(scattered,))) == []


def test_on_a_cpu_there_are_none() -> None:
    assert offered(product(), kernel("relu", SIZE), device="cpu") == []
