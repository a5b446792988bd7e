"""Library calls of two lowerings of one graph: what is known of one is known of the other."""

from __future__ import annotations

import pytest

from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.gains import difference, kernels_of
from fusewise.costmodel.plan_cost import PlanCost
from fusewise.costmodel.roofline import Roofline
from fusewise.datasets.samples import ScheduleSample, ScheduleSamples
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Access, Buffer, Node, Problem
from fusewise.schedule.schedule import Choice, Schedule, problem_key
from fusewise.training.calls import calls_known

#: Operators that the call of each lowering is said to come from.
OWN = ("aten.mul.Tensor", "aten.mm.default")
OTHER = ("aten.mm.default",)
CHOICES = (Choice("inline_reads", 2),)
PLAN = unfused(["op0"])


def lowered(graph: str, choices: tuple[Choice, ...], origins: tuple[str, ...]) -> Problem:
    """A call of 2^20 elements, every time the same but for what it is said to come from."""
    read, written = (
        Access(name, "opaque", 1 << 20, 4 << 20, 4, 1, "*") for name in ("arg0", "buf0")
    )
    call = Node(
        name="op0",
        kind="extern",
        device="cpu",
        numel=1 << 20,
        rnumel=1,
        ranges=((1 << 20,), ()),
        reduction_type="",
        reads=(read,),
        writes=(written,),
        ops=(),
        origins=origins,
        source="",
        order=0,
        compiler_us=0.0,
        flops=0,
        signature=f"call of {len(origins)}",
    )
    buffers = (
        Buffer("arg0", 4 << 20, "torch.float32", True, False, ("op0",)),
        Buffer("buf0", 4 << 20, "torch.float32", False, True, ()),
    )
    return Problem(problem_key(graph, choices), "inference", (call,), buffers, (), ())


def call_of(problem: Problem) -> Node:
    return problem.nodes[0]


def measured(problem: Problem, graph: str, choices: tuple[Choice, ...]) -> ScheduleSample:
    return ScheduleSample(
        schedule_id=problem.key,
        graph_key=graph,
        family="",
        split="train",
        device_key="cpu",
        threads=1,
        schedule=Schedule(lowering=choices, plan=PLAN),
        origin="default",
        groups=1,
        predicted_us=None,
        predicted_low_us=None,
        predicted_high_us=None,
        median_us=10.0,
        spread=None,
        low_us=None,
        high_us=None,
        error=None,
    )


@pytest.mark.parametrize(
    ("origins", "graph", "known"),
    [
        (OTHER, "graph", True),
        (("aten.bmm.default",), "graph", False),
        # Of another graph it may lie otherwise in memory.
        (OTHER, "another", False),
    ],
)
def test_a_call_goes_by_its_operator_and_sizes(
    origins: tuple[str, ...], graph: str, known: bool
) -> None:
    own, other = lowered("graph", (), OWN), lowered(graph, CHOICES, origins)
    problems = {problem.key: problem for problem in (own, other)}
    schedules = measured(own, "graph", ()), measured(other, graph, CHOICES)
    samples = ScheduleSamples(schedules, problems)
    times = calls_known({call_of(own).signature: 61.0}, samples)
    assert times[call_of(own).signature] == 61.0
    assert times.get(call_of(other).signature) == (61.0 if known else None)


def test_no_gain_comes_of_a_call_that_was_not_timed(profile: DeviceProfile) -> None:
    own, other = lowered("graph", (), OWN), lowered("graph", CHOICES, OTHER)
    times = {call_of(own).signature: 1e6}
    kernels = [
        kernels_of(
            problem,
            PlanCost(problem, profile, Roofline(profile), times).breakdown(PLAN),
        )
        for problem in (own, other)
    ]
    assert difference(*kernels).saved_us == 0.0
    # One that is done once more is one more.
    twice = kernels[0] + kernels[0]
    assert difference(twice, kernels[1]).saved_us == pytest.approx(1e6)
