"""What a plan takes beyond its kernels: what is counted, and where it goes."""

from __future__ import annotations

import msgspec
import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.overheads import NONE, Amounts, Leaving, Overheads
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.schedule.plan import Step, build_plan, unfused
from fusewise.schedule.problem import Problem

KNOWN = Overheads(
    graph_us=2.0, call_us=0.5, buffer_us=0.25, stored_us_mb=10.0, generated=0.125, library=0.5
)


def names(problem: Problem) -> list[str]:
    return [node.name for node in problem.nodes]


def test_what_a_group_keeps_to_itself_is_not_left(softmax: Problem) -> None:
    leaving = Leaving(softmax)
    every = leaving.of(names(softmax))
    outputs = sum(b.is_output for b in softmax.buffers)
    assert every == Amounts(buffers=outputs)
    apart = [leaving.of([name]) for name in names(softmax)]
    made = [b for b in softmax.buffers if not b.is_input]
    assert sum(one.buffers for one in apart) == len(made)
    between = sum(b.bytes for b in made if not b.is_output)
    assert sum(one.stored_mb for one in apart) == pytest.approx(between / 1e6)


def test_memory_of_others_is_not_handed_out(softmax: Problem) -> None:
    last = softmax.buffers[-1]
    mutated = msgspec.structs.replace(last, aliases=(softmax.buffers[0].name,))
    problem = msgspec.structs.replace(softmax, buffers=(*softmax.buffers[:-1], mutated))
    assert Leaving(problem).of(names(problem)).buffers == Leaving(softmax).of(
        names(softmax)
    ).buffers - float(last.is_output)


def test_a_plan_takes_its_kernels_and_what_is_around_them(
    profile: DeviceProfile, softmax: Problem
) -> None:
    model = Roofline(profile)
    bare, cost = (PlanCost(softmax, profile, model, None, known) for known in (NONE, KNOWN))
    for plan in (
        unfused(names(softmax)),
        build_plan(names(softmax), [Step("fuse", "op0", "op1")]),
    ):
        alone, found = bare.plan(plan), cost.plan(plan)
        amounts = bare.amounts(plan)
        assert amounts.calls == len(plan.groups) and amounts.graphs == 1.0
        assert amounts.generated_us == pytest.approx(alone.us) and amounts.library_us == 0.0
        more = KNOWN.around_us(amounts)
        assert cost.amounts(plan) == pytest.approx(amounts)
        assert found.us == pytest.approx(alone.us + more)
        assert found.low_us == pytest.approx(alone.low_us + more)
        assert found.high_us == pytest.approx(alone.high_us + more)
        groups = cost.breakdown(plan)
        assert sum(group.us for group in groups) + KNOWN.graph_us == pytest.approx(found.us)
        rows, rest = cost.parts(plan)
        assert rest + model.predict(rows).us.sum() == pytest.approx(found.us)


def test_a_library_call_is_slower_by_its_own_part(profile: DeviceProfile, softmax: Problem) -> None:
    first = msgspec.structs.replace(softmax.nodes[0], kind="extern", signature="mm")
    problem = msgspec.structs.replace(softmax, nodes=(first, *softmax.nodes[1:]))
    (left,) = [Leaving(problem).of(["op0"])]
    (group,) = PlanCost(problem, profile, Roofline(profile), {"mm": 40.0}, KNOWN).groups([("op0",)])
    assert group.around_us == pytest.approx(0.5 + 20.0 + 0.25 * left.buffers + 10 * left.stored_mb)
    assert (group.us, group.source) == (pytest.approx(40.0 + group.around_us), "measured")


def test_what_runs_nothing_takes_nothing(profile: DeviceProfile, softmax: Problem) -> None:
    idle = msgspec.structs.replace(softmax.nodes[0], kind="nop")
    problem = msgspec.structs.replace(softmax, nodes=(idle, *softmax.nodes[1:]))
    cost = PlanCost(problem, profile, Roofline(profile), None, KNOWN)
    assert cost.groups([("op0",)])[0].us == 0.0
    assert cost.amounts(unfused(names(problem))).calls == len(problem.nodes) - 1
