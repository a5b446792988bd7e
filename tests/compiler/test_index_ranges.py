"""How far integers reach that a graph indexes by; and what is made up where nobody saw them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from fusewise.compiler.measuring.index_ranges import index_ranges
from fusewise.compiler.measuring.inputs import TensorInput, build
from tests.compiler.test_measuring import job_of

IDS = torch.tensor([[4, 1, 0], [2, 2, 3]])


def ranges(live: Any, f: Callable[..., Any], *args: Any, training: bool = False) -> list[Any]:
    """Of the integer inputs of the last graph of a program, in their order."""
    *_, graph = live.capture(live.UserProgram(f, args, training=training))
    found = index_ranges(graph.compile.gm)
    names = [
        node.name
        for node in graph.compile.gm.graph.nodes
        if node.op == "placeholder" and not node.meta["val"].dtype.is_floating_point
    ]
    assert found.keys() <= set(names)
    return [found.get(name) for name in names]


@pytest.mark.parametrize(
    ("f", "shape", "reached"),
    [
        pytest.param(functional.embedding, (17, 4), (0, 16), id="embedding"),
        pytest.param(lambda ids, x: x[ids].exp(), (9, 5), (0, 8), id="index"),
        pytest.param(lambda ids, x: x[:, ids[0]].exp(), (9, 5), (0, 4), id="index of columns"),
        pytest.param(lambda ids, x: x.index_select(1, ids.view(-1)), (9, 5), (0, 4), id="select"),
        pytest.param(lambda ids, x: x.gather(-1, ids).exp(), (2, 6), (0, 5), id="gather"),
        pytest.param(
            lambda ids, x: x.scatter_add(0, ids, torch.ones(2, 3)), (7, 3), (0, 6), id="scatter"
        ),
        pytest.param(
            lambda ids, x: x.index_put((ids, ids.flip(0)), torch.ones(2, 3), accumulate=True),
            (8, 6),
            (0, 7),
            id="put by what is computed",
        ),
        pytest.param(lambda ids, x: x[ids] + x[:6][ids], (9, 2), (0, 5), id="the smallest"),
        pytest.param(lambda ids, x: x[(ids > 2).long()], (9, 2), None, id="computed"),
        pytest.param(lambda ids, x: x * ids.sum(), (9, 2), None, id="no index"),
    ],
)
def test_it_is_told_by_what_is_indexed(
    live: Any, f: Callable[..., Any], shape: tuple[int, ...], reached: tuple[int, int] | None
) -> None:
    assert ranges(live, f, IDS, torch.randn(shape)) == [reached]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_of_either_width(live: Any, dtype: torch.dtype) -> None:
    assert ranges(live, lambda ids, x: x[ids].exp(), IDS.to(dtype), torch.randn(9, 5)) == [(0, 8)]


def test_arguments_may_be_passed_by_name(live: Any) -> None:
    program = live.UserProgram(lambda ids, x: x.gather(-1, ids).exp(), (IDS, torch.randn(2, 6)))
    (graph,) = live.capture(program)
    gm = copy.deepcopy(graph.compile.gm)
    (call,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.gather.default)
    call.kwargs = dict(zip(("self", "dim", "index"), call.args, strict=True))
    call.args = ()
    assert list(index_ranges(gm).values()) == [(0, 5)]


def looked_up(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return functional.embedding(ids, table).exp().sum()


def picked(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table.sin().gather(1, ids.unsqueeze(1)).sum()


@pytest.mark.parametrize(
    ("f", "ids", "reached"),
    [
        pytest.param(looked_up, IDS, (0, 22), id="rows"),
        pytest.param(picked, torch.arange(23) % 4, (0, 3), id="elements"),
    ],
)
def test_what_a_forward_graph_saved_is_followed_to_its_use(
    live: Any, f: Callable[..., Any], ids: torch.Tensor, reached: tuple[int, int]
) -> None:
    table = torch.randn(23, 4, requires_grad=True)
    assert ranges(live, f, ids, table, training=True) == [reached]


def test_made_up_indices_go_everywhere(live: Any) -> None:
    """Of a backward graph of which nobody knows the forward one."""
    args = torch.randint(0, 50, (400,)), torch.randn(50, 8, requires_grad=True)
    _, backward = live.capture(live.UserProgram(looked_up, args, training=True))
    job = job_of(backward, "cpu")
    made = dict(zip(job.input_names, build(job.inputs, {}), strict=True))
    (ids,) = (made[spec.saved] for spec in job.inputs if is_index(spec))
    assert 40 < len(ids.unique()) <= 50 and ids.min() >= 0 and ids.max() < 50


def is_index(spec: Any) -> bool:
    return isinstance(spec, TensorInput) and spec.dtype == torch.int64
