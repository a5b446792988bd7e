"""Problems tell which loops an access goes along, where equal extents leave its index ambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import pytest
import torch

from fusewise.costmodel.layout import layout_of
from fusewise.schedule.problem import Access, Node, Problem

_SIDE = 8


def _problem(live: Any, function: Any, *args: Any) -> Problem:
    """Problem of the one graph of an inference program."""
    (graph,) = live.capture(live.UserProgram(function, args))
    return graph.surveyed.problem  # type: ignore[no-any-return]


def _steps(node: Node, access: Access) -> tuple[int, ...]:
    layout = layout_of(access, (*node.ranges[0], *node.ranges[1]))
    assert layout is not None
    return layout.steps


@pytest.mark.parametrize("kept", [k for k in product((True, False), repeat=3) if any(k)])
def test_an_access_steps_as_its_tensor_does(live: Any, device: str, kept: Sequence[bool]) -> None:
    table = torch.randn([_SIDE if here else 1 for here in kept], device=device)
    # No two of its loops can be merged.
    whole = torch.randn(_SIDE, _SIDE + 1, 4 * _SIDE, device=device)[:, :_SIDE, : 3 * _SIDE : 3]
    for order in permutations(range(3)):
        turned = table.permute(order)

        def function(one: Any, other: Any) -> Any:
            return one + other

        [node] = _problem(live, function, whole, turned).nodes
        steps = {_steps(node, access) for access in node.reads}
        assert steps == {whole.stride(), turned.expand_as(whole).stride()}


def test_a_lookup_leaves_its_own_loop_to_the_index(live: Any, device: str) -> None:
    # From channels last to channels first: rows are looked up along the last loop but one.
    image = torch.randn(_SIDE, _SIDE, _SIDE, device=device).permute(2, 0, 1)
    rows = torch.randint(0, _SIDE, (_SIDE,), device=device)
    kept = torch.empty(_SIDE, _SIDE, _SIDE, device=device)

    def function(kept: Any, image: Any, rows: Any) -> Any:
        return kept.copy_(image[:, rows])

    problem = _problem(live, function, kept, image, rows)
    found = [(node, access) for node in problem.nodes for access in node.reads if access.looked_up]
    assert [_steps(*lookup) for lookup in found] == [(1, 0, _SIDE)]


def test_equal_extents_make_other_kernels_of_rows_and_columns(live: Any, device: str) -> None:
    whole = torch.randn(_SIDE, _SIDE + 1, device=device)[:, :_SIDE]
    line = torch.randn(_SIDE, device=device)
    [row] = _problem(live, lambda a, b: a + b, whole, line).nodes
    [column] = _problem(live, lambda a, b: a + b[:, None], whole, line).nodes
    told = [{access.index for access in node.reads} for node in (row, column)]
    assert told[0] == told[1]
    assert row.signature != column.signature
