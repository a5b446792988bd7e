"""The contest: only what is new code takes part, and the rest says why it does not."""

from __future__ import annotations

from typing import Any

import pytest

from fusewise.compiler.contest import (
    draws_random_numbers,
    generate_distinct,
    has_collectives,
    input_names,
    output_names,
)
from fusewise.schedule.plan import Plan, unfused
from fusewise.schedule.schedule import Candidate, Choice, Schedule


def candidate(plan: Plan | None, *lowering: Choice) -> Candidate:
    schedule = Schedule(lowering=lowering, plan=plan)
    return Candidate(schedule=schedule, origin="test", groups=len(plan.groups) if plan else 0)


def test_only_new_code_takes_part(live: Any, device: str) -> None:
    (graph,) = live.captured("layer_norm", device)
    surveyed = graph.surveyed
    alone = unfused([node.name for node in surveyed.problem.nodes])
    foreign = live.captured("adam_step", device)[0].surveyed.default
    given = [
        candidate(surveyed.default),
        candidate(foreign),
        candidate(alone),
        candidate(alone, Choice("inline_reads", 64)),
        candidate(None, Choice("inline_raeds", 64)),
    ]
    with graph.context():
        kept, dropped = generate_distinct(graph.compile, graph.stock, given, 4)
    ((only, program),) = kept
    assert only == given[2] and program.code_hash != graph.stock.code_hash
    assert [c.schedule for c in dropped] == [c.schedule for c in given if c is not given[2]]
    own, misfit, same, unknown = dropped
    assert own.reason == "same code as Inductor's own"
    assert (misfit.status, unknown.status) == ("failed", "failed")
    assert "made for this graph" in misfit.reason
    assert same.reason == f"same code as candidate {given[2].schedule.id}"
    assert "'inline_raeds', nearest is 'inline_reads'" in unknown.reason


def test_no_more_than_wanted_are_generated(live: Any) -> None:
    (graph,) = live.captured("layer_norm")
    alone = unfused([node.name for node in graph.surveyed.problem.nodes])
    with graph.context():
        assert generate_distinct(graph.compile, graph.stock, [candidate(alone)], 0) == ([], [])


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "adam_step"])
def test_names_of_values_are_those_of_the_graph(live: Any, name: str) -> None:
    for graph in live.captured(name):
        gm = graph.compile.gm
        assert len(input_names(gm)) == len(graph.inputs)
        known = {node.name for node in gm.graph.nodes}
        assert set(input_names(gm)) <= known
        assert set(output_names(gm)) - {""} <= known
        assert not has_collectives(gm) and not draws_random_numbers(gm)


def test_code_that_differs_in_comments_is_the_same_code(live: Any) -> None:
    (graph,) = live.captured("layer_norm")
    source = graph.stock.source
    head, rest = source.split("\n", 1)
    noted = type(graph.stock)(f"{head}\n# a note\n  # and another\n{rest}", {}, {})
    other = type(graph.stock)(source.replace("1e-05", "1e-04"), {}, {})
    assert noted.code_hash == graph.stock.code_hash != other.code_hash
