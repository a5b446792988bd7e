"""C++ kernels of many programs compiled together.

Most of what it costs to compile one kernel is the headers, so a translation unit of many kernels
costs little more than one of one. Kernels are built with the flags that Inductor would use, kept
in its cache folder, and found again there by what they are: no program has to know which others
its kernels were built with. Never loads a kernel, and never stands in the way of a program: what
cannot be built here is compiled by Inductor as ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import psutil
from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder
from torch._inductor.async_compile import get_compile_threads

from fusewise.compiler.inductor.cpp_glue import library_source, source_name
from fusewise.compiler.inductor.cpp_kernels import (
    CppKernel,
    built_in,
    compile_options,
    cpp_kernels,
    kernel_library,
    library_entry,
    stable_hash,
)

log = logging.getLogger(__name__)

#: Kernels in one translation unit at most: bounds the compiler's memory and what one that does not
#: compile costs the others.
_MOST_TOGETHER = 64
#: Kernels that are worth a compiler of their own at the least.
_LEAST_TOGETHER = 4


def most_compilers() -> int:
    """Compilers that Inductor runs side by side at most."""
    return get_compile_threads()


def build_library(
    programs: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    processes: int | None = None,
    timeout_s: float = 600.0,
    apart: bool = True,
) -> str:
    """Compile the C++ kernels of some programs, each distinct one once, unless it was before.

    Several processes may do this at once. A kernel that does not compile is left out, and so are
    those that are not done in time: Inductor compiles them when a program that has them is loaded.

    Args:
        programs: source and Inductor settings of each.
        processes: compilers to run side by side at most; None for as many as Inductor would run.
        timeout_s: seconds after which no further compiler is waited for.
        apart: whether compilers are in sessions of their own, where an interrupt from the
            terminal does not reach them; else they are stopped and killed with this one.

    Returns:
        What :func:`prebuilt` and ``load_program`` take as ``library``: the folder that holds the
        kernels. "" where the programs have no C++ kernels, or this system is not supported.
    """
    library = kernel_library()
    if not library:
        return ""
    try:
        return library if _build_all(Path(library), programs, processes, timeout_s, apart) else ""
    except (OSError, RuntimeError, subprocess.SubprocessError):
        log.debug("kernels are not compiled together", exc_info=True)
        return library


def _build_all(
    folder: Path,
    programs: Sequence[tuple[str, Mapping[str, Any]]],
    processes: int | None,
    timeout_s: float,
    apart: bool,
) -> bool:
    """Whether the programs have any C++ kernels; those are built then."""
    groups: dict[tuple[Any, ...], tuple[Mapping[str, Any], dict[str, CppKernel]]] = {}
    any_kernel = False
    for source, settings in programs:
        for kernel in cpp_kernels(source, settings):
            any_kernel = True
            if kernel.can_be_joined and built_in(folder, kernel.key) is None:
                group = (kernel.command, kernel.includes)
                groups.setdefault(group, (settings, {}))[1][kernel.key] = kernel
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    processes = processes or most_compilers()
    with ThreadPoolExecutor(processes) as pool:
        futures: list[Future[bool]] = []
        for settings, kernels in groups.values():
            # Options are made here: Inductor's settings are this thread's own.
            with inductor_config.patch(dict(settings)):
                options = compile_options(with_header=True)
            futures += [
                pool.submit(_build, folder, part, options, deadline, apart)
                for part in _parts(list(kernels.values()), processes)
            ]
        for future in futures:
            future.result()
    return any_kernel


def _parts(kernels: list[CppKernel], processes: int) -> Iterator[list[CppKernel]]:
    """Cut so that every compiler has work, but none starts for less than it costs to start."""
    count = max(
        1, -(-len(kernels) // _MOST_TOGETHER), min(processes, len(kernels) // _LEAST_TOGETHER)
    )
    # In an order that does not depend on the programs, so that the same kernels meet again.
    kernels = sorted(kernels, key=lambda kernel: kernel.key)
    for i in range(count):
        yield kernels[i::count]


def _build(
    folder: Path, kernels: Sequence[CppKernel], options: Any, deadline: float, apart: bool
) -> bool:
    """Compile kernels into one library, or several where that fails, and note where each is.

    Returns:
        Whether any of them was compiled.
    """
    name = stable_hash(*(kernel.key for kernel in kernels))
    library = folder / f"{name}.so"
    blamed: set[str] = set()
    left_s = max(0.0, deadline - time.monotonic())
    with filelock.FileLock(folder / f"{name}.lock", timeout=left_s):
        if library.exists() or _compile(library, kernels, options, deadline, apart, blamed):
            for kernel in kernels:
                _write(library_entry(folder, kernel.key), library.name)
            return True
    if len(kernels) == 1 or time.monotonic() > deadline:
        return False
    good = [kernel for kernel in kernels if kernel.key not in blamed]
    bad = [kernel for kernel in kernels if kernel.key in blamed]
    if not good or not bad:
        half = len(kernels) // 2
        good, bad = list(kernels[:half]), list(kernels[half:])
    elif len(bad) == 1:
        return _build(folder, good, options, deadline, apart)
    # Where nothing at all compiles it is not for a few bad kernels, and the rest is not tried.
    if not _build(folder, good, options, deadline, apart) and len(good) > 1:
        return False
    return _build(folder, bad, options, deadline, apart) or True


def _compile(
    library: Path,
    kernels: Sequence[CppKernel],
    options: Any,
    deadline: float,
    apart: bool,
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
        complaints = _run(shlex.split(builder.get_command_line()), deadline, apart)
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


def _run(command: Sequence[str], deadline: float, apart: bool) -> str | None:
    """Run a compiler; what it said where it failed or was not done in time, else None."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=apart,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except BaseException as error:
            # The compiler proper is a child of the driver that was started.
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return "error: not done in time"
            raise
    return output.decode(errors="replace") if process.returncode else None


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    unfinished.write_text(text)
    unfinished.replace(path)
