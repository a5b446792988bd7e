"""Operators that a program's author or a library has registered, told to the measuring process.

A process knows an operator once it has imported what registers it. The compiling process has, the
measuring one, unless it is a copy, knows torch's alone. It is sent what to import and what to load,
never the operators themselves: an implementation in C++ has no other way there.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.fx
from torch._library.custom_ops import OPDEFS

from fusewise.schedule.errors import MeasureError, first_line

#: Namespaces that every process with torch and Inductor knows.
_TORCHS = frozenset({"aten", "prim", "prims", "inductor", "quantized", "_quantized"})
#: Where an operator was registered, as torch's dispatcher tells it.
_REGISTERED = re.compile(r"^debug: registered at (?P<file>.*):\d+$", re.MULTILINE)


@dataclass(frozen=True)
class Operators:
    """Operators of a graph that are not torch's, and how a process comes to know them."""

    #: Such as ``mine::scale`` or, of an overload, ``mine::scale.out``.
    names: tuple[str, ...] = ()
    #: Modules that register them when they are imported.
    modules: tuple[str, ...] = ()
    #: Shared libraries that were loaded with ``torch.ops.load_library``.
    libraries: tuple[str, ...] = ()


def operators_of(gm: torch.fx.GraphModule) -> Operators:
    """The operators that ``gm`` calls, or graphs within it do, and not every process knows."""
    graphs = [inner.graph for inner in gm.modules() if isinstance(inner, torch.fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
    # One that changes its inputs is an argument of the operator that stands for it.
    called = [told for node in nodes for told in (node.target, *node.args)]
    found = {told.name() for told in called if isinstance(told, torch._ops.OpOverload)}
    names = sorted(name for name in found if name.partition("::")[0] not in _TORCHS)
    if not names:
        return Operators()
    modules = sorted({module for name in names for module in _registering(name)})
    # A program's own file cannot be imported: it would run once more.
    modules = [module for module in modules if module != "__main__"]
    return Operators(tuple(names), tuple(modules), tuple(sorted(torch.ops.loaded_libraries)))


def make_known(operators: Operators) -> None:
    """Import and load what registers the operators; those that are known cost nothing.

    Raises:
        MeasureError: one stays unknown; names it, and what could not be imported.
    """
    if not _unknown(operators.names):
        return
    failures = []
    for library in operators.libraries:
        try:
            torch.ops.load_library(library)
        except OSError as error:
            failures.append(f"{library}: {first_line(error)}")
    for module in operators.modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - what others' code raises is told below
            failures.append(f"import {module}: {first_line(error)}")
    if missing := _unknown(operators.names):
        raise MeasureError(
            f"it does not know the operator {missing[0]}"
            + "".join(f"; {failure}" for failure in failures),
            subject="measuring process",
            remedy="register it in a module that can be imported, not in the program's own file",
        )


def _unknown(names: Iterable[str]) -> list[str]:
    known = torch._C._dispatch_has_kernel
    return [name for name in names if not known(name)]


def _registering(name: str) -> list[str]:
    """Modules at hand that may have registered an operator, found by what torch has noted."""
    if (definition := OPDEFS.get(name)) is not None:
        return [definition._init_fn.__module__]
    noted = _REGISTERED.search(torch._C._dispatch_dump(name))
    file = noted["file"] if noted is not None else ""
    loaded = list(sys.modules.items())
    by_file = [key for key, module in loaded if file and getattr(module, "__file__", None) == file]
    if by_file:
        return by_file
    # One in C++ is noted by a source file that need not be here. Its library is a module, or was
    # loaded by one, that bears its name: ``torchvision``, ``vllm._C``.
    namespace = name.partition("::")[0]
    return [
        key for key, _ in loaded if namespace in key.split(".") and key.split(".")[0] != "torch"
    ]
