"""Running Inductor on one graph up to its generated program, once or again and again.

``AOTAutograd`` hands over a graph module, example inputs and keyword arguments; they are kept here,
so that the graph can be lowered as often as there are candidates. Post-grad passes rewrite the
graph in place, so each run gets a copy. Compiles nothing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch.fx
from torch._inductor import compile_fx as inductor_compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError

from fusewise.compiler.inductor.aside import (
    COPY_SETTINGS,
    Copies,
    can_work_aside,
    has_cores,
)
from fusewise.compiler.inductor.choices import config_patches
from fusewise.compiler.inductor.fallbacks import meet_fallbacks
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
from fusewise.compiler.inductor.kernels import kernels_by
from fusewise.compiler.inductor.lowerings import Lowered, Standing, is_late
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.tuning import only_generated
from fusewise.schedule.errors import FusewiseError
from fusewise.schedule.inlining import verdicts
from fusewise.schedule.rules import RuleSet
from fusewise.schedule.schedule import Choice, Schedule

_T = TypeVar("_T")
#: For lowerings that end before anything is there to be cached.
UNCACHED = {"fx_graph_cache": False, "fx_graph_remote_cache": False}


@dataclass
class GraphPrograms:
    """One graph that AOTAutograd wants compiled, as far as its programs go."""

    gm: torch.fx.GraphModule
    example_inputs: Sequence[Any]
    kwargs: dict[str, Any]
    #: Inductor options of the caller; they hold for every candidate.
    inductor_options: Mapping[str, Any] = field(default_factory=dict)
    #: The caller's rules, for what is put together after a plan was applied.
    rules: RuleSet | None = None
    #: Lowerings to build on while a compile of the graph waits; None where none does.
    _waiting: Standing | None = field(default=None, init=False, repr=False, compare=False)
    #: Whether copies of this process needed the device for what they were asked for.
    _in_vain: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Whether a process compiles its first graph or its hundredth makes no difference."""
        meet_fallbacks(self.gm)

    @property
    def kind(self) -> Literal["forward", "backward", "inference"]:
        """Which part of a program it is."""
        if self.kwargs.get("is_backward"):
            return "backward"
        return "inference" if self.kwargs.get("is_inference") else "forward"

    def own_program(self) -> Program:
        """Inductor's own program; where a compile waits, the one that it goes on with."""
        if self._waiting is None:
            return self.generate(Schedule())
        source = self._waiting.own_source()
        return Program(source, dict(self._waiting.graph.constants), changed_settings())

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
        inlining = inlining_of(schedule, record=True)
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
        if self._build_waiting(schedule, applier, inlining_of(schedule, record=True)) is None:
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

        As many at a time as there are cores. Code for the CPU is made for so many threads as a
        process has, which a copy does not have.

        Args:
            jobs: as for :class:`Copies`.
            timeout_s: seconds after which no job is waited for any more.

        Returns:
            For each job what it gave, the error that it raised, or None where it could not be done
            aside: whoever wants it then has to do it here.
        """
        # One job is done as soon here.
        if len(jobs) < 2 or not self._ready_for_copies():  # noqa: PLR2004
            return [None] * len(jobs)
        with Copies(jobs) as copies:
            found: Mapping[int, _T | Exception] = copies.wait(range(len(jobs)), timeout_s)
        self._in_vain |= copies.in_vain
        return [found.get(index) for index in range(len(jobs))]

    @contextmanager
    def begun_aside(
        self, jobs: Sequence[Callable[[], Any]], then: Callable[[Any], Any] | None = None
    ) -> Iterator[Copies | None]:
        """Have jobs begun as :meth:`aside` does them, while other things are done here.

        Gives None where copies do not help, or where there are not cores enough for all of them.
        For the arguments see :class:`Copies`.
        """
        if not jobs or not has_cores(len(jobs)) or not self._ready_for_copies():
            yield None
            return
        with Copies(jobs, then) as copies:
            yield copies
        self._in_vain |= copies.in_vain

    @property
    def copies_help(self) -> bool:
        """Whether several things at a time can be done on the graph in copies of this process."""
        waiting = self._waiting
        if waiting is None or self._in_vain or "cpu" in waiting.graph.device_types:
            return False
        return can_work_aside()

    def _ready_for_copies(self) -> bool:
        """Whether copies help, which then find all here that they would ask the device for."""
        if not self.copies_help:
            return False
        assert self._waiting is not None
        self._waiting.count_operations()
        return True

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
        taken = {name: constants[own] for name, own in names.items()}
        return Program(source, taken, settings_here(settings))

    def generate_through(self, schedule: Schedule, stop: StopAtProgram) -> None:
        """Lower under a schedule's choices until ``stop`` has seen the program."""
        with suppress(GeneratedError):
            self._lower(schedule, stop, inlining_of(schedule))

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
            inductor_config.patch(UNCACHED),
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

    @property
    def times_products(self) -> bool:
        """Whether the caller wants matrix products timed while the graph is lowered.

        Libraries and templates are, by Inductor, which takes the fastest.
        """
        with self.settings(None):
            return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)

    @contextmanager
    def settings(self, schedule: Schedule | None) -> Iterator[None]:
        """Inductor's settings for a schedule; None for those of the caller alone."""
        patches = dict(self.inductor_options)
        if schedule is not None:
            patches |= config_patches((*schedule.lowering, *schedule.codegen))
        with inductor_config.patch(patches):
            yield


def settings_here(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a copy of this process generated a program under, with those of this one."""
    of_copies = settings.keys() & COPY_SETTINGS.keys()
    kept = {name: v for name, v in settings.items() if name not in of_copies}
    return kept | {name: v for name, v in changed_settings().items() if name in of_copies}


def inlining_of(schedule: Schedule, *, record: bool = False) -> Inlining:
    """The inlining that a schedule's choices want; ``record``: and what comes of it is noted."""
    return Inlining(verdicts(schedule.lowering), record=record)


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
