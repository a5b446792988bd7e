"""Running Inductor on one graph to the end, by itself or as what another compile goes on with.

Up to the generated program it is ``generating`` that does so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._inductor import compile_fx as inductor_compile_fx
from torch._inductor import config as inductor_config

from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks, rounds_to_come
from fusewise.compiler.inductor.cache_keys import cache_key
from fusewise.compiler.inductor.compiling_ahead import (
    Ahead,
    apart,
    forget_strides,
    tell_strides,
    told_counts,
    told_strides,
)
from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.cpp_kernels import kernel_library
from fusewise.compiler.inductor.cpp_loading import prebuilt
from fusewise.compiler.inductor.found_blocks import found_blocks, tuned_kernels
from fusewise.compiler.inductor.generating import UNCACHED, GraphPrograms, copy_graph, inlining_of
from fusewise.compiler.inductor.hooks import Interceptor, intercept
from fusewise.compiler.inductor.interceptors import Applier
from fusewise.compiler.inductor.kernel_nodes import noting_kernels
from fusewise.compiler.inductor.kernels import kernels_by
from fusewise.compiler.inductor.lowerings import Standing, can_stand, standing
from fusewise.compiler.inductor.program import changed_settings
from fusewise.compiler.inductor.readied import Readied
from fusewise.compiler.inductor.rounds import offer_rounds, tune_while_used
from fusewise.compiler.inductor.tuned_ahead import compile_tuned
from fusewise.compiler.inductor.tuning import tuned_as_measured, tuned_warm
from fusewise.schedule.kernel_choices import tunings
from fusewise.schedule.schedule import Choice, Schedule

log = logging.getLogger(__name__)


class _GivenUpError(BaseException):
    """Ends a compile whose outcome nobody wants any more.

    Not an ``Exception``: Inductor wraps those into errors of its own on the way out.
    """


@dataclass
class GraphCompile(GraphPrograms):
    """One graph that AOTAutograd wants compiled."""

    #: Nodes of the kernels of the last compile that tunes some, by their names.
    _kernels: Mapping[str, frozenset[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    #: Settings that Inductor has changed for the time of the compile that waits, as they were.
    _outside: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

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
        inlining = inlining_of(schedule or Schedule())
        with self._in_force(schedule), inlining.active():
            return self._run(self._building(schedule, interceptor, blocks))

    @contextmanager
    def _in_force(self, schedule: Schedule | None) -> Iterator[None]:
        """What holds for all of a compile under a schedule."""
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
            yield

    def compile_for_tuning(self, schedule: Schedule, output: Any) -> None:
        """Have Inductor's pool compile what kernels of a compiled graph may still be tuned to.

        Meanwhile the graph runs once as it is; then they only have to be timed, round after round.
        Where Inductor records its launches, its first run waits for one round. Nothing is done for
        kernels that were tuned before, where they were measured for one, and nothing without a
        pool.

        Args:
            schedule: that the graph was compiled under.
            output: Inductor's output code.
        """
        source = getattr(output, "source_code", None) or ""
        with self.settings(schedule), tuned_as_measured():
            ask_for_blocks(source, {})
            rounds = rounds_to_come(source)
            offer_rounds(rounds)
            comes = any(one.begin is not None for one in rounds.values())
            if comes and not inductor_config.triton.cudagraphs:
                tune_while_used(output)

    def found_blocks(self, schedule: Schedule, output: Any) -> tuple[Choice, ...]:
        """Block sizes that kernels of the graph that was compiled last have come to by now.

        Args:
            schedule: that it was compiled under.
            output: Inductor's output code.
        """
        source = getattr(output, "source_code", None) or ""
        with self.settings(schedule):
            return found_blocks(source, self._kernels, schedule.codegen)

    def tuned_kernels(self, schedule: Schedule, output: Any) -> dict[str, tuple[str, ...]]:
        """Names of the choices that have a kernel tuned, by the path of the kernel's source.

        For the arguments see :meth:`found_blocks`.
        """
        source = getattr(output, "source_code", None) or ""
        with self.settings(schedule):
            return tuned_kernels(source, self._kernels, schedule.codegen)

    def compile_ahead(self, schedule: Schedule, interceptor: Interceptor) -> Ahead:
        """:meth:`compile` while another compile of the graph waits, which may yet go on."""
        # By the settings that it is found by in the cache when it is the only compile.
        with apart(), inductor_config.patch(self._outside):
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
                where what the graph returns would have other strides, or no code can be generated.
            measured: whether kernels are those that were built to be measured.

        Returns:
            The output code; None where the compile did not go on.
        """
        inlining = inlining_of(Schedule(), record=True)
        tuned: list[Schedule] = []

        def wait(waiting: Standing) -> None:
            waiting.start_with(inlining)
            self._waiting = waiting
            inside = inductor_config.get_config_copy()
            self._outside = {name: v for name, v in begun.items() if inside[name] != v}
            try:
                wanted = visit()
                if isinstance(wanted, Schedule):
                    going_on.enter_context(self._in_force(wanted))
                    tuned.append(wanted)
                    wanted = self._goes_on_as(wanted)
                    key.change(copy_graph(self.gm))
                if not wanted:
                    tell_strides(waiting.graph, self.example_inputs)
                    raise _GivenUpError
            finally:
                self._waiting, self._outside = None, {}

        forget_strides()
        with (
            self.settings(None),
            nullcontext() if cached else inductor_config.patch(UNCACHED),
            inlining.active(),
            standing(wait) if can_stand() else nullcontext(),
            prebuilt(kernel_library() if measured else ""),
            tuned_as_measured() if measured else tuned_warm(),
            cache_key() as key,
            suppress(_GivenUpError),
            ExitStack() as going_on,
        ):
            begun: dict[str, Any] = inductor_config.get_config_copy()
            output = self._run(None)
            if tuned:
                self.compile_for_tuning(tuned[0], output)
            return output
        return None

    def _goes_on_as(self, schedule: Schedule) -> bool:
        """Whether the compile that waits can go on under a schedule, whose code it has then."""
        assert self._waiting is not None
        inlining = inlining_of(schedule, record=True)
        building = self._building(schedule, Applier(schedule.plan))
        assert building is not None
        try:
            lowered = self._build_waiting(schedule, building, inlining)
        except Exception:
            # Compiling it by itself tells why.
            log.debug("does not go on under %s", schedule.id, exc_info=True)
            return False
        return lowered is not None and self._waiting.go_on_with(lowered)

    def _building(
        self,
        schedule: Schedule | None,
        interceptor: Interceptor | None,
        blocks: Sequence[Choice] = (),
    ) -> Interceptor | None:
        """``interceptor``, and kernels of the program built together before they are loaded.

        Those that do not compile here are left to Inductor.
        """
        if schedule is None:
            return interceptor
        if tunings(schedule.codegen):
            nodes = self._kernels
            interceptor = Readied(interceptor, lambda source: compile_tuned(source, nodes, blocks))
        if not kernel_library():
            return interceptor
        return Readied(interceptor, lambda source: build_library([(source, changed_settings())]))

    def _run(self, interceptor: Interceptor | None) -> Any:
        with nullcontext() if interceptor is None else intercept(interceptor):
            return inductor_compile_fx.compile_fx_inner(
                copy_graph(self.gm), self.example_inputs, **self.kwargs
            )


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
