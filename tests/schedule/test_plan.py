"""Plans: canonical form, splitting, checking, and the way through JSON and hashing."""

from __future__ import annotations

import pickle
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewise.schedule.errors import PlanError
from fusewise.schedule.plan import (
    Plan,
    Step,
    build_plan,
    check_plan,
    is_acyclic,
    split_steps,
    unfused,
)
from fusewise.schedule.problem import Buffer, Dependency, Node, Problem, bits
from fusewise.schedule.schedule import Candidate, Choice, Schedule, problem_key

NAMES = [f"n{i}" for i in range(8)]


def fuse(*pairs: str) -> list[Step]:
    return [Step("fuse", f"n{p[0]}", f"n{p[1]}") for p in pairs]


def problem(*edges: str, count: int = 8) -> Problem:
    nodes = tuple(
        Node(
            name=f"n{i}",
            kind="pointwise",
            device="cpu",
            numel=8,
            rnumel=1,
            ranges=((8,), ()),
            reduction_type="",
            reads=(),
            writes=(),
            ops=(),
            origins=(),
            source="",
            order=i,
            compiler_us=0.0,
            flops=0,
            signature="",
        )
        for i in range(count)
    )
    deps = tuple(Dependency(f"n{e[1]}", f"n{e[0]}", f"b{e[0]}") for e in edges)
    buffer = Buffer("b0", 32, "float32", False, False, ("n1",))
    return Problem("key", "forward", nodes, (buffer,), deps, ())


@st.composite
def random_steps(draw: st.DrawFn) -> list[Step]:
    rng = random.Random(draw(st.integers(0, 10**6)))
    group = {n: {n} for n in NAMES}
    steps = []
    for _ in range(rng.randint(0, 9)):
        a, b = rng.sample(NAMES, 2)
        if group[a] is group[b]:
            continue
        if rng.random() < 0.2:
            steps.append(Step("align", a, b))
            continue
        steps.append(Step("fuse", a, b, rng.random() < 0.2))
        group[a] |= group[b]
        for n in group[a]:
            group[n] = group[a]
    return steps


@given(random_steps())
def test_building_a_plan_from_its_own_steps_changes_nothing(steps: list[Step]) -> None:
    plan = build_plan(NAMES, steps)
    assert build_plan(NAMES, plan.steps) == plan
    assert sorted(n for g in plan.groups for n in g) == NAMES
    assert len(plan.steps) == len(steps)
    check_plan(problem(), plan)


def test_equal_ways_of_building_are_equal_plans() -> None:
    plan = build_plan(NAMES, fuse("01", "23", "02", "45"))
    assert build_plan(NAMES, fuse("45", "23", "01", "13")) == plan
    assert build_plan(NAMES, fuse("45", "23", "01", "13")).id == plan.id
    assert build_plan(NAMES, fuse("01", "02", "23", "45")) != plan


def test_an_align_keeps_its_place() -> None:
    align = Step("align", "n4", "n0")
    before = build_plan(NAMES, [align, *fuse("01")])
    after = build_plan(NAMES, [*fuse("01"), align])
    assert before != after
    assert before.groups == after.groups


def test_bad_steps_are_refused() -> None:
    with pytest.raises(PlanError, match="n9"):
        build_plan(NAMES, fuse("09"))
    with pytest.raises(PlanError, match="already together"):
        build_plan(NAMES, fuse("01", "12", "20"))


@given(random_steps(), st.integers(0, 255))
def test_splitting_parts_what_it_should_and_nothing_else(steps: list[Step], mask: int) -> None:
    parts = [
        frozenset(n for i, n in enumerate(NAMES) if mask >> i & 1),
        frozenset(n for i, n in enumerate(NAMES) if not mask >> i & 1),
    ]
    before = build_plan(NAMES, steps)
    after = build_plan(NAMES, split_steps(steps, parts))
    wanted = {frozenset(g) & p for g in before.groups for p in parts} - {frozenset()}
    assert {frozenset(g) for g in after.groups} == wanted
    assert [s for s in after.steps if s.kind == "align"] == [
        s for s in build_plan(NAMES, split_steps(steps, parts)).steps if s.kind == "align"
    ]


def test_check_names_a_group_on_the_cycle() -> None:
    graph = problem("01", "12", "34", "45", "50")
    # Group {n3, n0} is on the cycle; {n6, n7} comes first in size and is not.
    plan = build_plan(NAMES, fuse("67", "03"))
    assert not is_acyclic(graph, plan.groups)
    with pytest.raises(PlanError, match=r"\('n0', 'n3'\)"):
        check_plan(graph, plan)
    # A group that only waits for the cycle is not on it.
    graph = problem("12", "23", "30", "04", "45")
    plan = build_plan(NAMES, fuse("04", "13"))
    with pytest.raises(PlanError, match=r"\('n1', 'n3'\)"):
        check_plan(graph, plan)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((("n0",), ("n0", "n1")), "two groups"),
        ((("x",),), "no node"),
        ((("n0",),), "1 nodes stand in no group"),
        ((("n0", "n1"),), "do not build"),
    ],
)
def test_check_refuses_what_is_no_partition(groups, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_plan(problem("01", count=2), Plan(groups, ()))


def test_all_types_go_through_json_and_hash() -> None:
    plan = build_plan(NAMES, [*fuse("01"), Step("align", "n2", "n3", True)])
    schedule = Schedule(
        lowering=(Choice("threshold", 4), Choice("tiling", True)), plan=plan, codegen=()
    )
    candidate = Candidate(schedule=schedule, origin="beam", groups=7, predicted_us=1.5)
    graph = problem("01", "12")
    for value in (plan, schedule, candidate, graph):
        back = msgspec.json.decode(msgspec.json.encode(value), type=type(value))
        assert back == value
        assert hash(back) == hash(value)
    assert schedule.describe() == "threshold=4, tiling=True, 7 groups"
    assert Schedule().describe() == "as the compiler"
    assert unfused(NAMES).group_of()["n3"] == 3


def test_ancestors_and_bits() -> None:
    assert problem("01", "12", "52").ancestors[2] == 0b100011
    assert bits(0b10110) == [1, 2, 4]


def test_errors_keep_their_parts_across_processes() -> None:
    error = PlanError("it is bad", subject="plan", remedy="mend it")
    assert str(pickle.loads(pickle.dumps(error))) == "plan: it is bad; mend it"


def test_a_problem_is_known_by_its_graph_and_its_lowering() -> None:
    reads, ops = Choice("inline_reads", 16), Choice("inline_ops", 8)
    assert problem_key("g", ()) == "g"
    assert problem_key("g", [reads, ops]) == "g-inline_ops=8-inline_reads=16"
    assert problem_key("g", [reads, ops]) == problem_key("g", (ops, reads))
