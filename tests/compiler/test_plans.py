"""Plans on real graphs: Inductor's own gives its code, random ones their groups, bad ones fail."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering

from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import Plan, Step, build_plan, check_plan, unfused
from fusewise.schedule.schedule import Schedule
from fusewise.search.random_plan import random_plan
from fusewise.search.tree import trees_of

few = settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    database=None,
    # A captured graph is never changed by a test.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
seeds = st.integers(0, 2**32 - 1)


class _Saved(BaseException):
    """Ends a compile once Inductor has its source."""


def _untouched_source(graph: Any) -> str:
    """What Inductor generates with none of fusewise in the way."""
    saved: list[str] = []

    def save(source: str) -> None:
        saved.append(source)
        raise _Saved

    compiled = graph.compile
    with (
        mock.patch.object(GraphLowering, "save_output_code", save),
        inductor_config.patch(fx_graph_cache=False),
        graph.context(),
        pytest.raises(_Saved),
    ):
        compiled.compile(None, None)
    return saved[0]


def _random(graph: Any, seed: int, count: int = 1) -> list[Plan]:
    generator = random.Random(seed)
    return graph.survey(  # type: ignore[no-any-return]
        lambda _, legality, problem: [
            random_plan(problem, legality, generator) for _ in range(count)
        ]
    ).found


def test_own_plan_gives_the_code_of_stock_inductor(graph: Any) -> None:
    stock = _untouched_source(graph)
    plan = graph.surveyed.default
    check_plan(graph.surveyed.problem, plan)
    program, groups = graph.groups(plan)
    assert program.source == stock
    assert graph.stock.source == stock
    assert groups == {frozenset(group) for group in plan.groups}


@few
@given(seed=seeds)
def test_random_plans_give_their_groups(graph: Any, seed: int) -> None:
    (plan,) = _random(graph, seed)
    problem = graph.surveyed.problem
    check_plan(problem, plan)
    steps = [step for tree in trees_of(problem, plan) for step in tree.steps]
    assert build_plan([node.name for node in problem.nodes], steps) == plan
    _, groups = graph.groups(plan)
    assert groups == {frozenset(group) for group in plan.groups}


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        pytest.param("layer_norm", "inference", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("rms_norm", "backward", torch.float32, marks=pytest.mark.slow),
        pytest.param("attention", "forward", torch.bfloat16, marks=pytest.mark.slow),
        ("cross_entropy", "forward", torch.float32),
        ("adam_step", "inference", torch.bfloat16),
        pytest.param("embedding", "inference", torch.float32, marks=pytest.mark.slow),
        pytest.param("batch_norm", "forward", torch.bfloat16, marks=pytest.mark.slow),
        ("batch_norm", "backward", torch.float32),
        ("mutation", "inference", torch.bfloat16),
        pytest.param("dynamic", "inference", torch.float32, marks=pytest.mark.slow),
    ],
)
def test_random_plan_computes_what_eager_does(
    live: Any, device: str, name: str, kind: str, dtype: torch.dtype
) -> None:
    graph = next(g for g in live.captured(name, device, dtype) if g.kind == kind)
    own = {frozenset(group) for group in graph.surveyed.default.groups}
    plan = next(p for p in _random(graph, 1, 10) if {frozenset(g) for g in p.groups} != own)
    live.difference(graph.run(graph.generate(Schedule(plan=plan))), graph.eager())


def test_random_numbers_do_not_depend_on_the_plan(live: Any, device: str) -> None:
    forward, _ = live.captured("dropout", device)
    names = [node.name for node in forward.surveyed.problem.nodes]
    alone = forward.generate(Schedule(plan=unfused(names)))
    live.difference(*forward.run_each(alone, forward.stock))


def _fused(graph: Any, *pairs: tuple[str, str]) -> Plan:
    names = [node.name for node in graph.surveyed.problem.nodes]
    return build_plan(names, [Step("fuse", first, second) for first, second in pairs])


def _by_kind(graph: Any, kind: str) -> list[str]:
    return [node.name for node in graph.surveyed.problem.nodes if node.kind == kind]


def test_plan_of_another_graph_is_refused(live: Any, device: str) -> None:
    foreign = live.captured("softmax", device)[0].surveyed.default
    graph = live.captured("statistics", device)[0]
    with pytest.raises(PlanError, match=r"'op\d+' is only in one of them") as refused:
        graph.generate(Schedule(plan=foreign))
    assert "made for this graph" in refused.value.remedy


def test_fusing_with_an_extern_kernel_is_refused(live: Any, device: str) -> None:
    graph = live.captured("gated_mlp", device)[0]
    extern, pointwise = _by_kind(graph, "extern")[-1], _by_kind(graph, "pointwise")[-1]
    with pytest.raises(PlanError, match="extern") as refused:
        graph.generate(Schedule(plan=_fused(graph, (pointwise, extern))))
    assert pointwise in refused.value.cause and extern in refused.value.cause


def test_fusing_loops_of_different_sizes_is_refused(live: Any, device: str) -> None:
    def f(x: Any, y: Any) -> Any:
        return x.sin(), y.cos()

    make = live.Make(device, torch.float32)
    program = live.UserProgram(f, (make.tensor(64), make.tensor(100)))
    (graph,) = live.capture(program)
    with pytest.raises(PlanError, match=r"group \('op0', 'op1'\) is illegal.*no shared data"):
        graph.generate(Schedule(plan=_fused(graph, ("op0", "op1"))))


def crossed(left: Any, right: Any, w: Any) -> Any:
    """Two pairs that share an input each and close a cycle only when both are fused."""
    return left.cos() + (right.sin() @ w).cos(), right.cos() + (left.sin() @ w).cos()


def test_plan_that_closes_a_cycle_is_refused(live: Any, device: str) -> None:
    make = live.Make(device, torch.float32)
    tensors = (make.tensor(16, 16), make.tensor(16, 16) + 1, make.tensor(16, 16))
    (graph,) = live.capture(live.UserProgram(crossed, tensors))
    problem = graph.surveyed.problem
    reads = {
        node.name: {access.buffer for access in node.reads}
        for node in problem.nodes
        if node.fusible
    }
    pairs = [
        (a, b)
        for a in reads
        for b in reads
        if a < b and any(buffer.startswith("arg") for buffer in reads[a] & reads[b])
    ]
    assert len(pairs) == 2
    for pair in pairs:
        graph.generate(Schedule(plan=_fused(graph, pair)))
    with pytest.raises(PlanError, match="cycle") as refused:
        graph.generate(Schedule(plan=_fused(graph, *pairs)))
    assert any(str(pair[0]) in refused.value.cause for pair in pairs)


def test_groups_that_their_steps_do_not_build_are_refused(live: Any, device: str) -> None:
    graph = live.captured("softmax", device)[0]
    own = graph.surveyed.default
    names = [node.name for node in graph.surveyed.problem.nodes]
    assert len(own.groups) < len(names)
    with pytest.raises(PlanError, match="did not come out of its steps"):
        graph.generate(Schedule(plan=Plan(own.groups, ())))
