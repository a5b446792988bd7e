"""Lowered graphs that stand still, to be scheduled and generated again and again.

A compile lowers its graph and goes on to the scheduler at once. Here it is stopped in between, and
what was lowered is put back after every scheduling, so that any number of schedules is built from
one lowering; a lowering under other choices starts from the graph as Inductor's passes left it.
Decides nothing, and does nothing outside of :func:`standing`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch.fx
from torch._inductor import config as inductor_config
from torch._inductor import graph as inductor_graph
from torch._inductor import ir
from torch._inductor import scheduler as inductor_scheduler
from torch._inductor.virtualized import V

from fusewise.compiler.inductor.aside import few_garbage
from fusewise.compiler.inductor.choices import config_patches
from fusewise.compiler.inductor.compiling_ahead import output_strides
from fusewise.compiler.inductor.deviceless import noting_convolutions
from fusewise.compiler.inductor.hooks import is_subgraph
from fusewise.compiler.inductor.inlining import Inlining
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.compiler.inductor.state import copy_container, forget_tilings
from fusewise.schedule.schedule import NODE, Schedule

log = logging.getLogger(__name__)

_Graph = inductor_graph.GraphLowering
_Built = (ir.IRNode, ir.OutputSpec)
_HOLDERS = (list, tuple, set, frozenset)
#: Settings that Inductor first reads while it lowers a graph, and those that it reads later still.
#: Any other may have its effect before, on what a lowering starts from.
_IN_LOWERING = frozenset(
    {
        "realize_reads_threshold",
        "realize_opcount_threshold",
        "realize_cpu_opcount_threshold",
        "realize_acc_reads_threshold",
        "realize_cpu_acc_reads_threshold",
        "cpp.use_two_step_variance_threshold",
        "split_reductions",
        "force_pointwise_cat",
    }
)
_AFTER_LOWERING = frozenset(
    {
        "loop_ordering_after_fusion",
        "triton.tiling_prevents_pointwise_fusion",
        "triton.tiling_prevents_reduction_fusion",
        "combo_kernels",
        "benchmark_combo_kernel",
        "combo_kernels_pointwise_only",
        "combo_kernel_peak_memory_increase_gb",
        "combo_kernel_peak_memory_pct_threshold",
        "combo_kernel_max_distance",
        "cpp.min_chunk_size",
        "cpp.simdlen",
        "cpp.enable_floating_point_contract_flag",
    }
)
#: Where a graph lowered in :func:`standing` keeps what it was made from.
_ARGUMENTS = "_fusewise_arguments"


class Lowered:
    """One graph after its lowering, before its scheduler is made."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph
        # Scheduling fixes layouts, removes buffers and numbers what it makes.
        owners = [graph, graph.sizevars, *_built(graph)]
        self._graphs = [owner for owner in owners if isinstance(owner, _Graph)]
        #: Whether what it returns has the strides that the compile that waits has told by then.
        self.strides_as_told = True
        #: What was generated from it last.
        self.code: Any = None
        self._saved = [(owner, _attributes(owner)) for owner in owners]

    def restore(self) -> None:
        """Put everything back as it was after the lowering."""
        for owner, attributes in self._saved:
            owner.__dict__.clear()
            owner.__dict__.update({k: copy_container(v) for k, v in attributes.items()})
        forget_tilings()

    def generate(self) -> str:
        """Schedule the graph and generate its program, under whatever is in force."""
        self.restore()
        # The one thing that counts on and is no attribute to be put back.
        for graph in self._graphs:
            graph.workspace_id = itertools.count()
        with V.set_graph_handler(self.graph), V.set_extern_kernel_nodes([]):
            self.code = self.graph.codegen()
        return str(self.code[0].value)


def _attributes(owner: Any) -> dict[str, Any]:
    return {name: copy_container(value) for name, value in owner.__dict__.items()}


def _built(graph: _Graph) -> list[Any]:
    """All that the graph's operations and buffers are made of, each once; graphs within it, too."""
    found: dict[int, Any] = {}
    left = _roots(graph)
    while left:
        value = left.pop()
        if isinstance(value, _HOLDERS):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.values())
        elif id(value) in found:
            continue
        elif isinstance(value, _Graph):
            found[id(value)] = value
            found[id(value.sizevars)] = value.sizevars
            left.extend(_roots(value))
        elif isinstance(value, _Built) and hasattr(value, "__dict__"):
            found[id(value)] = value
            left.extend(value.__dict__.values())
    return list(found.values())


def _roots(graph: _Graph) -> list[Any]:
    return [
        *graph.operations,
        *graph.buffers,
        *graph.graph_inputs.values(),
        *(graph.graph_outputs or ()),
    ]


