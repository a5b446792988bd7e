"""The launches of a program: each is one group of the plan that it was generated for."""

from __future__ import annotations

from typing import Any

from fusewise.compiler.inductor.launches import generate_with_launches
from fusewise.schedule.plan import unfused
from fusewise.schedule.schedule import Schedule


def test_launches_are_the_groups_of_the_plan(graph: Any) -> None:
    problem = graph.surveyed.problem
    for plan in (graph.surveyed.default, unfused([node.name for node in problem.nodes])):
        with graph.context():
            program, launches = generate_with_launches(graph.compile, Schedule(plan=plan))
        kernels = [launch for launch in launches if launch.kind == "kernel"]
        generated = {
            frozenset(group)
            for group in plan.groups
            if problem.node_by_name[group[0]].kind in ("pointwise", "reduction", "scan", "sort")
        }
        assert {frozenset(launch.nodes) for launch in kernels} == generated
        for launch in kernels:
            assert launch.kernel in program.source
        called = {launch.nodes[0] for launch in launches if launch.kind == "extern"}
        assert called == {node.name for node in problem.nodes if node.kind == "extern"}
