"""The first compile of a graph in a process makes the nodes that all later ones make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import lowering


@pytest.fixture
def unmet() -> Iterator[Any]:
    """An operator that Inductor has no code for and has not met."""
    library = torch.library.Library("fusewise_unmet", "DEF")
    library.define("call(Tensor x) -> Tensor")
    library.impl("call", lambda x: x.cos(), "CompositeExplicitAutograd")
    library.impl("call", torch.empty_like, "Meta")
    operator = torch.ops.fusewise_unmet.call.default
    yield operator
    for known in (lowering.lowerings, lowering.fallbacks, lowering.needs_realized_inputs):
        known.pop(operator, None) if isinstance(known, dict) else known.discard(operator)
    library._destroy()


def test_a_graph_has_the_same_nodes_the_first_time(live: Any, unmet: Any) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + y
        return total.sin().sum(0), unmet(total)

    (graph,) = live.capture(live.UserProgram(program, (torch.randn(6, 6), torch.randn(6, 6))))
    assert unmet not in lowering.lowerings
    first = graph.survey().problem
    assert unmet in lowering.lowerings
    second = graph.survey().problem
    assert [(n.name, n.signature) for n in first.nodes] == [
        (n.name, n.signature) for n in second.nodes
    ]
