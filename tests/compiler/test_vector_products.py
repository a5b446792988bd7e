"""Products of a matrix with a vector as sums: what they generate, and when they are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusewise
from fusewise.compiler import deciding, spending
from fusewise.compiler.inductor.products import vector_products
from fusewise.schedule.schedule import Candidate, Choice, Schedule

gpu = pytest.mark.gpu


def decoded(x: Any, up: Any, down: Any, bias: Any, q: Any, k: Any) -> Any:
    hidden = torch.nn.functional.silu(x @ up)
    return torch.addmm(bias, hidden, down), torch.bmm(q, k).softmax(-1), x @ up @ up.t()


def decoding(make: Any) -> tuple[Any, ...]:
    shapes = ((1, 512), (512, 1024), (1024, 256), (256,), (6, 1, 64), (6, 64, 100))
    return tuple(make.tensor(*shape) / 8 for shape in shapes)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_with_a_vector_are_sums(live: Any, dtype: torch.dtype) -> None:
    args = decoding(live.Make("cuda", dtype))
    (graph,) = live.capture(live.UserProgram(decoded, args))
    assert vector_products(graph.compile.gm) > 1 << 20
    assert "extern_kernels" in graph.stock.source
    program = graph.generate(Schedule(lowering=(Choice("products_as_sums", True),)))
    assert "extern_kernels." not in program.source
    live.difference(graph.run(program), graph.eager())


@gpu
def test_what_the_vector_is_made_from_is_not_computed_for_each_row(live: Any) -> None:
    make = live.Make("cuda", torch.float32)
    q, k = make.tensor(6, 1, 64), make.tensor(6, 100, 64)

    def turned(q: Any, k: Any) -> Any:
        return torch.bmm(q.cos(), (k * 2).transpose(1, 2))

    (graph,) = live.capture(live.UserProgram(turned, (q, k)))
    program = graph.generate(Schedule(lowering=(Choice("products_as_sums", True),)))
    kernels = program.source.split("async_compile.triton(")[1:]
    (turns,) = (code for code in kernels if "cos(" in code)
    (sums,) = (code for code in kernels if "tl.sum(" in code)
    assert len(kernels) == 2 and turns != sums
    live.difference(graph.run(program), graph.eager())


@gpu
def test_products_of_matrices_stay_what_they_are(live: Any) -> None:
    make = live.Make("cuda", torch.float32)
    (graph,) = live.capture(
        live.UserProgram(lambda x, y: (x @ y).relu(), (make.tensor(16, 32), make.tensor(32, 24)))
    )
    assert vector_products(graph.compile.gm) == 0
    program = graph.generate(Schedule(lowering=(Choice("products_as_sums", True),)))
    assert program.code_hash == graph.stock.code_hash


def with_sums(report: Any) -> list[Candidate]:
    return [c for c in report.candidates if Choice("products_as_sums", True) in c.schedule.lowering]


@gpu
def test_decoding_tries_them(live: Any, compile_with: Callable[..., Any]) -> None:
    args = decoding(live.Make("cuda", torch.float32))
    live.difference(compile_with(decoded, "measure", budget_s=60)(*args), decoded(*args))
    (report,) = fusewise.reports()
    assert report.fallback is None
    tried = with_sums(report)
    assert tried and all(c.origin == "finish" and c.status == "measured" for c in tried)


@gpu
def test_they_come_first_where_seconds_are_few(
    live: Any, compile_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spending.LEAST_S, "cuda", 60.0)
    monkeypatch.setattr(deciding, "finish", lambda *_: {})
    args = decoding(live.Make("cuda", torch.float32))
    live.difference(compile_with(decoded, "measure")(*args), decoded(*args))
    (report,) = fusewise.reports()
    assert report.fallback is None
    assert "measured" in [c.status for c in with_sums(report)]


def test_on_a_cpu_products_stay_what_they_are(live: Any) -> None:
    make = live.Make("cpu", torch.float32)
    (graph,) = live.capture(
        live.UserProgram(lambda x, y: (x @ y).relu(), (make.tensor(1, 640), make.tensor(640, 700)))
    )
    assert vector_products(graph.compile.gm) == 0
    program = graph.generate(Schedule(lowering=(Choice("products_as_sums", True),)))
    assert program.code_hash == graph.stock.code_hash
    live.difference(graph.run(program), graph.eager())
