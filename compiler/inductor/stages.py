"""The stages of the compiler, each of which can be left out, and the programs without them.

A stage is data; what it means to Inductor is in this one table. Measures nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch._inductor import config as inductor_config
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from fusewise.compiler.inductor.driver import GraphCompile
from fusewise.compiler.inductor.extract import extract_problem
from fusewise.compiler.inductor.interceptors import Applier, Program, StopAtProgram
from fusewise.compiler.inductor.plans import apply_plan, members, node_name, owners
from fusewise.compiler.inductor.settings import known_settings
from fusewise.compiler.inductor.storing import Stored, storing_every_value
from fusewise.schedule.plan import unfused
from fusewise.schedule.problem import Problem
from fusewise.schedule.schedule import Schedule

_Node = inductor_scheduler.BaseSchedulerNode
_Stock = Callable[[list[_Node]], list[_Node]]


@dataclass(frozen=True)
class Stage:
    """Inductor without a part of it."""

    name: str
    meaning: str
    #: Inductor settings, those that this Inductor has.
    settings: Mapping[str, Any] = field(default_factory=dict)
    fusion: Literal["inductor", "none", "no_vertical", "no_horizontal", "one_operator"] = "inductor"
    #: Whether every computed value is stored at lowering.
    stores: bool = False
    #: Whether its settings act before a graph is cut into forward and backward.
    rewrites: bool = True


_NO_COMBO = {"combo_kernels": False}

#: Every stage that Inductor alone decides, itself first.
STAGES: tuple[Stage, ...] = (
    Stage("everything", "Inductor as it is"),
    Stage("no_fusion", "the scheduler fuses nothing", _NO_COMBO, "none"),
    Stage("no_vertical", "no kernel holds a value's producer and its consumer", {}, "no_vertical"),
    Stage(
        "no_horizontal",
        "kernels that do not depend on each other are not joined, whatever they share",
        _NO_COMBO,
        "no_horizontal",
    ),
    Stage("no_inlining", "every computed value is stored at lowering", {}, stores=True),
    Stage(
        "no_inlining_no_fusion",
        "every computed value is stored, and the scheduler fuses nothing",
        _NO_COMBO,
        "none",
        stores=True,
    ),
    Stage(
        "no_template_epilogues",
        "nothing is computed inside a matrix product's template, before it or after",
        {"epilogue_fusion": False, "prologue_fusion": False},
    ),
    Stage(
        "no_rewrites",
        "no pattern is replaced before, in or after autograd",
        {
            "pattern_matcher": False,
            "use_pre_grad_passes": False,
            # Random numbers become Inductor's own among the joint passes, which must stay.
            "joint_graph_constant_folding": False,
            "split_cat_fx_passes": False,
        },
        rewrites=False,
    ),
    Stage(
        "one_kernel_per_operation",
        "each operator of the captured graph is a kernel (on the CPU also a function) of its own",
        _NO_COMBO,
        "one_operator",
        stores=True,
    ),
)
STAGE: Mapping[str, Stage] = {stage.name: stage for stage in STAGES}


@dataclass(frozen=True)
class Generated:
    """A program with what is known of it before it runs."""

    program: Program
    problem: Problem
    #: Names of the nodes of each group, in fused order.
    groups: tuple[tuple[str, ...], ...]
    #: Generated kernels: launches on a GPU, loop nests on the CPU.
    kernels: int
    #: Calls into libraries.
    externs: int


def settings_of(stage: Stage) -> dict[str, Any]:
    """The stage's settings, as far as this Inductor has them."""
    known = known_settings()
    return {name: value for name, value in stage.settings.items() if name in known}


def generate_stage(graph: GraphCompile, stage: Stage, device_type: str, key: str) -> Generated:
    """Lower a graph without a stage and generate its program; nothing is compiled.

    Args:
        graph: for a stage without rewrites, as it was captured under :func:`settings_of`.
        stage: what to leave out.
        device_type: that the graph computes on.
        key: of the graph, for its problem.

    Raises:
        PlanError: the code generator cannot do it.
    """
    with _without(graph, stage, device_type) as (without, recorder):
        without.generate_through(Schedule(), StopAtProgram(recorder))
    return recorder.generated(key, graph.kind)


def compile_stage(graph: GraphCompile, stage: Stage, device_type: str) -> Any:
    """Compile a graph without a stage to the end, past Inductor's cache; gives its output code."""
    uncached = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    with (
        _without(graph, stage, device_type) as (without, recorder),
        inductor_config.patch(uncached),
    ):
        return without.compile(None, recorder)


def generate_schedule(graph: GraphCompile, schedule: Schedule, key: str) -> Generated:
    """The same for a schedule.

    Raises:
        PlanError: the plan is illegal for this graph.
    """
    recorder = _Recorder(Applier(schedule.plan).fuse)
    graph.generate_through(schedule, StopAtProgram(recorder))
    return recorder.generated(key, graph.kind)


@contextmanager
def _without(
    graph: GraphCompile, stage: Stage, device_type: str
) -> Iterator[tuple[GraphCompile, _Recorder]]:
    options = {**graph.inductor_options, **settings_of(stage)}
    with ExitStack() as stack:
        stored = stack.enter_context(storing_every_value(device_type)) if stage.stores else None
        alone = stage.fusion == "one_operator"
        recorder = _Recorder(_fusion(stage, stored), function_each=alone)
        yield dataclasses.replace(graph, inductor_options=options), recorder


_Fuse = Callable[[inductor_scheduler.Scheduler, list[_Node], _Stock], list[_Node]]


