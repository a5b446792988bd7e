"""Products by templates: what they generate, what is refused, and that they are tried."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler.inductor.templates import suited_products
from fusewise.schedule.errors import PlanError
from fusewise.schedule.products import ROWS, template_choice, templates
from fusewise.schedule.schedule import Schedule

gpu = pytest.mark.gpu


def layers(x: Any, w: Any, b: Any, y: Any) -> Any:
    hidden = torch.relu(x @ w) + y
    return hidden, torch.nn.functional.linear(hidden, w.t(), b).tanh()


def operands(make: Any) -> tuple[Any, ...]:
    # Neither blocks of rows nor of columns end where matrices do, which nobody would pad though.
    shapes = ((3, 344, 40), (40, 40), (40,), (3, 344, 40))
    return tuple(make.tensor(*shape) / 4 for shape in shapes)


def captured(live: Any, dtype: torch.dtype) -> tuple[Any, list[str]]:
    """The layers, and their products by the names that they have when they are lowered."""
    (graph,) = live.capture(live.UserProgram(layers, operands(live.Make("cuda", dtype))))
    products = [n.fx_names[-1] for n in graph.surveyed.problem.nodes if n.kind == "extern"]
    assert len(products) == 2
    return graph, products


def schedule(rows: int, *nodes: str) -> Schedule:
    return Schedule(lowering=tuple(template_choice(node, rows) for node in nodes))


@gpu
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_follows_a_product_is_in_its_kernel(live: Any, dtype: torch.dtype, rows: int) -> None:
    graph, products = captured(live, dtype)
    program = graph.generate(schedule(rows, *products))
    assert "extern_kernels." not in program.source
    assert len(re.findall(r"triton_tem\w+\.run\(", program.source)) == 2
    assert "triton_poi" not in program.source
    live.difference(graph.run(program), graph.eager())


@gpu
def test_one_product_is_and_the_other_is_not(live: Any) -> None:
    graph, products = captured(live, torch.float32)
    program = graph.generate(schedule(64, products[1]))
    assert len(re.findall(r"extern_kernels\.\w+\(", program.source)) == 1
    assert len(re.findall(r"triton_tem\w+\.run\(", program.source)) == 1
    live.difference(graph.run(program), graph.eager())


@gpu
def test_what_has_no_template_is_refused(live: Any) -> None:
    make = live.Make("cuda", torch.float32)
    q, k = make.tensor(4, 32, 16), make.tensor(4, 16, 32)
    (graph,) = live.capture(live.UserProgram(lambda q, k: torch.bmm(q, k).relu(), (q, k)))
    for name in ("bmm", "mm_7"):
        with pytest.raises(PlanError, match=f"{name!r} is no matrix product"):
            graph.generate(schedule(64, name))
    x = make.tensor(48, 48).double()
    (graph,) = live.capture(live.UserProgram(lambda x: (x @ x).relu(), (x,)))
    with pytest.raises(PlanError, match="'mm' is no matrix product"):
        graph.generate(schedule(64, "mm"))


def test_on_a_cpu_there_is_none(live: Any) -> None:
    x = live.Make("cpu", torch.float32).tensor(64, 64)
    (graph,) = live.capture(live.UserProgram(lambda x: (x @ x).relu(), (x,)))
    with pytest.raises(PlanError, match="'mm' is no matrix product"):
        graph.generate(schedule(64, "mm"))


def test_a_user_may_want_products_timed(live: Any) -> None:
    x = live.Make("cpu", torch.float32).tensor(64, 64)
    (graph,) = live.capture(live.UserProgram(lambda x: (x @ x).relu(), (x,)))
    assert not graph.compile.times_products
    for setting in ("max_autotune", "max_autotune_gemm"):
        assert dataclasses.replace(graph.compile, inductor_options={setting: True}).times_products


def suited(live: Any, function: Callable[..., Any], *args: Any) -> list[bool]:
    """Of a graph's products, in order, whether their matrices lie as templates want them."""
    (graph,) = live.capture(live.UserProgram(function, args))
    found = graph.survey(lambda seen, *_: suited_products(seen.nodes))
    products = [node.name for node in found.problem.nodes if node.kind == "extern"]
    assert products and found.found <= {*products}
    return [name in found.found for name in products]


def test_products_of_rows_are_a_template_s_and_of_columns_only_in_16_bits(live: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        make = live.Make("cpu", dtype)
        x, w, odd = make.tensor(48, 64), make.tensor(64, 32), make.tensor(48, 63)
        # As a layer has its weights; and rows that begin anywhere.
        weights, other = make.tensor(32, 64), make.tensor(63, 32)
        half = dtype != torch.float32
        assert suited(live, torch.mm, x, w) == [True]
        assert suited(live, torch.nn.functional.linear, x, weights, make.tensor(32)) == [half]
        assert suited(live, torch.mm, odd, other) == [half]
    doubles = live.Make("cpu", torch.float64)
    assert suited(live, torch.mm, doubles.tensor(48, 64), doubles.tensor(64, 32)) == [False]


def test_products_that_are_rounded_are_left_to_the_library(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = live.Make("cpu", torch.float32)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert suited(live, torch.mm, make.tensor(48, 64), make.tensor(64, 32)) == [False]


@gpu
def test_short_products_are_tried(live: Any, compile_with: Callable[..., Any]) -> None:
    make = live.Make("cuda", torch.float32)
    args = (make.tensor(200_000, 32), make.tensor(32, 32) / 8, make.tensor(200_000, 32))

    def gated(x: Any, w: Any, y: Any) -> Any:
        return torch.sigmoid(x @ w) * y

    live.difference([compile_with(gated, "measure", budget_s=60)(*args)], [gated(*args)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    tried = [c for c in report.candidates if templates(c.schedule.lowering)]
    assert tried and "measured" in [c.status for c in tried]


@gpu
def test_rows_may_be_of_any_number(live: Any, compile_with: Callable[..., Any]) -> None:
    make = live.Make("cuda", torch.float32)
    w = make.tensor(32, 32) / 8

    def gated(x: Any, y: Any) -> Any:
        return torch.sigmoid(x @ w) * y

    compiled = compile_with(gated, "measure", budget_s=60)
    for rows in (200_000, 100_001):
        x, y = make.tensor(rows, 32), make.tensor(rows, 32)
        for value in (x, y):
            torch._dynamo.mark_dynamic(value, 0)
        live.difference([compiled(x, y)], [gated(x, y)])
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert any(templates(c.schedule.lowering) for c in report.candidates)
