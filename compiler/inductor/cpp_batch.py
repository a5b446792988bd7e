"""C++ kernels of many programs compiled together, and programs loaded on top of them.

Most of what it costs to compile one kernel is the headers, so a translation unit of many kernels
costs little more than one of one. Kernels are built with the flags that Inductor would use, kept
in its cache folder, and found again there by what they are: no program has to know which others
its kernels were built with. Never runs a kernel, and never stands in the way of a program: what
is not found here is compiled by Inductor as ever.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import torch
from torch._inductor import codecache, cpp_builder
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.runtime.cache_dir_utils import cache_dir

from fusewise.compiler.inductor.cpp_glue import VERSION as GLUE_VERSION
from fusewise.compiler.inductor.cpp_glue import library_source, source_name

log = logging.getLogger(__name__)

#: Kernels in one translation unit at most: bounds the compiler's memory and what one that does not
#: compile costs the others.
_MOST_TOGETHER = 64
#: A kernel is called by its function and, many times over, by the function of this name.
_CALL, _REPEAT = "call_", "repeat_"
_ENTRY = re.compile(r'extern\s+"C"(?!\s*\{)')
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+(\S+)[ \t]*$", re.MULTILINE)
#: Macros outlive the namespace of the kernel that defines them.
_MACRO = re.compile(r"^[ \t]*#[ \t]*(define|undef)\b", re.MULTILINE)


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
        return _hash(self.argtypes, self.source, self.command, _environment())

    @property
    def includes(self) -> tuple[str, ...]:
        """What it includes, in order."""
        return tuple(dict.fromkeys(_INCLUDE.findall(self.source)))

    @property
    def body(self) -> str:
        """The source as it can stand in a namespace of its own, beside others."""
        # Stays a function that can be replaced at load time, as Inductor's is: otherwise the
        # compiler would specialise it for its only caller. The alignment keeps its speed from
        # depending on what was built before it.
        body = _ENTRY.sub("__attribute__((noinline, aligned(64)))", self.source)
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
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[tuple[str, ...], str]] = []
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "cpp_pybinding"
            and not call.keywords
        ):
            argtypes, text = (ast.literal_eval(argument) for argument in call.args)
            found.append((tuple(argtypes), text))
    if not found:
        return []
    with inductor_config.patch(dict(settings)):
        command = _command()
    return [CppKernel(argtypes, text, command) for argtypes, text in found]


def build_library(
    programs: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    processes: int = 1,
    timeout_s: float = 600.0,
) -> str:
    """Compile the C++ kernels of some programs, each distinct one once, unless it was before.

    Several processes may do this at once. A kernel that does not compile is left out, and so are
    those that are not done in time: Inductor compiles them when a program that has them is loaded.

    Args:
        programs: source and Inductor settings of each.
        processes: compilers to run side by side.
        timeout_s: seconds after which no further compiler is waited for.

    Returns:
        What :func:`prebuilt` and ``load_program`` take as ``library``: the folder that holds the
        kernels. "" where the programs have no C++ kernels, or this system is not supported.
    """
    if sys.platform != "linux":
        return ""
    groups: dict[tuple[Any, ...], tuple[Mapping[str, Any], dict[str, CppKernel]]] = {}
    any_kernel = False
    folder = _folder()
    for source, settings in programs:
        for kernel in cpp_kernels(source, settings):
            any_kernel = True
            if kernel.can_be_joined and not _entry(folder, kernel.key).exists():
                group = (kernel.command, kernel.includes)
                groups.setdefault(group, (settings, {}))[1][kernel.key] = kernel
    if not any_kernel:
        return ""
    deadline = time.monotonic() + timeout_s
    with ThreadPoolExecutor(max(1, processes)) as pool:
        futures: list[Future[bool]] = []
        for settings, kernels in groups.values():
            # Options are made here: Inductor's settings are this thread's own.
            with inductor_config.patch(dict(settings)):
                options = _options(with_header=True)
            futures += [
                pool.submit(_build, folder, part, options, deadline)
                for part in _parts(list(kernels.values()), processes)
            ]
        for future in futures:
            future.result()
    return str(folder)


def _parts(kernels: list[CppKernel], processes: int) -> Iterator[list[CppKernel]]:
    """Cut so that every compiler has work, but none starts for less than it costs to start."""
    least = 4
    count = max(1, -(-len(kernels) // _MOST_TOGETHER), min(processes, len(kernels) // least))
    for i in range(count):
        yield kernels[i::count]


def _build(folder: Path, kernels: Sequence[CppKernel], options: Any, deadline: float) -> bool:
    """Compile kernels into one library, or several where that fails, and note where each is.

    Returns:
        Whether any of them was compiled.
    """
    name = _hash(*(kernel.key for kernel in kernels))
    library = folder / f"{name}.so"
    blamed: set[str] = set()
    with filelock.FileLock(folder / f"{name}.lock"):
        if library.exists() or _compile(library, kernels, options, deadline, blamed):
            for kernel in kernels:
                _write(_entry(folder, kernel.key), library.name)
            return True
    if len(kernels) == 1 or time.monotonic() > deadline:
        return False
    good = [kernel for kernel in kernels if kernel.key not in blamed]
    bad = [kernel for kernel in kernels if kernel.key in blamed]
    if not good or not bad:
        half = len(kernels) // 2
        good, bad = list(kernels[:half]), list(kernels[half:])
    elif len(bad) == 1:
        return _build(folder, good, options, deadline)
    # Where nothing at all compiles it is not for a few bad kernels, and the rest is not tried.
    if not _build(folder, good, options, deadline) and len(good) > 1:
        return False
    return _build(folder, bad, options, deadline) or True


def _compile(
    library: Path,
    kernels: Sequence[CppKernel],
    options: Any,
    deadline: float,
    blamed: set[str],
) -> bool:
    """Whether the compiler made ``library``, which only ever appears whole.

    Where it did not, the keys of kernels that it complained of are added to ``blamed``.
    """
    unique = f"{library.stem}.{os.getpid()}.{threading.get_ident()}"
    source = library.with_name(f"{unique}.cpp")
    bodies = {kernel.key: (kernel.argtypes, kernel.body) for kernel in kernels}
    _write(source, library_source(bodies, kernels[0].includes))
    builder = cpp_builder.CppBuilder(
        name=f"{unique}.tmp",
        sources=str(source),
        BuildOption=options,
        output_dir=str(library.parent),
    )
    made = Path(builder.get_target_file_path())
    try:
        complaints = _run(shlex.split(builder.get_command_line()), deadline)
        if complaints is None:
            made.replace(library)
            return True
    finally:
        source.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
    errors = [line for line in complaints.splitlines() if "error:" in line]
    log.debug("%d kernels do not compile together: %s", len(kernels), "\n".join(errors[:5]))
    blamed |= {key for key in bodies if any(source_name(key) in line for line in errors)}
    return False


def _run(command: Sequence[str], deadline: float) -> str | None:
    """Run a compiler; what it said where it failed or was not done in time, else None."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except BaseException as error:
            # The compiler proper is a child of the driver that was started.
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return "error: not done in time"
            raise
    return output.decode(errors="replace") if process.returncode else None


