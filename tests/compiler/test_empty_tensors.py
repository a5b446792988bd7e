"""Tensors without elements: nothing runs for them, and nothing fails by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.dataset import load
from fusewise.schedule.plan import unfused
from tests.compiler.captured import difference


def looked_up(x: Any, w: Any) -> Any:
    rows = torch.zeros(0, 3, dtype=torch.long, device=x.device)
    return torch.nn.functional.embedding(rows, w) * 2, x.sum(0)


def concatenated(x: Any, w: Any) -> Any:
    return (x[:0] @ w).relu().sum(), torch.cat([x[:0] * 2, x]).softmax(-1)


def reduced(x: Any, w: Any) -> Any:
    nothing = torch.zeros(0, dtype=torch.long, device=x.device)
    added = torch.zeros(5, device=x.device).index_add(0, nothing, x[0, :0] * 2)
    return added + w[0, :5], x[:, :0].sum(1), x[:, :0].exp().sum(1) + w[0], x[:0].exp()


PROGRAMS = [looked_up, concatenated, reduced]


@pytest.mark.parametrize("program", PROGRAMS)
def test_costs_are_told_for_both_kinds_of_device(live: Any, program: Callable[..., Any]) -> None:
    devices = [load(name).devices()[0].profile for name in ("x86", "h200")]
    args = (torch.randn(8, 8), torch.randn(8, 8))
    for graph in live.capture(live.UserProgram(program, args)):
        problem = graph.surveyed.problem
        plan = unfused([node.name for node in problem.nodes])
        for device in msgspec.convert(devices, list[DeviceProfile]):
            cost = PlanCost(problem, device, Roofline(device)).plan(plan)
            assert 0.0 <= cost.low_us <= cost.us <= cost.high_us < 1e3


@pytest.mark.filterwarnings("error::fusewise.compiler.notices.FusewiseWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_what_they_are_in_eager_mode(
    compile_with: Callable[..., Any], program: Callable[..., Any], device: str
) -> None:
    args = (torch.randn(8, 8, device=device), torch.randn(8, 8, device=device))
    found = compile_with(program, "predict")(*args)
    difference(found, program(*args))
