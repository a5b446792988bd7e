"""Whether two programs that do the same are put into the same kernels.

Lowers both and compares what Inductor's own plan makes of them; generates and measures nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func

from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import LiveGraph
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Choice

#: A kernel as others see it: iterations of its largest loop, whether it reduces, and the bytes of
#: each buffer that it reads from outside and of each that it leaves there.
KernelShape = tuple[int, bool, tuple[int, ...], tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Grouped:
    """A program with the plan that Inductor has for it, graph by graph."""

    problems: tuple[Problem, ...]
    plans: tuple[Plan, ...]

    @property
    def kernels(self) -> Counter[KernelShape]:
        """Each kernel with how often it occurs."""
        return Counter(
            kernel_shape(problem, group)
            for problem, plan in zip(self.problems, self.plans, strict=True)
            for group in plan.groups
            if any(problem.node_by_name[name].kind != "nop" for name in group)
        )


def kernel_shape(problem: Problem, group: Sequence[str]) -> KernelShape:
    """What a group is to the memory: what it computes in between does not matter.

    A value that nobody outside needs is neither read nor stored. Stores that add to what is there
    are told from others.
    """
    inside = set(group)
    nodes = [problem.node_by_name[name] for name in group]
    written = {access.buffer for node in nodes for access in node.writes}
    reads: dict[str, int] = {}
    stores: dict[str, tuple[str, int]] = {}
    for node in nodes:
        for access in node.reads:
            if access.buffer not in written:
                reads[access.buffer] = max(reads.get(access.buffer, 0), access.bytes)
        for access in node.writes:
            buffer = problem.buffer_by_name.get(access.buffer)
            if (
                buffer is None
                or buffer.is_output
                or buffer.aliases
                or not inside.issuperset(buffer.users)
            ):
                kind = "atomic" if access.kind == "atomic" else ""
                stores[access.buffer] = (kind, access.bytes)
    return (
        max(node.numel * node.rnumel for node in nodes),
        any(node.rnumel > 1 for node in nodes),
        tuple(sorted(reads.values())),
        tuple(sorted(stores.values())),
    )


def grouped(
    function: Callable[..., Any], args: Sequence[Any], choices: Sequence[Choice] = ()
) -> Grouped:
    """What Inductor's own plan under ``choices`` makes of a function, without gradients.

    The function runs once, operator by operator. Raises what Dynamo and Inductor raise.
    """
    problems: list[Problem] = []
    plans: list[Plan] = []

    def visit(gm: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        graph = GraphCompile(gm, inputs, kwargs)

        def look(live: LiveGraph) -> None:
            problems.append(extract_problem(live.scheduler, live.nodes, key="", kind=graph.kind))
            plans.append(live.default_plan)

        if any(node.op == "call_function" for node in gm.graph.nodes):
            graph.survey(choices, look)
        return make_boxed_func(gm.forward)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        # AOTAutograd's own cache would answer before a graph is seen here.
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_whole(gm, inputs, visit, {})

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(function, backend=backend, fullgraph=True)(*args)
    finally:
        torch._dynamo.reset()
    return Grouped(tuple(problems), tuple(plans))
