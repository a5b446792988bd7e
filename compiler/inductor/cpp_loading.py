"""Generated programs on top of kernels that were compiled before.

Inductor compiles a C++ kernel when the module that defines it is executed, by
``AsyncCompile.cpp_pybinding``. That is replaced, once a process, by a dispatcher that asks a
context variable: with no library active in this context, Inductor compiles as if fusewise were not
there. Never compiles anything itself.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._inductor.async_compile import AsyncCompile

from fusewise.compiler.inductor.cpp_glue import CALL, REPEAT
from fusewise.compiler.inductor.cpp_kernels import CppKernel, built_in, compile_command
from fusewise.compiler.inductor.replacing import holding, once

log = logging.getLogger(__name__)

_library: ContextVar[Path | None] = ContextVar("fusewise_library", default=None)
_command_in_force: ContextVar[str] = ContextVar("fusewise_compile_command", default="")
#: Libraries that were loaded, and who loads one now.
_loaded: dict[Path, ModuleType] = {}
_loading = threading.Lock()
_repeaters: dict[Callable[..., Any], Callable[..., float]] = {}


@contextmanager
def prebuilt(library: str) -> Iterator[None]:
    """Have generated programs that are loaded in this context take their kernels from ``library``.

    To be entered with the program's Inductor settings in force, which decide what a kernel is known
    by. A kernel that is not there is compiled by Inductor. "" changes nothing.
    """
    if not library:
        yield
        return
    _install()
    with holding(_library, Path(library)), holding(_command_in_force, ""):
        yield


def repeater(function: Callable[..., Any]) -> Callable[..., float] | None:
    """The function that calls a kernel of a library many times over; None where there is none.

    It takes the number of calls before the kernel's own arguments and gives the seconds that they
    took, without any Python in between.
    """
    try:
        return _repeaters.get(function)
    except TypeError:
        return None


@once
def _install() -> None:
    original = AsyncCompile.cpp_pybinding

    @functools.wraps(original)
    def cpp_pybinding(
        self: AsyncCompile, argtypes: list[str], source_code: str, *args: Any, **kwargs: Any
    ) -> Any:
        library = _library.get()
        if library is not None and not args and not kwargs:
            function = _find(library, argtypes, source_code)
            if function is not None:
                return function
        return original(self, argtypes, source_code, *args, **kwargs)

    AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]


def _find(library: Path, argtypes: Sequence[str], source: str) -> Callable[..., Any] | None:
    if not _command_in_force.get():
        _command_in_force.set(compile_command())
    key = CppKernel(tuple(argtypes), source, _command_in_force.get()).key
    try:
        path = built_in(library, key)
        with _loading:
            module = None if path is None else _loaded.get(path) or _import(path)
    except (OSError, ImportError):
        log.debug("library of kernel %s cannot be loaded", key, exc_info=True)
        return None
    if module is None:
        log.debug("kernel %s is not in %s", key, library)
        return None
    function: Callable[..., Any] = getattr(module, CALL + key)
    _repeaters[function] = getattr(module, REPEAT + key)
    return function


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fusewise_{path.stem}.kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.bind_data_ptr(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]
    _loaded[path] = module
    return module