class Standing:
    """A compile that waits between lowering and scheduling, with lowerings of the same graph."""

    def __init__(self, graph: _Graph, codegen: Callable[[_Graph], Any]) -> None:
        self._codegen = codegen
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] = getattr(graph, _ARGUMENTS)
        self._inputs: tuple[Any, ...] = tuple(graph.example_inputs or ())
        self._own = Lowered(graph)
        self._strides = output_strides(graph)
        self._lowered: dict[object, tuple[Lowered, Inlining]] = {}
        #: What the compile has generated, and the graph as it was then.
        self._generated: tuple[Any, Lowered] | None = None

    @property
    def graph(self) -> _Graph:
        """The graph of the compile that waits."""
        return self._own.graph

    def count_operations(self) -> None:
        """Have the operations of library calls counted once, before this process is copied.

        For a convolution Inductor asks the device what computes it.
        """
        scheduler: Any = inductor_scheduler
        for node in self.graph.graph.nodes:
            try:
                scheduler.count_flops_fx(node)
            except Exception:
                # Wherever Inductor counts them itself it tells.
                log.debug("operations of %s are not counted", node, exc_info=True)

    def go_on(self) -> Any:
        """Have the compile go on; gives its code, its own where nothing else was wanted."""
        if self._generated is not None:
            code, generated = self._generated
            generated.restore()
            return code
        self._own.restore()
        return self._codegen(self.graph)

    def own_source(self) -> str:
        """The program of the compile that waits, which goes on with it.

        To be asked for with nothing else in force than in that compile.
        """
        if self._generated is None:
            self._own.restore()
            code = self._codegen(self.graph)
            self._generated = code, Lowered(self.graph)
        return str(self._generated[0][0].value)

    def go_on_with(self, lowered: Lowered) -> bool:
        """Have the compile go on with what was generated last from a lowering of the graph.

        Returns:
            Whether it will: not with a lowering of other strides than it has told by then.
        """
        if lowered.code is None or not lowered.strides_as_told:
            return False
        if lowered is not self._own:
            # What the compile still asks its graph for is then told of the other lowering.
            self.graph.__dict__.clear()
            self.graph.__dict__.update(lowered.graph.__dict__)
        self._generated = lowered.code, Lowered(self.graph)
        return True

    def start_with(self, inlining: Inlining) -> None:
        """Say what was decided in the lowering of the compile that waits."""
        self._lowered[_key({}, Schedule())] = self._own, inlining

    def lowered(
        self, patches: Mapping[str, Any], schedule: Schedule, inlining: Inlining
    ) -> tuple[Lowered, Inlining]:
        """The graph lowered as a schedule wants it, and what was decided in that lowering.

        The same is lowered once, unless there is more to a lowering than settings and verdicts.
        Raises what Inductor raises.

        Args:
            patches: settings of the schedule, which are in force; those that only matter later make
                no difference.
            schedule: whose choices are in force.
            inlining: of the schedule.
        """
        key = _key(patches, schedule)
        found = None if key is None else self._lowered.get(key)
        if found is None:
            with inlining.active():
                found = self._lower(), inlining
            if key is not None:
                self._lowered[key] = found
        return found

    def _lower(self) -> Lowered:
        args, kwargs = self._arguments
        with holding(_visit, None):
            graph = _Graph(*args, **kwargs)
            with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
                graph.run(*self._inputs)
                lowered = Lowered(graph)
                lowered.strides_as_told = output_strides(graph) == self._strides
        return lowered


_visit: ContextVar[Callable[[Standing], None] | None] = ContextVar(
    "fusewise_standing", default=None
)


@contextmanager
def standing(visit: Callable[[Standing], None]) -> Iterator[None]:
    """Show the graph that is compiled in this context to ``visit`` once it is lowered.

    The compile then goes on as if nothing had been. Graphs within the graph are not shown.
    """
    _install()
    with noting_convolutions(), holding(_visit, visit):
        yield


def _key(patches: Mapping[str, Any], schedule: Schedule) -> object | None:
    """What lowerings that are the same have in common; None where that is not known."""
    parts = [choice for choice in schedule.lowering if choice.of_part]
    whole = [choice for choice in schedule.lowering if not choice.of_part]
    if not all(choice.name.startswith(NODE) for choice in parts):
        return None
    # What is no setting is told by the choice itself.
    parts += [choice for choice in whole if not config_patches((choice,))]
    settings = {name: value for name, value in patches.items() if name in _IN_LOWERING}
    return tuple(sorted(settings.items())), tuple(sorted(parts))


def is_late(patches: Mapping[str, Any]) -> bool:
    """Whether nothing that happens before a graph is lowered depends on these settings."""
    return patches.keys() <= _IN_LOWERING | _AFTER_LOWERING


def can_stand() -> bool:
    """Whether code under the settings in force is all there is to a program.

    Where Inductor tunes as it compiles it puts more into the program, and runs what is unfinished.
    """
    triton: Any = inductor_config.triton
    return not triton.autotune_at_compile_time


@once
def _install() -> None:
    initialise, codegen = _Graph.__init__, _Graph.codegen

    @functools.wraps(initialise)
    def initialised(self: _Graph, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        if _visit.get() is not None and not _is_inner(self):
            setattr(self, _ARGUMENTS, (args, kwargs))

    @functools.wraps(codegen)
    def shown(self: _Graph) -> Any:
        visit = _visit.get()
        if visit is None or not hasattr(self, _ARGUMENTS):
            return codegen(self)
        with holding(_visit, None):
            waiting = Standing(self, codegen)
            with few_garbage():
                visit(waiting)
            return waiting.go_on()

    _remember_flops()
    _Graph.__init__ = initialised  # type: ignore[method-assign]
    _Graph.codegen = shown  # type: ignore[method-assign]


def _remember_flops() -> None:
    """Have the operations of a node counted once: Inductor runs it on fake tensors for that."""
    scheduler: Any = inductor_scheduler
    count = scheduler.count_flops_fx
    counted: weakref.WeakKeyDictionary[torch.fx.Node, int | None] = weakref.WeakKeyDictionary()

    @functools.wraps(count)
    def count_once(node: torch.fx.Node) -> int | None:
        if node not in counted:
            counted[node] = count(node)
        return counted[node]

    scheduler.count_flops_fx = count_once


def _is_inner(graph: _Graph) -> bool:
    return is_subgraph(graph) or bool(graph.is_const_graph) or bool(graph.cpp_wrapper)
