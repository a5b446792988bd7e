"""The high-precision reference, and errors against it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from fusewise.compiler.measuring.reference import dtypes_of, relative_error, run_reference
from fusewise.compiler.measuring.sent_graph import receive_graph, send_graph


def _errors(graph: Any) -> list[float]:
    outputs, _ = reference_of(graph)
    got = graph.run(graph.stock)[: len(outputs)]
    return [relative_error(a, b) for a, b in zip(got, outputs, strict=True)]


def reference_of(graph: Any) -> tuple[list[Any], dict[int, torch.Tensor]]:
    gm = graph.compile.gm
    return run_reference(gm, graph.inputs, dtypes_of(gm))


def test_error_of_a_graph_is_about_the_resolution_of_its_dtype(live: Any, device: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        (graph,) = live.captured("layer_norm", device, dtype)
        (error,) = _errors(graph)
        resolution = torch.finfo(dtype).eps
        assert resolution / 30 < error < resolution


def test_reference_is_in_double_precision_throughout(live: Any) -> None:
    (graph,) = live.captured("softmax", "cpu", torch.bfloat16)
    outputs, overwritten = reference_of(graph)
    assert {value.dtype for value in outputs} == {torch.float64}
    assert overwritten == {}
    assert torch.allclose(outputs[0].sum(-1), torch.ones((), dtype=torch.float64), atol=1e-14)


def test_overwritten_inputs_are_part_of_the_reference(live: Any) -> None:
    (graph,) = live.captured("adam_step")
    before = [value.clone() for value in graph.inputs]
    _, overwritten = reference_of(graph)
    wanted = graph.eager()[-len(before) :]
    changed = [i for i, v in enumerate(before) if not torch.equal(v, wanted[i])]
    assert sorted(overwritten) == changed != []
    for i in changed:
        assert relative_error(wanted[i], overwritten[i]) < 1e-6
    # The caller's are as they were.
    assert all(torch.equal(a, b) for a, b in zip(before, graph.inputs, strict=True))


def test_integer_graph_has_an_exact_reference(live: Any) -> None:
    (graph,) = live.captured("integers")
    assert _errors(graph) == [0.0] * 4


def test_operators_without_a_kernel_in_double_run_in_what_they_have(live: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.ops.aten._int_mm(x, y).float() * 0.5

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-9, 9, (32, 32), generator=generator, dtype=torch.int8) for _ in range(2))
    (graph,) = live.capture(live.UserProgram(f, (x, y)))
    assert _errors(graph) == [0.0]


values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20).map(torch.tensor)


@settings(deadline=None)
@given(values, st.floats(1e-3, 0.5))
def test_error_is_relative_to_the_whole(reference: torch.Tensor, part: float) -> None:
    wide = reference.double()
    assert relative_error(reference, wide) == 0
    expected = part if wide.norm() > 0 else 0.0
    assert relative_error(wide * (1 + part), wide) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("value", "reference", "error"),
    [
        (torch.zeros(3), torch.zeros(4).double(), math.inf),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 1.0]).double(), math.inf),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, 1e9]).double(), math.inf),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, math.inf]).double(), math.inf),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, math.inf]).double(), 0.0),
        (torch.tensor([math.inf]).half(), torch.tensor([1e6]).double(), 0.0),
        (torch.tensor([3, 4, 5, 6]), torch.tensor([3, 4, 5, 7]), 0.25),
        (torch.tensor([True, False]), torch.tensor([True, False]), 0.0),
        (torch.zeros(0), torch.zeros(0).double(), 0.0),
        (torch.tensor([0.5]), torch.zeros(1).double(), 0.5),
        (torch.tensor([3 + 4j]), torch.tensor([3 + 0j]), 4 / 3),
        (7, 7, 0.0),
        (7, 8, math.inf),
    ],
)
def test_special_values(value: Any, reference: Any, error: float) -> None:
    assert relative_error(value, reference) == pytest.approx(error)


def _told(graph: Any) -> list[tuple[str, ...]]:
    return [(n.name, n.op, str(n.target), str(n.args), str(n.kwargs)) for n in graph.nodes]


def test_graph_arrives_as_it_was_sent(live: Any) -> None:
    for name in ("attention", "cross_entropy", "embedding", "batch_norm", "adam_step"):
        for graph in live.captured(name):
            gm = graph.compile.gm
            sent = send_graph(gm)
            assert sent is not None
            assert _told(receive_graph(sent).graph) == _told(gm.graph)


def test_constants_are_sent_while_inductor_compiles() -> None:
    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = torch.tensor([1.0, -2.0, 3.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.steps

    graph = torch.fx.symbolic_trace(Shifted())
    with FakeTensorMode():
        sent = send_graph(graph)
    assert sent is not None
    assert receive_graph(sent)(torch.ones(3)).tolist() == [2.0, -1.0, 4.0]
