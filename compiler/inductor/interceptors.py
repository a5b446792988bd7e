"""What stands in the place of Inductor's fusion in one compile, and what it keeps of the graph.

A :class:`Surveyor` shows the unfused graph and ends the compile there, an :class:`Applier` fuses by
a plan and keeps the program, :class:`StopAtProgram` ends a compile once another has seen that.
Never starts a compile, nor decides which plan is applied.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch._inductor import graph as inductor_graph
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.hooks import Interceptor
from fusewise.compiler.inductor.inlining import Inlining
from fusewise.compiler.inductor.kernels import check_kernels, check_lowered
from fusewise.compiler.inductor.plans import apply_plan, record_plan
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.state import GraphState
from fusewise.compiler.inductor.thresholds import Figures
from fusewise.schedule.inlining import InliningDecision
from fusewise.schedule.plan import Plan

_Node = inductor_scheduler.BaseSchedulerNode
#: Settings that the compiler of the kernels is called by and that leave no trace in their code,
#: with the value that makes no difference.
_FLAGS = {"cpp.enable_floating_point_contract_flag": "off"}
_COMMENT = re.compile(r"^\s*(#|//).*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """Generated code of one schedule, not yet compiled."""

    source: str
    #: Tensors that the program reaches by name.
    constants: Mapping[str, torch.Tensor]
    #: Inductor settings other than the defaults that it was generated under.
    settings: Mapping[str, Any]

    @property
    def code_hash(self) -> str:
        """Hash of the code without its comments: equal hashes run equal kernels."""
        flags = {name: self.settings.get(name, usual) for name, usual in _FLAGS.items()}
        told = [f"{name}={value}" for name, value in flags.items() if value != _FLAGS[name]]
        code = _COMMENT.sub("", self.source) + "".join(told)
        return hashlib.sha256(code.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class LiveGraph:
    """A lowered graph at the moment of fusion, unfused, with Inductor's own plan for it.

    Only good inside the callback that receives it: afterwards the scheduler moves on.
    """

    scheduler: inductor_scheduler.Scheduler
    nodes: tuple[_Node, ...]
    default_plan: Plan
    #: What was stored and what inlined on the way, in the order of the lowered graph.
    decisions: tuple[InliningDecision, ...]
    #: What Inductor held against its thresholds on the way, where that was noted.
    figures: Figures | None = None


#: Watches Inductor's own fusion of the nodes of a scheduler.
FusionWatch = Callable[
    [inductor_scheduler.Scheduler, Sequence[_Node]], AbstractContextManager[None]
]


class SurveyedError(BaseException):
    """Ends a lowering at the moment of fusion.

    Not an ``Exception``: Inductor wraps those into errors of its own on the way out.
    """


class GeneratedError(BaseException):
    """Ends a lowering once the program is there.

    Not an ``Exception``: Inductor wraps those into errors of its own on the way out.
    """


class Surveyor(Interceptor):
    """Read Inductor's own plan, show the unfused graph to ``visit``, and stop or go on."""

    def __init__(
        self,
        visit: Callable[[LiveGraph], None],
        inlining: Inlining,
        watch: FusionWatch | None = None,
        then: Interceptor | None = None,
    ) -> None:
        """Args:
        visit: is shown the graph.
        inlining: of the lowering.
        watch: Inductor fuses inside of it to find its own plan.
        then: what fuses the same nodes afterwards; None to stop there.
        """
        self._visit = visit
        self._watch = watch
        self._then = then
        #: What was decided in the lowering.
        self.inlining = inlining
        self.visited = False

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: list[_Node],
        stock: Callable[[list[_Node]], list[_Node]],
    ) -> list[_Node]:
        """See :class:`Interceptor`; raises what ``visit`` raises.

        Ends in :class:`SurveyedError` where nothing is to come after it.
        """
        check_lowered()
        decisions = tuple(_in_the_end(self.inlining.decisions))
        unfused = GraphState(scheduler, nodes)
        watch = self._watch or (lambda *_: nullcontext())

        def watched(unfused_nodes: list[_Node]) -> list[_Node]:
            with watch(scheduler, unfused_nodes):
                return stock(unfused_nodes)

        _, default_plan = record_plan(scheduler, nodes, watched)
        unfused.restore()
        self.visited = True
        figures = self.inlining.figures
        self._visit(LiveGraph(scheduler, tuple(nodes), default_plan, decisions, figures))
        if self._then is None:
            raise SurveyedError
        # What was asked of the graph may have changed it.
        unfused.restore()
        return self._then.fuse(scheduler, nodes, stock)

    def module(self, graph: inductor_graph.GraphLowering, source: str) -> None:
        """See :class:`Interceptor`; only comes here where something fuses after the survey."""
        assert self._then is not None, f"a survey of {graph.name} ended in code"
        self._then.module(graph, source)


def _in_the_end(decisions: Iterable[InliningDecision]) -> Iterator[InliningDecision]:
    """What was decided, with values that were stored too late for anyone to read as inlined.

    An input that is overwritten has all its readers stored, also those whose readers all have
    inlined them. The scheduler drops these.
    """
    decisions = tuple(decisions)
    dropped = {d.node for d in decisions if d.buffer in V.graph.removed_buffers}
    for decision in decisions:
        changes: dict[str, Any] = {"outcome": "inline", "buffer": ""}
        yield msgspec.structs.replace(
            decision,
            inlined_into=tuple(node for node in decision.inlined_into if node not in dropped),
            **(changes if decision.node in dropped else {}),
        )


class Applier(Interceptor):
    """Fuse by a given plan and keep the program."""

    def __init__(self, plan: Plan | None, ready: Callable[[], object] | None = None) -> None:
        """Args:
        plan: None for Inductor's own.
        ready: called once the program is there; it is loaded when that returns.
        """
        self._plan = plan
        self._ready = ready
        self.program: Program | None = None

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: list[_Node],
        stock: Callable[[list[_Node]], list[_Node]],
    ) -> list[_Node]:
        """See :class:`Interceptor`."""
        return stock(nodes) if self._plan is None else apply_plan(scheduler, nodes, self._plan)

    def module(self, graph: inductor_graph.GraphLowering, source: str) -> None:
        """See :class:`Interceptor`."""
        check_kernels(graph.scheduler)
        self.program = Program(source, dict(graph.constants), changed_settings())
        if self._ready is not None:
            self._ready()


class StopAtProgram(Interceptor):
    """Ends a lowering once the interceptor inside has seen the program."""

    def __init__(self, inner: Interceptor) -> None:
        self._inner = inner

    def fuse(
        self,
        scheduler: inductor_scheduler.Scheduler,
        nodes: list[_Node],
        stock: Callable[[list[_Node]], list[_Node]],
    ) -> list[_Node]:
        """See :class:`Interceptor`."""
        return self._inner.fuse(scheduler, nodes, stock)

    def module(self, graph: inductor_graph.GraphLowering, source: str) -> None:
        """See :class:`Interceptor`; raises :class:`GeneratedError`."""
        self._inner.module(graph, source)
        raise GeneratedError