_library: ContextVar[Path | None] = ContextVar("fusewise_library", default=None)
_command_in_force: ContextVar[str] = ContextVar("fusewise_compile_command", default="")
_lock = threading.Lock()
_installed = False
_loaded: dict[Path, ModuleType] = {}
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
    token = _library.set(Path(library))
    command = _command_in_force.set("")
    try:
        yield
    finally:
        _command_in_force.reset(command)
        _library.reset(token)


def repeater(function: Callable[..., Any]) -> Callable[..., float] | None:
    """The function that calls a kernel of a library many times over; None where there is none.

    It takes the number of calls before the kernel's own arguments and gives the seconds that they
    took, without any Python in between.
    """
    try:
        return _repeaters.get(function)
    except TypeError:
        return None


def _install() -> None:
    global _installed  # noqa: PLW0603
    with _lock:
        if _installed:
            return
        original = AsyncCompile.cpp_pybinding

        @functools.wraps(original)
        def cpp_pybinding(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
            library = _library.get()
            function = None if library is None else _find(library, argtypes, source_code)
            return original(self, argtypes, source_code) if function is None else function

        AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]
        _installed = True


def _find(library: Path, argtypes: Sequence[str], source: str) -> Callable[..., Any] | None:
    if not _command_in_force.get():
        _command_in_force.set(_command())
    key = CppKernel(tuple(argtypes), source, _command_in_force.get()).key
    try:
        path = library / _entry(library, key).read_text()
        with _lock:
            module = _loaded.get(path) or _import(path)
    except (OSError, ImportError):
        log.debug("kernel %s is not in %s", key, library)
        return None
    function: Callable[..., Any] = getattr(module, _CALL + key)
    _repeaters[function] = getattr(module, _REPEAT + key)
    return function


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"fusewise_{path.stem}.kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.bind_data_ptr(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]
    _loaded[path] = module
    return module


def _folder() -> Path:
    folder = Path(cache_dir()) / "fusewise_kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _entry(folder: Path, key: str) -> Path:
    """The file that names the library which holds a kernel."""
    return folder / key[:2] / key


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    unfinished.write_text(text)
    unfinished.replace(path)


def _options(*, with_header: bool) -> Any:
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


def _command() -> str:
    return _command_line(_options(with_header=False))


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


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
