"""Running Inductor on one graph: to the end, or only up to the generated program.

``AOTAutograd`` hands over a graph module, example inputs and keyword arguments; a
:class:`GraphCompile` keeps them so that the graph can be lowered as often as there are candidates.
Post-grad passes rewrite the graph in place, so each run gets a copy.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
import torch.fx
from torch._inductor import compile_fx as inductor_compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError

from fusewise.compiler.inductor.aside import COPY_SETTINGS, can_work_aside, work_aside
from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks, await_blocks
from fusewise.compiler.inductor.cache_keys import cache_key
from fusewise.compiler.inductor.choices import config_patches
from fusewise.compiler.inductor.compiling_ahead import (
    Ahead,
    apart,
    forget_strides,
    tell_strides,
    told_counts,
    told_strides,
)
from fusewise.compiler.inductor.configurations import offer_blocks
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.cpp_kernels import kernel_library
from fusewise.compiler.inductor.cpp_loading import prebuilt
from fusewise.compiler.inductor.fallbacks import meet_fallbacks
from fusewise.compiler.inductor.found_blocks import found_blocks
from fusewise.compiler.inductor.hooks import Interceptor, intercept
from fusewise.compiler.inductor.inlining import Inlining
from fusewise.compiler.inductor.interceptors import (
    Applier,
    FusionWatch,
    GeneratedError,
    LiveGraph,
    Program,
    StopAtProgram,
    SurveyedError,
    Surveyor,
)
from fusewise.compiler.inductor.kernel_nodes import noting_kernels
from fusewise.compiler.inductor.kernels import kernels_by
from fusewise.compiler.inductor.lowerings import Lowered, Standing, can_stand, is_late, standing
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.readied import Readied
from fusewise.compiler.inductor.tuned_ahead import compile_tuned
from fusewise.compiler.inductor.tuning import only_generated, tuned_as_measured, tuned_warm
from fusewise.schedule.errors import FusewiseError
from fusewise.schedule.inlining import verdicts
from fusewise.schedule.kernel_choices import tunings
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Choice, Schedule

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_UNCACHED = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
#: Seconds that block sizes of kernels that were not tuned yet are waited for.
_TUNING_S = 10.0


class _GivenUpError(BaseException):
    """Ends a compile whose outcome nobody wants any more.

    Not an ``Exception``: Inductor wraps those into errors of its own on the way out.
    """


@dataclass
class GraphCompile:
    """One graph that AOTAutograd wants compiled."""

    gm: torch.fx.GraphModule
    example_inputs: Sequence[Any]
    kwargs: dict[str, Any]
    #: Inductor options of the caller; they hold for every candidate.
    inductor_options: Mapping[str, Any] = field(default_factory=dict)
    #: The caller's rules, for what is put together after a plan was applied.
    rules: RuleSet | None = None
    #: Lowerings to build on while a compile of the graph waits; None where none does.
    _waiting: Standing | None = field(default=None, init=False, repr=False, compare=False)

    #: Nodes of the kernels of the last compile that tunes some, by their names.
    _kernels: Mapping[str, frozenset[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Whether a process compiles its first graph or its hundredth makes no difference."""
        meet_fallbacks(self.gm)

    @property
    def kind(self) -> Literal["forward", "backward", "inference"]:
        """Which part of a program it is."""
        if self.kwargs.get("is_backward"):
            return "backward"
        return "inference" if self.kwargs.get("is_inference") else "forward"

    def compile(
        self,
        schedule: Schedule | None,
        interceptor: Interceptor | None,
        blocks: Sequence[Choice] = (),
    ) -> Any:
        """Compile to the end, through Inductor's caches, and return Inductor's output code.

        ``schedule`` None is Inductor as it is: same code, same cache entries. Any other schedule
        enters the cache key, so that two plans of one graph can never share code, and takes its C++
        kernels as they are measured, built together. ``blocks`` are block sizes that its kernels
        were found to be the fastest with.
        """
        forget_strides()
        inlining = _inlining(schedule or Schedule())
        with self._in_force(schedule) as nodes, inlining.active():
            return self._run(_building(schedule, interceptor, nodes, blocks))

    @contextmanager
    def _in_force(self, schedule: Schedule | None) -> Iterator[Mapping[str, frozenset[str]]]:
        """What holds for all of a compile under a schedule.

        Yields:
            The nodes of its kernels by their names, once they are generated.
        """
        tag = "" if schedule is None else f"fusewise-{schedule.id}"
        rules = None if schedule is None else self.rules
        if rules is not None:
            tag += f"-{rules.id}"
        tunes = schedule is not None and bool(tunings(schedule.codegen))
        noting: AbstractContextManager[Mapping[str, frozenset[str]]] = nullcontext({})
        with (
            self.settings(schedule),
            kernels_by(schedule or Schedule(), rules),
            _cache_tag(tag),
            prebuilt("" if schedule is None else kernel_library()),
            noting_kernels() if tunes else noting as nodes,
        ):
            self._kernels = nodes
            yield nodes

    def compile_blocks(self, schedule: Schedule, output: Any) -> None:
        """Have Inductor's pool compile what kernels of a compiled graph may still be tuned to.

        They then only have to be timed where they run first. Nothing is done for kernels that were
        tuned before, where they were measured for one, and nothing without a pool.

        Args:
            schedule: that the graph was compiled under.
            output: Inductor's output code.
        """
        source = getattr(output, "source_code", None) or ""
        with self.settings(schedule), tuned_as_measured():
            ask_for_blocks(source, {})
            offer_blocks(await_blocks(source, _TUNING_S))

    def found_blocks(self, schedule: Schedule, output: Any) -> tuple[Choice, ...]:
        """Block sizes that kernels of the graph that was compiled last have come to by now.

        Args:
            schedule: that it was compiled under.
            output: Inductor's output code.
        """
        source = getattr(output, "source_code", None) or ""
        with self.settings(schedule):
            return found_blocks(source, self._kernels, schedule.codegen)

    def compile_ahead(self, schedule: Schedule, interceptor: Interceptor) -> Ahead:
        """:meth:`compile` while another compile of the graph waits, which may yet go on."""
        with apart():
            output = self.compile(schedule, interceptor)
            return Ahead(schedule, output, told_strides(), told_counts())

    def compile_after(
        self, visit: Callable[[], Schedule | bool], *, measured: bool, cached: bool = True
    ) -> Any | None:
        """Compile as Inductor does, and have ``visit`` look at the graph once it is lowered.

        What is surveyed and generated meanwhile builds on that lowering. ``visit`` is not called
        where the graph comes out of Inductor's cache, or Inductor leaves no room for it. Where the
        compile does not go on, AOTAutograd is told the strides of its outputs as if it had: those
        of a forward graph are the ones that the backward graph is compiled for.

        Args:
            visit: whether the compile is to go on, or under which other schedule it is. It does not
                where that is lowered otherwise, or no code can be generated for it.
            measured: whether kernels are those that were built to be measured.

        Returns:
            The output code; None where the compile did not go on.
        """
        inlining = _inlining(Schedule(), record=True)
        tuned: list[Schedule] = []

        def wait(waiting: Standing) -> None:
            waiting.start_with(inlining)
            self._waiting = waiting
            try:
                wanted = visit()
                if isinstance(wanted, Schedule):
                    nodes = going_on.enter_context(self._in_force(wanted))
                    tuned.append(wanted)
                    wanted = self._goes_on_as(wanted, nodes)
                    key.change(copy_graph(self.gm))
                if not wanted:
                    tell_strides(waiting.graph, self.example_inputs)
                    raise _GivenUpError
            finally:
                self._waiting = None

        forget_strides()
        with (
            self.settings(None),
            nullcontext() if cached else inductor_config.patch(_UNCACHED),
            inlining.active(),
            standing(wait) if can_stand() else nullcontext(),
            prebuilt(kernel_library() if measured else ""),
            tuned_as_measured() if measured else tuned_warm(),
            cache_key() as key,
            suppress(_GivenUpError),
            ExitStack() as going_on,
        ):
            output = self._run(None)
            if tuned:
                self.compile_blocks(tuned[0], output)
            return output
        return None

    def _goes_on_as(self, schedule: Schedule, nodes: Mapping[str, frozenset[str]]) -> bool:
        """Whether the compile that waits can go on under a schedule, whose code it has then."""
        assert self._waiting is not None
        inlining = _inlining(schedule, record=True)
        building = _building(schedule, Applier(schedule.plan), nodes)
        assert building is not None
        try:
            lowered = self._build_waiting(schedule, building, inlining)
        except Exception:
            # Compiling it by itself tells why.
            log.debug("does not go on under %s", schedule.id, exc_info=True)
            return False
        return lowered is not None and self._waiting.go_on_with(lowered)

    def own_program(self) -> Program:
        """Inductor's own program; where a compile waits, the one that it goes on with."""
        if self._waiting is None:
            return self.generate(Schedule())
        source = self._waiting.own_source()
        return Program(source, dict(self._waiting.graph.constants), changed_settings())

    def _run(self, interceptor: Interceptor | None) -> Any:
        with nullcontext() if interceptor is None else intercept(interceptor):
            return inductor_compile_fx.compile_fx_inner(
                copy_graph(self.gm), self.example_inputs, **self.kwargs
            )

    def survey(
        self,
        choices: Iterable[Choice],
        visit: Callable[[LiveGraph], None],
        watch: FusionWatch | None = None,
        then: Applier | None = None,
    ) -> None:
        """Lower the graph under ``choices`` and show it to ``visit`` before anything is fused.

        What Inductor fuses to find its own plan goes on inside of ``watch``. Code is generated only
        for ``then``, which gets the same nodes after ``visit`` and keeps the program.
        Raises what ``visit`` raises, and Inductor's own errors.
        """
        schedule = Schedule(lowering=tuple(choices))
        inlining = _inlining(schedule, record=True)
        surveyor = Surveyor(visit, inlining, watch, then)
        with suppress(SurveyedError, GeneratedError):
            if self._build_waiting(schedule, surveyor, inlining) is None:
                self._lower(schedule, StopAtProgram(surveyor), inlining)
        if not surveyor.visited:
            raise RuntimeError("Inductor ended without scheduling the graph")

    def generate(self, schedule: Schedule) -> Program:
        """Lower and generate the program of a schedule without compiling it.

        Raises:
            PlanError: the plan, or a choice about a node, is illegal for this graph.
        """
        return self.generate_by(schedule, Applier(schedule.plan))

    def generate_by(self, schedule: Schedule, applier: Applier) -> Program:
        """:meth:`generate` with an applier of the schedule's plan that does more besides.

        Raises:
            PlanError: the plan, or a choice about a node, is illegal for this graph.
        """
        if self._build_waiting(schedule, applier, _inlining(schedule, record=True)) is None:
            self.generate_through(schedule, StopAtProgram(applier))
        if applier.program is None:
            raise RuntimeError("Inductor ended without generating a program")
        return applier.program

    def generate_all(self, schedules: Sequence[Schedule]) -> list[Program | Exception]:
        """The program of each schedule, or why there is none; in copies of this process if it can.

        An error is what :meth:`generate` raises.
        """
        jobs = [functools.partial(self._generate_aside, schedule) for schedule in schedules]
        programs: list[Program | Exception] = []
        for schedule, found in zip(schedules, self.aside(jobs), strict=True):
            if found is not None:
                programs.append(found if isinstance(found, Exception) else self._taken(*found))
                continue
            try:
                programs.append(self.generate(schedule))
            except Exception as error:  # noqa: BLE001 - code generation may assert on unusual plans
                programs.append(error)
        return programs

    def aside(
        self, jobs: Sequence[Callable[[], _T]], timeout_s: float | None = None
    ) -> list[_T | Exception | None]:
        """Do jobs on the graph of a compile that waits in copies of this process.

        None for each that could not be done there: see :func:`work_aside`. Code for the CPU is made
        for so many threads as a process has, which a copy does not have.
        """
        return work_aside(jobs, timeout_s) if self.copies_help else [None] * len(jobs)

    @property
    def copies_help(self) -> bool:
        """Whether several things at a time can be done on the graph in copies of this process."""
        waiting = self._waiting
        if waiting is None or "cpu" in waiting.graph.device_types:
            return False
        return can_work_aside()

    def _generate_aside(
        self, schedule: Schedule
    ) -> tuple[str, dict[str, str], dict[str, Any]] | None:
        """A program as it can be sent: constants by the names that they have in the own graph."""
        program = self.generate(schedule)
        assert self._waiting is not None
        own = {id(value): name for name, value in self._waiting.graph.constants.items()}
        if not all(id(value) in own for value in program.constants.values()):
            return None
        names = {name: own[id(value)] for name, value in program.constants.items()}
        return program.source, names, dict(program.settings)

    def _taken(self, source: str, names: dict[str, str], settings: dict[str, Any]) -> Program:
        assert self._waiting is not None
        constants = self._waiting.graph.constants
        of_copies = {name: value for name, value in settings.items() if name in COPY_SETTINGS}
        mine = {name: v for name, v in changed_settings().items() if name in of_copies}
        kept = {name: v for name, v in settings.items() if name not in of_copies}
        return Program(
            source, {name: constants[own] for name, own in names.items()}, {**kept, **mine}
        )

    def generate_through(self, schedule: Schedule, stop: StopAtProgram) -> None:
        """Lower under a schedule's choices until ``stop`` has seen the program."""
        with suppress(GeneratedError):
            self._lower(schedule, stop, _inlining(schedule))

    def _build_waiting(
        self, schedule: Schedule, interceptor: Interceptor, inlining: Inlining
    ) -> Lowered | None:
        """The lowering that code was generated from; None where no compile of the graph waits."""
        waiting = self._waiting
        patches = config_patches((*schedule.lowering, *schedule.codegen))
        if waiting is None or not is_late(patches):
            return None
        try:
            with self.settings(schedule), kernels_by(schedule, self.rules), only_generated():
                lowered, decided = waiting.lowered(patches, schedule, inlining)
                if isinstance(interceptor, Surveyor):
                    interceptor.inlining = decided
                with intercept(interceptor):
                    interceptor.module(lowered.graph, lowered.generate())
        except FusewiseError:
            raise
        except Exception as error:
            # As Inductor does with what goes wrong in a whole compile.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return lowered

    def _lower(self, schedule: Schedule, interceptor: Interceptor, inlining: Inlining) -> None:
        with (
            self.settings(schedule),
            inductor_config.patch(_UNCACHED),
            inlining.active(),
            kernels_by(schedule, self.rules),
            only_generated(),
            intercept(interceptor),
        ):
            try:
                inductor_compile_fx.compile_fx_inner(
                    copy_graph(self.gm), self.example_inputs, **self.kwargs
                )
            except InductorError as error:
                # Inductor wraps what passes through it; a plan's refusal is to be seen as such.
                if isinstance(error.inner_exception, FusewiseError):
                    raise error.inner_exception from error
                raise

    @contextmanager
    def settings(self, schedule: Schedule | None) -> Iterator[None]:
        """Inductor's settings for a schedule; None for those of the caller alone."""
        patches = dict(self.inductor_options)
        if schedule is not None:
            patches |= config_patches((*schedule.lowering, *schedule.codegen))
        with inductor_config.patch(patches):
            yield


