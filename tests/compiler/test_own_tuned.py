"""Inductor's own program with kernels tuned, from its text, is what Inductor would write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.inductor.kernel_nodes import Launch, noting_launches
from fusewise.compiler.inductor.own_tuned import tuned_program
from fusewise.schedule.kernel_choices import blocks_choice
from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Schedule

TWICE = (
    Launch("triton_a", frozenset({"op0", "op1"})),
    Launch("triton_b", frozenset({"op2"})),
    Launch("triton_a", frozenset({"op3"})),
)


@pytest.mark.parametrize("nodes", [["op0"], ["op0", "op2"], ["op3"], ["op2", "op9"]], ids=" ".join)
def test_what_would_change_more_than_notes_is_left_to_inductor(nodes: list[str]) -> None:
    """One of two launches of a code, and a node without a kernel."""
    assert tuned_program("call = None\n", TWICE, nodes) is None


def alike(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Two launches of one code, and another one."""
    return x.softmax(-1), y.softmax(-1), (x.t() @ y).relu().sum()


def _subsets(launches: Sequence[Launch]) -> Iterator[set[str]]:
    """A node of each launch; of the launches of one kernel each; of every other kernel."""
    every = {launch.kernel: set[str]() for launch in launches}
    for launch in launches:
        every[launch.kernel].add(min(launch.nodes))
    yield set().union(*every.values())
    yield from every.values()
    yield set().union(*list(every.values())[::2])


def _schedule(plan: Plan, nodes: set[str]) -> Schedule:
    return Schedule(plan=plan, codegen=tuple(blocks_choice(n, "descent") for n in sorted(nodes)))


def _both(graph: Any) -> list[tuple[str, str]]:
    """Programs of tuned kernels while a compile waits: from its text, and generated."""
    compiled, plan = graph.compile, graph.surveyed.default
    found: list[tuple[str, str]] = []

    def visit() -> bool:
        with noting_launches() as launches:
            own = compiled.own_program()
        compiled.own_plan = plan
        for nodes in _subsets([launch for launch in launches if launch.nodes]):
            schedule = _schedule(plan, nodes)
            made = tuned_program(own.source, launches, nodes)
            assert made is not None and made != own.source
            given = compiled.generate(schedule)
            assert given.source == made
            generated = compiled.generate_by(schedule, Applier(plan))
            assert given.constants.keys() == generated.constants.keys()
            assert given.settings == generated.settings
            found.append((made, generated.source))
        return True

    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        assert compiled.compile_after(visit, measured=False) is not None
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "name", ["attention", "gated_mlp", "cross_entropy", "adam_step", "batch_norm", "dropout"]
)
def test_it_is_what_inductor_would_write(live: Any, name: str, dtype: torch.dtype) -> None:
    for graph in live.captured(name, "cuda", dtype):
        programs = _both(graph)
        assert programs
        for made, generated in programs:
            assert made == generated


@pytest.mark.gpu
def test_launches_of_one_code_are_tuned_together(live: Any) -> None:
    x, y = (torch.randn(4096, 1000, device="cuda") for _ in range(2))
    (graph,) = live.capture(live.UserProgram(alike, (x, y)))
    for made, generated in _both(graph):
        assert made == generated


@pytest.mark.gpu
def test_a_compile_goes_on_with_it(live: Any, store: Path) -> None:
    x, y = (torch.randn(4096, 1000, device="cuda") for _ in range(2))
    (graph,) = live.capture(live.UserProgram(alike, (x, y)))
    compiled, plan = graph.compile, graph.surveyed.default
    schedule = _schedule(plan, {group[0] for group in plan.groups[:1]})

    def visit() -> Schedule:
        compiled.own_program()
        compiled.own_plan = plan
        return schedule

    with graph.context(), inductor_config.patch(fx_graph_cache=False):
        output = compiled.compile_after(visit, measured=False)
        assert output is not None
        assert output.source_code == compiled.generate(schedule).source
    live.difference([*output([x.clone(), y.clone()])], list(alike(x, y)))
