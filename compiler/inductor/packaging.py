"""Ahead-of-time packages: Inductor's own way there, with the compile of the graph in our hands."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._inductor
from torch._inductor import compile_fx as inductor_compile_fx
from torch._inductor.exc import InductorError

from fusewise.schedule.errors import FusewiseError

#: Inductor calls its entry for packages by name, so it is replaced for as long as one is made.
_lock = threading.Lock()


def compile_and_package(
    exported: torch.export.ExportedProgram,
    compile_graph: Callable[..., Any],
    package_path: str | os.PathLike[str] | None,
    inductor_configs: Mapping[str, Any],
) -> str:
    """``torch._inductor.aoti_compile_and_package`` with ``compile_graph`` for its graph.

    ``compile_graph`` stands where ``compile_fx_inner`` does: it takes the captured graph, its
    parameters as constants, with example inputs and keyword arguments, and runs under the settings
    of ahead-of-time compilation. What it raises comes out as it is.

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

    with _lock:
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
