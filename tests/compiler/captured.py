"""Graphs of real programs as Inductor gets them, and what tests do with those graphs.

A graph is captured once a session, together with the values that reached it, and can then be
surveyed, generated and run as often as a test wants without compiling the program again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import TracingContext, tracing

from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import GraphCompile, compile_whole
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.hooks import Interceptor
from fusewise.compiler.inductor.interceptors import Applier, LiveGraph, Program, StopAtProgram
from fusewise.compiler.inductor.legality import InductorLegality
from fusewise.compiler.inductor.plans import members, owners
from fusewise.compiler.inductor.program import load_program
from fusewise.schedule.plan import Plan
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule
from tests.compiler.programs import PROGRAMS, Make, UserProgram

#: Relative error (L2) that rounding alone explains, by dtype of an output.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}
BY_NAME = {program.__name__: program for program in PROGRAMS}


@dataclass(frozen=True)
class Surveyed:
    """What a survey of a graph gives."""

    problem: Problem
    default: Plan
    #: What was asked of the live graph beside it.
    found: Any


class Captured:
    """One graph of a program as Inductor gets it, and the inputs that it was called with."""

    def __init__(self, compile: GraphCompile) -> None:
        self.compile = compile
        self.inputs: list[Any] = []
        self._context = TracingContext.try_get()

    @property
    def kind(self) -> str:
        return self.compile.kind

    def context(self) -> AbstractContextManager[Any]:
        """What Inductor expects round the compile of this graph."""
        return tracing(self._context)

    def survey(
        self, ask: Callable[[LiveGraph, InductorLegality, Problem], Any] = lambda *_: None
    ) -> Surveyed:
        """The problem and Inductor's plan, and what ``ask`` makes of the live graph."""
        result: list[Surveyed] = []

        def visit(live: LiveGraph) -> None:
            legality = InductorLegality(live)
            problem = extract_problem(
                live.scheduler,
                live.nodes,
                key="test",
                kind=self.compile.kind,
                possible_fusions=legality.possible_fusions(),
            )
            found = ask(live, legality, problem)
            result.append(Surveyed(problem, live.default_plan, found))

        with self.context():
            self.compile.survey((), visit)
        return result[0]

    @functools.cached_property
    def surveyed(self) -> Surveyed:
        return self.survey()

    @functools.cached_property
    def stock(self) -> Program:
        return self.generate(Schedule())

    def generate(self, schedule: Schedule) -> Program:
        with self.context():
            return self.compile.generate(schedule)

    def generate_through(self, interceptor: Interceptor) -> None:
        with self.context():
            self.compile.generate_through(Schedule(), StopAtProgram(interceptor))

    def groups(self, plan: Plan) -> tuple[Program, set[frozenset[str]]]:
        """Program of a plan, and the groups that the scheduler generated code from."""
        watcher = Watcher(plan)
        self.generate_through(watcher)
        assert watcher.program is not None
        return watcher.program, watcher.groups

    def run(self, program: Program) -> list[Any]:
        """Outputs of a program, then its inputs as it left them."""
        (found,) = self.run_each(program)
        return found

    def run_each(self, *programs: Program) -> list[list[Any]]:
        """What :meth:`run` gives of each of some programs, whose C++ kernels cost one compile."""
        library = build_library([(one.source, one.settings) for one in programs], processes=1)
        calls = [load_program(p.source, p.constants, p.settings, library) for p in programs]
        return [self._called(lambda inputs, c=call: c(list(inputs))) for call in calls]

    def eager(self) -> list[Any]:
        """Outputs of the graph, operator by operator, then its inputs as it left them."""
        return self._called(lambda inputs: self.compile.gm(*inputs))

    def _called(self, call: Callable[[list[Any]], Any]) -> list[Any]:
        inputs = [v.clone() if isinstance(v, torch.Tensor) else v for v in self.inputs]
        torch.manual_seed(0)
        with torch.no_grad():
            return [*call(inputs), *inputs]


class Watcher(Applier):
    """An applier that looks at the scheduler again when the code is complete."""

    groups: set[frozenset[str]]

    def fuse(self, scheduler: Any, nodes: list[Any], stock: Any) -> list[Any]:
        self._owner = owners(nodes)
        return super().fuse(scheduler, nodes, stock)

    def module(self, graph: Any, source: str) -> None:
        super().module(graph, source)
        self.groups = {frozenset(members(node, self._owner)) for node in graph.scheduler.nodes}


def capture(program: UserProgram) -> list[Captured]:
    """The graphs of a program, forward before backward."""
    graphs: list[Captured] = []

    def compile_graph(gm: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        graph = Captured(GraphCompile(gm, inputs, kwargs))
        graphs.append(graph)
        eager = make_boxed_func(gm.forward)

        def call(values: list[Any]) -> Any:
            graph.inputs = [
                v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values
            ]
            return eager(values)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_whole(gm, inputs, compile_graph, {})

    torch._dynamo.reset()
    output = torch.compile(program.function, backend=backend)(*program.args)
    if program.training:
        output.float().sum().backward()
    torch._dynamo.reset()
    return graphs


@functools.cache
def captured(name: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Captured]:
    """The graphs of one of :data:`PROGRAMS`."""
    return capture(BY_NAME[name](Make(device, dtype)))


def difference(values: Sequence[Any], expected: Sequence[Any]) -> None:
    """Fail where values are not equal within the tolerance of their dtype."""
    assert len(values) == len(expected)
    for value, wanted in zip(values, expected, strict=True):
        if not isinstance(wanted, torch.Tensor) or not wanted.dtype.is_floating_point:
            torch.testing.assert_close(value, wanted, rtol=0, atol=0)
            continue
        assert (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        scale = max(float(wanted.double().norm()), 1e-6)
        error = float((value.double() - wanted.double()).norm()) / scale
        assert error <= TOLERANCE[wanted.dtype]