def compile_whole(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: Callable[..., Any],
    inductor_options: Mapping[str, Any],
) -> Any:
    """Inductor on a whole program, ``compile_graph`` in the place of its compile of one graph.

    It is called for forward, backward and inference graphs, the backward one possibly only when
    the program runs backward for the first time.
    """
    return inductor_compile_fx.compile_fx(
        gm,
        example_inputs,
        inner_compile=compile_graph,
        config_patches=dict(inductor_options),
    )


def _building(
    schedule: Schedule | None,
    interceptor: Interceptor | None,
    nodes: Mapping[str, frozenset[str]],
    blocks: Sequence[Choice] = (),
) -> Interceptor | None:
    """``interceptor``, and kernels of the program built together before they are loaded.

    Those that do not compile here are left to Inductor.
    """
    if schedule is None:
        return interceptor
    if tunings(schedule.codegen):
        interceptor = Readied(interceptor, lambda source: compile_tuned(source, nodes, blocks))
    if not kernel_library():
        return interceptor
    return Readied(interceptor, lambda source: build_library([(source, changed_settings())]))


def _inlining(schedule: Schedule, *, record: bool = False) -> Inlining:
    return Inlining(verdicts(schedule.lowering), record=record)


@contextmanager
def _cache_tag(tag: str) -> Iterator[None]:
    if not tag:
        with tuned_warm():
            yield
        return
    compiler_config: Any = torch.compiler.config
    user_tag = compiler_config.cache_key_tag
    with compiler_config.patch(cache_key_tag=f"{user_tag}{tag}"), tuned_as_measured():
        yield


def copy_graph(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A graph module whose graph, and those of its subgraphs, can be rewritten freely.

    Parameters and constants are shared, not copied.
    """
    result = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph), gm.__class__.__name__)
    result.meta = dict(gm.meta)
    for name, child in gm.named_children():
        if isinstance(child, torch.fx.GraphModule) and hasattr(result, name):
            setattr(result, name, copy_graph(child))
    return result