def _fusion(stage: Stage, stored: Stored | None) -> _Fuse:
    if stage.fusion == "one_operator":
        assert stored is not None
        return lambda scheduler, nodes, _: _join_operators(scheduler, nodes, stored)
    if stage.fusion == "none":
        return lambda scheduler, nodes, _: apply_plan(
            scheduler, nodes, unfused([node_name(node) for node in nodes])
        )
    if stage.fusion == "inductor":
        return lambda _, nodes, stock: stock(nodes)
    vertical = stage.fusion == "no_horizontal"
    return lambda scheduler, nodes, stock: _only(scheduler, nodes, stock, vertical=vertical)


def _only(
    scheduler: inductor_scheduler.Scheduler, nodes: list[_Node], stock: _Stock, *, vertical: bool
) -> list[_Node]:
    """Inductor's own fusion of pairs that depend on each other alone, or that do not."""
    original = scheduler.can_fuse

    def can_fuse(node1: _Node, node2: _Node, *args: Any, **kwargs: Any) -> bool:
        depends = bool(
            node1.get_operation_names() & node2.ancestors
            or node2.get_operation_names() & node1.ancestors
        )
        return depends is vertical and bool(original(node1, node2, *args, **kwargs))

    # An attribute of the instance shadows the method, so nested checks come through here as well.
    scheduler.can_fuse = can_fuse  # type: ignore[method-assign]
    try:
        return stock(nodes)
    finally:
        del scheduler.can_fuse


def _join_operators(
    scheduler: inductor_scheduler.Scheduler, nodes: list[_Node], stored: Stored
) -> list[_Node]:
    """Fuse the nodes of each operator (mean and variance of one pass), and nothing else.

    What Inductor does not fuse, such as the two steps of a split reduction, stays two kernels.
    """
    by_operator: dict[str, list[_Node]] = {}
    for node in nodes:
        operators = {stored.operator.get(name, name) for name in node.get_operation_names()}
        if len(operators) == 1:
            by_operator.setdefault(operators.pop(), []).append(node)
    fused: OrderedSet[_Node] = OrderedSet(nodes)
    scheduler.prune_redundant_deps(list(nodes))
    for same in by_operator.values():
        for node in same[1:]:
            first = scheduler.name_to_fused_node[same[0].get_name()]
            if scheduler.can_fuse(first, node) and not scheduler.will_fusion_create_cycle(
                first, node
            ):
                scheduler.fuse_two_nodes(first, node, fused)
    result = sorted(fused, key=lambda node: node.min_order)
    scheduler.prune_redundant_deps(result)
    return list(scheduler.topological_sort_schedule(result))


class _Recorder(Applier):
    """Fuses by a rule and keeps the program, the problem and the groups."""

    def __init__(self, fuse: _Fuse, *, function_each: bool = False) -> None:
        super().__init__(None)
        self._fuse = fuse
        self._function_each = function_each
        self._problem: Problem | None = None
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._launches = 0

    def fuse(
        self, scheduler: inductor_scheduler.Scheduler, nodes: list[_Node], stock: _Stock
    ) -> list[_Node]:
        """See :class:`Interceptor`."""
        self._problem = extract_problem(scheduler, nodes, key="", kind="inference")
        owner = owners(nodes)
        fused = self._fuse(scheduler, nodes, stock)
        self._groups = tuple(members(node, owner) for node in fused)
        self._launches = 0
        if self._function_each:
            for device in {node.get_device() for node in fused}:
                if device is not None and device.type == "cpu":
                    backend: Any = scheduler.get_backend(device)
                    backend.ready_to_flush = lambda: True
        self._count_launches()
        return fused

    def _count_launches(self) -> None:
        wrapper = V.graph.wrapper_code
        call = wrapper.generate_kernel_call

        def generate_kernel_call(*args: Any, **kwargs: Any) -> Any:
            self._launches += 1
            return call(*args, **kwargs)

        wrapper.generate_kernel_call = generate_kernel_call  # type: ignore[method-assign]

    def generated(self, key: str, kind: Literal["forward", "backward", "inference"]) -> Generated:
        """What came out.

        Raises:
            RuntimeError: Inductor ended without generating a program.
        """
        if self.program is None or self._problem is None:
            raise RuntimeError("Inductor ended without generating a program")
        problem = _named(self._problem, key, kind)
        loops, externs, on_cpu = _counted(problem, self._groups)
        return Generated(
            program=self.program,
            problem=problem,
            groups=self._groups,
            # One launch may run several groups on a GPU, and one C++ function several on the CPU,
            # where the loop nest is what the processor runs.
            kernels=loops if on_cpu else self._launches,
            externs=externs,
        )


def _named(
    problem: Problem, key: str, kind: Literal["forward", "backward", "inference"]
) -> Problem:
    return Problem(
        key=key,
        kind=kind,
        nodes=problem.nodes,
        buffers=problem.buffers,
        dependencies=problem.dependencies,
        possible_fusions=problem.possible_fusions,
    )


def _counted(problem: Problem, groups: Sequence[Sequence[str]]) -> tuple[int, int, bool]:
    """Groups that are generated, extern calls, and whether all of it is on the CPU."""
    kinds = {node.name: node.kind for node in problem.nodes}
    generated = sum(any(kinds[name] not in ("extern", "nop") for name in group) for group in groups)
    externs = sum(any(kinds[name] == "extern" for name in group) for group in groups)
    return generated, externs, all(node.device.startswith("cpu") for node in problem.nodes)


def has_templates(problem: Problem) -> bool:
    """Whether a matrix product or attention of the graph is a template, not a library call."""
    return any(node.kind == "template" for node in problem.nodes)
