"""Generated programs: compiling them ahead of time, and loading one so that it can be called.

C++ kernels are taken from a library that was built before where one is given; all others go
through Inductor's own code caches, so a kernel that two candidates share is compiled once. Never
calls a program.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.codecache import PyCodeCache
from torch.utils._config_module import _UNSET_SENTINEL

from fusewise.compiler.inductor.cpp_loading import prebuilt

#: A program as Inductor generates it: takes a list of inputs, which it empties.
Call = Callable[[list[Any]], Any]


def load_program(
    source: str,
    constants: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    library: str = "",
    *,
    in_process: bool = False,
) -> Call:
    """Compile and load a generated program.

    Args:
        source: the program's Python source.
        constants: tensors that it reaches by name.
        settings: Inductor settings that it was generated under.
        library: where its C++ kernels are, from ``build_library``; "" to have Inductor compile
            them.
        in_process: as for :func:`load_module`.
    """
    call: Call = load_module(source, constants, settings, library, in_process=in_process).call
    return call


def load_module(
    source: str,
    constants: Mapping[str, torch.Tensor],
    settings: Mapping[str, Any],
    library: str = "",
    *,
    in_process: bool = False,
) -> ModuleType:
    """Like :func:`load_program`, and give the whole module: its kernels are its globals.

    ``in_process``: have no other process compile for this one. What was compiled before is only
    read, and processes that wait for work would disturb whoever takes times.
    """
    patches = dict(settings) | ({"compile_threads": 1} if in_process else {})
    with inductor_config.patch(patches), prebuilt(library):
        key, path = PyCodeCache.write(source)
        module: ModuleType = PyCodeCache.load_by_key_path(key, path, attrs=dict(constants))
    # Inductor holds on to every module, and with it to the program's constants.
    PyCodeCache.modules[:] = [held for held in PyCodeCache.modules if held is not module]
    sys.modules.pop(module.__name__, None)
    return module


def precompile(
    source: str, constants: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> None:
    """Compile a program's kernels into the caches on disk, without running or tuning any.

    A process that loads the program afterwards finds each configuration of each Triton kernel, in
    milliseconds, where it would compile for seconds. Raises what the compiler raises.
    """
    load_module(source, constants, settings, in_process=True)
    forget_kernels()


def get_ready() -> None:
    """Import what every generated program imports, which takes a second, before one is there."""
    importlib.import_module("torch._inductor.select_algorithm")


def forget_kernels() -> None:
    """Let go of kernels that no loaded program uses; what was compiled stays on disk."""
    PyCodeCache.cache_clear()
    CompiledTritonKernels.cache_clear()


def changed_settings() -> dict[str, Any]:
    """Inductor settings that differ from their defaults and can be sent to another process."""
    simple = (bool, int, float, str, type(None))
    config: Any = inductor_config
    changed = config._get_dict(skip_default=True)
    return {
        name: value
        for name, value in changed.items()
        if isinstance(value, simple) and not _is_set_back(config._config[name], value)
    }


def _is_set_back(entry: Any, value: Any) -> bool:
    """Whether a setting is what it was before it was set, which Inductor counts as changed."""
    return bool(entry.env_value_default is _UNSET_SENTINEL and value == entry.default)
