"""Ahead-of-time packages: Inductor's own way there, with the compile of the graph in our hands."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch
import torch._inductor
from torch._inductor import compile_fx as inductor_compile_fx
from torch._inductor import graph as inductor_graph
from torch._inductor.exc import InductorError

from fusewise.compiler.inductor.replacing import holding, once
from fusewise.schedule.errors import FusewiseError

#: Inductor calls its entry for packages by name, so it is replaced for as long as one is made.
_lock = threading.Lock()
#: Where the parameters and buffers of the program lie that are read from memory in this context.
_kept: ContextVar[frozenset[int]] = ContextVar("fusewise_kept_parameters", default=frozenset())


def compile_and_package(
    exported: torch.export.ExportedProgram,
    compile_graph: Callable[..., Any],
    package_path: str | os.PathLike[str] | None,
    inductor_configs: Mapping[str, Any],
    *,
    parameters_read: bool = False,
) -> str:
    """``torch._inductor.aoti_compile_and_package`` with ``compile_graph`` for its graph.

    ``compile_graph`` stands where ``compile_fx_inner`` does: it takes the captured graph, its
    parameters as constants, with example inputs and keyword arguments, and runs under the settings
    of ahead-of-time compilation. What it raises comes out as it is.

    ``parameters_read``: all parameters and buffers are read from memory. Inductor writes the values
    of those with up to eight elements into the code, so that they are nodes of their own and no
    inputs of others, as they are to ``torch.compile``.

    Returns:
        Path of the package.
    """
    raised: list[FusewiseError] = []

    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return compile_graph(*args, **kwargs)
        except FusewiseError as error:
            raised.append(error)
            raise
        except InductorError as error:
            # Inductor wraps what passes through it; a plan's refusal is to be seen as such.
            if isinstance(error.inner_exception, FusewiseError):
                raised.append(error.inner_exception)
            raise

    _install()
    kept = frozenset(_places(exported)) if parameters_read else frozenset[int]()
    with _lock, holding(_kept, kept):
        original = inductor_compile_fx.compile_fx_aot

        def compile_fx_aot(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "inner_compile": inner})

        inductor_compile_fx.compile_fx_aot = compile_fx_aot
        try:
            return str(
                torch._inductor.aoti_compile_and_package(
                    exported,
                    package_path=None if package_path is None else os.fspath(package_path),
                    inductor_configs=dict(inductor_configs),
                )
            )
        except Exception as error:
            if raised:
                raise raised[0] from error
            raise
        finally:
            inductor_compile_fx.compile_fx_aot = original


def _places(exported: torch.export.ExportedProgram) -> Iterator[int]:
    signature = exported.graph_signature
    for name in (*signature.parameters, *signature.buffers):
        value = exported.state_dict.get(name, exported.constants.get(name))
        if isinstance(value, torch.Tensor) and value.numel():
            yield value.data_ptr()


@once
def _install() -> None:
    original = inductor_graph.GraphLowering.get_attr

    @functools.wraps(original)
    def get_attr(
        self: inductor_graph.GraphLowering, target: str, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if kept := _kept.get():
            value = inductor_graph.getattr_recursive(self.module, target)  # type: ignore[arg-type]
            if isinstance(value, torch.Tensor) and value.numel() and value.data_ptr() in kept:
                return self.add_tensor_constant(value, target)
        return original(self, target, args, kwargs)

    inductor_graph.GraphLowering.get_attr = get_attr  # type: ignore[method-assign]
