"""What C++ kernels a generated program has, and what each is known by on this machine.

A kernel is known by its source and by the command line that Inductor would compile it with, so
that it is found again whatever it was compiled together with. Compiles and loads nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache, cpp_builder
from torch._inductor import config as inductor_config
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.runtime.cache_dir_utils import cache_dir

from fusewise.compiler.inductor.cpp_glue import VERSION as GLUE_VERSION

#: Name that kernels are compiled under in a generated program.
_CALL = "cpp_pybinding"
_ENTRY = re.compile(r'extern\s+"C"(?!\s*\{)')
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+(\S+)[ \t]*$", re.MULTILINE)
#: Macros outlive the namespace of the kernel that defines them.
_MACRO = re.compile(r"^[ \t]*#[ \t]*(define|undef)\b", re.MULTILINE)
_TRANSPOSE = re.compile(r"\btranspose_mxn\s*<")


@dataclass(frozen=True)
class CppKernel:
    """One C++ kernel of a generated program."""

    #: Types of its arguments, as Inductor writes them.
    argtypes: tuple[str, ...]
    #: The function ``kernel`` with its includes.
    source: str
    #: Command line that Inductor would compile it with, but for the file names.
    command: str

    @functools.cached_property
    def key(self) -> str:
        """Hash of all that decides the machine code."""
        return stable_hash(self.argtypes, self.source, self.command, _environment())

    @property
    def includes(self) -> tuple[str, ...]:
        """What it includes, in order."""
        return tuple(dict.fromkeys(_INCLUDE.findall(self.source)))

    @property
    def body(self) -> str:
        """The source as it can stand in a namespace of its own, beside others."""
        # Stays a function that can be replaced at load time, as Inductor's is: otherwise the
        # compiler would specialise it for its only caller. The alignment keeps its speed from
        # depending on what was built before it. Torch's functions that transpose a block of numbers
        # are large. Alone in a translation unit a call is replaced by what it does, less what a
        # smaller block does not need; beside kernels that make the same call it is not, and blocks
        # of three rows take 3 times as long.
        flat = "flatten, " if _TRANSPOSE.search(self.source) else ""
        body = _ENTRY.sub(f"__attribute__((noinline, {flat}aligned(64)))", self.source)
        return _INCLUDE.sub("", body)

    @property
    def can_be_joined(self) -> bool:
        """Whether it may share a translation unit with others."""
        return len(_ENTRY.findall(self.source)) == 1 and not _MACRO.search(self.source)


def cpp_kernels(source: str, settings: Mapping[str, Any]) -> list[CppKernel]:
    """The C++ kernels that a generated program defines, in order, without running it.

    ``settings``: Inductor settings that it was generated under. Source that does not parse has
    none; loading it tells why.
    """
    found = definitions(source)
    if not found:
        return []
    with inductor_config.patch(dict(settings)):
        command = compile_command()
    return [CppKernel(argtypes, text, command) for argtypes, text in found.values()]


def definitions(source: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Argument types and source of the C++ kernels of a generated program, by their names in it."""
    if _CALL not in source:
        return {}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(call := statement.value, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == _CALL
            and not call.keywords
        ):
            argtypes, text = (ast.literal_eval(argument) for argument in call.args)
            found[ast.unparse(statement.targets[0])] = (tuple(argtypes), text)
    return found


def kernel_library() -> str:
    """All kernels that were ever built here, as a library; "" where none can be."""
    if sys.platform != "linux":
        return ""
    return str(Path(cache_dir()) / "fusewise_kernels")


def library_entry(folder: Path, key: str) -> Path:
    """The file that names the library in ``folder`` which holds a kernel."""
    return folder / key[:2] / key


def built_in(folder: Path, key: str) -> Path | None:
    """The library in ``folder`` which holds a kernel; None where none does."""
    try:
        library = folder / library_entry(folder, key).read_text()
    except FileNotFoundError:
        return None
    return library if library.exists() else None


def compile_options(*, with_header: bool) -> Any:
    """Compiler options as Inductor has them for a kernel, under the settings in force."""
    arguments = {
        **codecache.CppPythonBindingsCodeCache.cpp_compile_command_flags,
        "device_type": "cpu",
        "extra_flags": (),
        "use_relative_path": False,
        "vec_isa": pick_vec_isa(),
    }
    options = cpp_builder.CppTorchDeviceOptions(compile_only=False, min_optimize=False, **arguments)
    if with_header and inductor_config.cpp_cache_precompile_headers:
        header = codecache.CppPythonBindingsCodeCache._get_uncompiled_header("cpu")
        if header is not None:
            options.precompiled_header = codecache._precompile_header(
                header, _command_line(options), min_optimize=False, **arguments
            )
    return options


def compile_command() -> str:
    """Command line of a kernel under the settings in force, but for the file names."""
    return _command_line(compile_options(with_header=False))


def _command_line(options: Any) -> str:
    return cpp_builder.CppBuilder(name="o", sources="i", BuildOption=options).get_command_line()


@functools.cache
def _environment() -> str:
    compiler = cpp_builder.get_cpp_compiler()
    return json.dumps(
        [
            GLUE_VERSION,
            str(torch.__version__),
            sys.implementation.cache_tag,
            cpp_builder.get_compiler_version_info(compiler),
        ]
    )


def stable_hash(*parts: Any) -> str:
    """Hash of strings and sequences of them, the same in every process."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
