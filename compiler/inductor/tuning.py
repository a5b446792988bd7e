"""Block sizes: which kernels Inductor tunes, and that what was tuned is what runs.

Inductor tunes a kernel when it first runs it and keeps what it found beside the kernel's source,
under a key that holds the cache tag. Candidates are first run in the measuring process, so a
program under a plan has to look under that process's tag: with one of its own it would tune again,
and might come to other block sizes than those that were timed.

Inductor's methods are replaced once a process by dispatchers that ask context variables: with
nothing active in this context, Inductor acts as if fusewise were not there.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.autotune_cache import AutotuneCache

from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.block_sizes import tunes_itself, without_steps
from fusewise.compiler.inductor.configurations import take_what_was_measured
from fusewise.compiler.inductor.kernel_nodes import kernel_nodes
from fusewise.compiler.inductor.replacing import holding, once
from fusewise.compiler.inductor.rounds import go_on
from fusewise.schedule.errors import PlanError
from fusewise.schedule.kernel_choices import Tuning

#: What Inductor reads when it writes the metadata of a kernel that is tuned so.
_SETTINGS: dict[Tuning, dict[str, Any]] = {
    "autotune": {"max_autotune_pointwise": True},
    "descent": {"coordinate_descent_tuning": True},
}


class _Wanted:
    """Settings for all kernels, tunings by a node of the kernel, and which found their kernel."""

    def __init__(self, settings: Mapping[str, Any], tunings: Mapping[str, Tuning]) -> None:
        self.settings = dict(settings)
        self.tunings = dict(tunings)
        self.found: set[str] = set()

    def settings_of(self, kernel: Any) -> dict[str, Any]:
        """What holds while the code of a kernel is written."""
        names = kernel_nodes(kernel) & self.tunings.keys()
        self.found |= names
        settings = dict(self.settings)
        for name in names:
            settings |= _SETTINGS[self.tunings[name]]
        return settings


_wanted: ContextVar[_Wanted | None] = ContextVar("fusewise_tunings", default=None)
_as_measured: ContextVar[bool] = ContextVar("fusewise_as_measured", default=False)
_warm: ContextVar[bool] = ContextVar("fusewise_tuned_warm", default=False)


@contextmanager
def tuned(settings: Mapping[str, Any], tunings: Mapping[str, Tuning]) -> Iterator[None]:
    """Have kernels that are generated in this context tuned.

    Args:
        settings: of Inductor's, for the code of all kernels.
        tunings: for the kernels of these nodes.
    """
    if not settings and not tunings:
        yield
        return
    _dispatch_kernels()
    with holding(_wanted, _Wanted(settings, tunings)):
        yield


def check_tuned(without_kernel: Collection[str] = ()) -> None:
    """See that each node whose kernel is to be tuned was in one. For when all code is generated.

    Args:
        without_kernel: nodes that Inductor found another way for while it wrote the code, which no
            plan tells: these may be missing.

    Raises:
        PlanError: one was not; names it.
    """
    wanted = _wanted.get()
    if wanted is None:
        return
    for name in sorted(wanted.tunings.keys() - wanted.found - set(without_kernel)):
        raise PlanError(
            f"no Triton kernel is generated for {name!r}, so there is nothing to tune",
            subject="schedule",
            remedy="leave the choice out, or search again",
        )


@contextmanager
def tuned_warm() -> Iterator[None]:
    """Have kernels of this context that Inductor knows several block sizes for tuned warm."""
    _dispatch_loading()
    with holding(_warm, True):
        yield


@contextmanager
def tuned_as_measured() -> Iterator[None]:
    """Have kernels of this context take the block sizes that the measuring process found.

    While code is written none is loaded, however: Inductor's pool compiles what it meets.
    """
    _dispatch_keys()
    _dispatch_generating()
    with tuned_warm(), holding(_as_measured, True):
        yield


@contextmanager
def only_generated() -> Iterator[None]:
    """Have no kernel of this context loaded: its code is written for others to run.

    A kernel that Inductor meets when its code is written, and has a pool for, would be compiled
    here and stay as it is, without what is found for it afterwards.
    """
    with holding(_as_measured, False):
        yield


@once
def _dispatch_generating() -> None:
    original = GraphLowering.codegen

    @functools.wraps(original)
    def codegen(self: GraphLowering) -> Any:
        with only_generated() if _as_measured.get() else nullcontext():
            return original(self)

    GraphLowering.codegen = codegen  # type: ignore[method-assign]


@once
def _dispatch_keys() -> None:
    original = AutotuneCache._prepare_key

    @functools.wraps(original)
    def prepare_key(filename: str) -> str:
        if not _as_measured.get():
            return original(filename)
        compiler_config: Any = torch.compiler.config
        # That of a process in which nothing was set: those that measure, and that compile.
        with compiler_config.patch(cache_key_tag=os.environ.get("TORCH_COMPILE_CACHE_KEY_TAG", "")):
            return original(filename)

    AutotuneCache._prepare_key = staticmethod(prepare_key)  # type: ignore[method-assign]


@once
def _dispatch_loading() -> None:
    original = AsyncCompile.triton

    @functools.wraps(original)
    def triton(self: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        if not _warm.get():
            return original(self, kernel_name, source_code, *args, **kwargs)
        # What is loaded here, or compiled once more with shorter pieces, the pool has compiled.
        use_pools_assembler()
        take_what_was_measured(source_code)
        # A user who has everything tuned has it done as Inductor does.
        if _wanted.get() is None or not tunes_itself(source_code):
            return original(self, kernel_name, source_code, *args, **kwargs)
        if not _as_measured.get():
            # Its code was written, and what is compiled before it is loaded is on its way in most
            # cases: for Inductor's own program, which does not say that it is tuned.
            plain = without_steps(source_code)
            under_way = CompiledTritonKernels.get(plain)
            return under_way or original(self, kernel_name, plain, *args, **kwargs)
        # The pool may have met it when its code was written, before anything was found: what it
        # has kept knows nothing of that. Loaded here, the kernel looks it up.
        CompiledTritonKernels.remove_future(source_code)
        with inductor_config.patch(compile_threads=1):
            kernel = original(self, kernel_name, source_code, *args, **kwargs)
        go_on(kernel)
        return kernel

    AsyncCompile.triton = triton  # type: ignore[method-assign]


@once
def _dispatch_kernels() -> None:
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.codegen.triton_combo_kernel import ComboKernel

    for kernel_class in (TritonKernel, ComboKernel):
        _dispatch_codegen(kernel_class)


def _dispatch_codegen(kernel_class: Any) -> None:
    original = kernel_class.codegen_kernel

    @functools.wraps(original)
    def codegen_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _wanted.get()
        settings = {} if wanted is None else wanted.settings_of(self)
        with inductor_config.patch(settings) if settings else nullcontext():
            return original(self, *args, **kwargs)

    kernel_class.codegen_kernel = codegen_kernel
