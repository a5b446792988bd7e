"""Which kernel launch of a generated program belongs to which group of its plan.

Generates the program of a schedule with one function for each group (on the CPU Inductor puts
several loop nests into one function otherwise) and writes down the launches in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import runs_nothing
from fusewise.compiler.inductor.interceptors import Applier, FusionWatch, LiveGraph, Program
from fusewise.compiler.inductor.plans import members, owners
from fusewise.schedule.plan import Plan
from fusewise.schedule.schedule import Schedule

_Node = inductor_scheduler.BaseSchedulerNode
#: ``graphs``: nothing is called but what the graphs within the graph launch.
LaunchKind = Literal["kernel", "extern", "graphs"]
_RUNNING = (ir.Conditional, ir.WhileLoop, ir.InvokeSubgraph)


@dataclass(frozen=True)
class Launch:
    """One call in a generated program."""

    kind: LaunchKind
    #: Name of the generated kernel; "" for all else.
    kernel: str
    #: The group that it runs, in fused order.
    nodes: tuple[str, ...]


class _LaunchRecorder(Applier):
    """An applier that writes down what its program launches."""

    def __init__(self, plan: Plan | None, *, to_run: bool) -> None:
        super().__init__(plan)
        self._to_run = to_run
        self.launches: list[Launch] = []

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: list[_Node],
        stock: Callable[[list[_Node]], list[_Node]],
    ) -> list[_Node]:
        owner = owners(nodes)
        fused = super().fuse(scheduler, nodes, stock)
        self.launches = follow(scheduler, fused, owner)
        if not self._to_run:
            _write_plainly(scheduler)
        return fused

    def recorded(self) -> tuple[Program, tuple[Launch, ...]]:
        """The program and its launches, once it is generated."""
        if self.program is None:
            raise RuntimeError("Inductor ended without generating a program")
        return self.program, tuple(self.launches)


def follow(
    scheduler: inductor_scheduler.Scheduler, fused: Sequence[_Node], owner: Mapping[str, str]
) -> list[Launch]:
    """Have each group made a function of its own; the launches, once the code is generated.

    Call it where the scheduler fuses.

    Args:
        scheduler: whose code is going to be generated.
        fused: what it fused.
        owner: node of the problem by operation.
    """
    launches: list[Launch] = []
    current: tuple[str, ...] = ()
    enter, extern = scheduler.enter_context, scheduler.codegen_extern_call

    def enter_context(node: _Node) -> None:
        nonlocal current
        current = members(node, owner)
        enter(node)

    def codegen_extern_call(scheduler_node: Any) -> None:
        if not runs_nothing(scheduler_node.node):
            kind: LaunchKind = "graphs" if isinstance(scheduler_node.node, _RUNNING) else "extern"
            launches.append(Launch(kind, "", members(scheduler_node, owner)))
        extern(scheduler_node)

    scheduler.enter_context = enter_context  # type: ignore[method-assign]
    scheduler.codegen_extern_call = codegen_extern_call  # type: ignore[method-assign]
    for device in {node.get_device() for node in fused}:
        if device is not None and device.type == "cpu":
            scheduler.get_backend(device).ready_to_flush = lambda: True  # type: ignore[method-assign]
    wrapper = V.graph.wrapper_code
    call = wrapper.generate_kernel_call

    def generate_kernel_call(kernel_name: str, *args: Any, **kwargs: Any) -> Any:
        launches.append(Launch("kernel", kernel_name, current))
        return call(kernel_name, *args, **kwargs)

    wrapper.generate_kernel_call = generate_kernel_call  # type: ignore[method-assign]
    return launches


def _write_plainly(scheduler: inductor_scheduler.Scheduler) -> None:
    """Have the scheduler's kernels for the CPU written for one element at a time.

    That takes less than half the time. Kernels have the names that they have otherwise.
    """
    codegen = scheduler.codegen

    def plain() -> None:
        with inductor_config.patch({"cpp.simdlen": 1}):
            codegen()

    scheduler.codegen = plain  # type: ignore[method-assign]


def generate_with_launches(
    graph: GraphCompile, schedule: Schedule, *, to_run: bool = True
) -> tuple[Program, tuple[Launch, ...]]:
    """Program of a schedule with its launches in the order in which it makes them.

    Those of graphs within the graph are not among them.

    Args:
        graph: the graph.
        schedule: of it.
        to_run: whether the program is ever run. One that is not is not good for that.

    Raises:
        PlanError: the plan is illegal for this graph.
    """
    recorder = _LaunchRecorder(schedule.plan, to_run=to_run)
    graph.generate_by(schedule, recorder)
    return recorder.recorded()


def survey_with_launches(
    graph: GraphCompile,
    visit: Callable[[LiveGraph], None],
    watch: FusionWatch | None = None,
    *,
    to_run: bool = True,
) -> tuple[Program, tuple[Launch, ...]]:
    """Survey a graph as Inductor lowers it by itself, and generate Inductor's own program of it.

    The nodes that ``visit`` is shown are those that the program is generated from, so it takes
    little more than the one or the other.

    Args:
        graph: the graph.
        visit: is shown it before anything is fused.
        watch: Inductor fuses inside of it to find its own plan.
        to_run: as in :func:`generate_with_launches`.

    Returns:
        As :func:`generate_with_launches`.
    """
    recorder = _LaunchRecorder(None, to_run=to_run)
    graph.survey((), visit, watch, recorder)
    return recorder.recorded()
