"""What a problem says of a body: equal expressions once, along which loops, and masks by shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from fusewise.schedule.problem import Node, Problem


def _problem(live: Any, function: Callable[..., Any], *args: Any) -> Problem:
    """Problem of the one graph of an inference program."""
    (graph,) = live.capture(live.UserProgram(function, args))
    return graph.surveyed.problem  # type: ignore[no-any-return]


def _along(node: Node) -> Mapping[tuple[str, int], int]:
    """How often a node computes each operation along which of its loops."""
    counts: Counter[tuple[str, int]] = Counter()
    for each in node.computed:
        counts[each.name, each.along] += each.count
    return counts


def test_equal_expressions_are_computed_once(live: Any, device: str) -> None:
    def gated(x: Any) -> Any:
        y = x * (x + 1.0).abs()
        return y * y.neg()

    (node,) = _problem(live, gated, live.Make(device, torch.float32).tensor(64)).nodes
    assert dict(node.ops)["load"] > 1 and dict(node.ops)["abs"] > 1
    found = {each.name: each.count for each in node.computed}
    assert (found["load"], found["abs"], found["neg"], found["mul"]) == (1, 1, 1, 2)


def test_places_of_an_interpolation_are_found_once(live: Any, device: str) -> None:
    def larger(x: Any) -> Any:
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear")

    # Part of it is stored on some devices, were it not for this.
    with inductor_config.patch(realize_opcount_threshold=1000, realize_reads_threshold=100):
        (node,) = _problem(live, larger, live.Make(device, torch.float32).tensor(1, 2, 9, 8)).nodes
    written, found = dict(node.ops), Counter[str]()
    for each in node.computed:
        found[each.name] += each.count
    # Four neighbours, at a place of either side, however often these are written out.
    assert (found["load"], found["index_expr"]) == (4, 2)
    assert written["load"] > 4 and written["index_expr"] > 2


def test_what_a_row_has_does_not_go_along_it(live: Any, device: str) -> None:
    def within(x: Any, lengths: Any) -> Any:
        at = torch.arange(x.shape[-1], device=x.device)
        scale = (lengths.float() ** 0.3)[:, None]
        return torch.where(at[None] < (lengths % 7)[:, None], x / scale, 0.0)

    make = live.Make(device, torch.float32)
    lengths = torch.tensor([3, 5, 9, 200], device=device)
    (node,) = _problem(live, within, make.tensor(4, 512), lengths).nodes
    assert node.ranges == ((4, 512), ())
    rows, both = 0b01, 0b11
    along = _along(node)
    assert along["pow", rows] == along["remainder", rows] == 1
    assert along["index_expr", 0b10] == 1
    assert along["where", both] == along["lt", both] == along["truediv", both] == 1


@pytest.mark.parametrize(("length", "margin"), [(300, 1000), (4096, 64)])
def test_a_mask_by_positions_says_how_often_it_holds(
    live: Any, device: str, length: int, margin: int
) -> None:
    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x.abs(), (margin, margin))

    (node,) = _problem(live, padded, live.Make(device, torch.float32).tensor(8, length)).nodes
    (read,) = node.reads
    # A run of neighbours is wanted where any of them is.
    share = (length + 15) / (length + 2 * margin - 15)
    assert read.held == pytest.approx(share, abs=0.05)
    held = {each.name: each.held for each in node.computed}
    assert held["abs"] == held["load"] == read.held
    assert held["store"] == held["masked"] == 1.0


def test_masks_inside_of_masks_hold_where_both_do(live: Any, device: str) -> None:
    def placed(x: Any) -> Any:
        wide = torch.nn.functional.pad(x.sin(), (2000, 0))
        return torch.nn.functional.pad(wide.cos(), (0, 1904))

    (node,) = _problem(live, placed, live.Make(device, torch.float32).tensor(1, 96)).nodes
    held = {each.name: each.held for each in node.computed}
    assert held["cos"] == pytest.approx(2096 / 4000, abs=0.05)
    assert held["sin"] == pytest.approx(96 / 4000, abs=0.02)


def test_a_mask_that_was_loaded_may_always_hold(live: Any, device: str) -> None:
    def masked(x: Any, keep: Any) -> Any:
        return torch.ops.aten._unsafe_masked_index(x, keep, [torch.arange(64, device=x.device)], 0)

    make = live.Make(device, torch.float32)
    keep = torch.arange(64, device=device) % 3 == 0
    problem = _problem(live, masked, make.tensor(64), keep)
    assert all(read.held == 1.0 for node in problem.nodes for read in node.reads)
    assert all(each.held == 1.0 for node in problem.nodes for each in node.computed)


def test_dynamic_sizes_are_taken_as_they_came(live: Any, device: str) -> None:
    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x.abs(), (0, x.shape[-1]))

    x = live.Make(device, torch.float32).tensor(8, 640)
    torch._dynamo.mark_dynamic(x, 1)
    (node,) = _problem(live, padded, x).nodes
    assert node.reads[0].held == pytest.approx(0.5, abs=0.05)


def test_what_is_said_does_not_change_what_a_node_is_known_by(live: Any, device: str) -> None:
    def padded(x: Any) -> Any:
        return torch.nn.functional.pad(x.abs(), (10, 1000)).exp()

    x = live.Make(device, torch.float32).tensor(8, 300)
    first, second = (_problem(live, padded, x) for _ in range(2))
    assert [node.computed for node in first.nodes] == [node.computed for node in second.nodes]
    assert [node.signature for node in first.nodes] == [node.signature for node in second.nodes]
