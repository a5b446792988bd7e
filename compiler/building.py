"""Kernels built while something else is done: those of Inductor's own program, and candidates'.

Compilers run in processes of their own, so that a thread which waits for them holds up nothing.
Whatever goes wrong there is left to who loads the program. Loads nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from fusewise.compiler.inductor.blocks_ahead import ask_for_blocks
from fusewise.compiler.inductor.cpp_batch import build_library, most_compilers
from fusewise.compiler.inductor.interceptors import Program
from fusewise.compiler.inductor.kernel_codes import kernel_codes
from fusewise.compiler.inductor.triton_ahead import Pooled, pooled_kernels

log = logging.getLogger(__name__)

_pool: Final = ThreadPoolExecutor(1, thread_name_prefix="fusewise-building")
_under_way: list[Building] = []
#: Seconds that compiling a Triton kernel takes at the least, where nobody compiles it ahead.
_KERNEL_S: Final = 0.4
#: Of the time that the kernels of a program take to build together, what others do that have one
#: kernel: reading headers, most of all.
BUILD_AT_LEAST: Final = 0.6


class Building:
    """The kernels of one program on their way."""

    def __init__(self, program: Program, device: str, timeout_s: float) -> None:
        """Have them built; waits for nothing.

        Args:
            program: whose kernels.
            device: that it runs on, ``cpu`` or a GPU.
            timeout_s: seconds after which nothing is waited for any more.
        """
        self._timeout_s = timeout_s
        #: C++ kernels of the program.
        self._kernels = 0
        self._cpp: Future[float] | None = None
        self._triton: Pooled | None = None
        if device == "cpu":
            self._kernels = len(kernel_codes(program.source))
            self._cpp = _pool.submit(_build, program, timeout_s)
        else:
            self._triton = pooled_kernels(program.source, program.settings)

    @property
    def done(self) -> bool:
        """Whether all is built, or has failed to be."""
        if self._cpp is not None:
            return self._cpp.done()
        return self._triton is None or self._triton.done

    def alone_s(self, took_s: float) -> float:
        """Seconds that Inductor would take for the same, which compiles each C++ kernel by itself.

        ``took_s``: those that it took here, where most is done once for all of them.
        """
        if self._cpp is None or not self._kernels:
            return took_s
        one_s = took_s * (BUILD_AT_LEAST + (1 - BUILD_AT_LEAST) / self._kernels)
        return max(took_s, one_s * math.ceil(self._kernels / most_compilers()))

    def wait(self) -> float:
        """Wait until all is built, or not; the seconds that it took, not those that it waited."""
        if self._cpp is not None:
            try:
                return self._cpp.result()
            except Exception:
                log.debug("kernels are not built ahead", exc_info=True)
                return 0.0
        assert self._triton is not None
        if not self._triton.ahead:
            return _KERNEL_S * self._triton.count
        return self._triton.wait(self._timeout_s)


class LibraryBuilding:
    """The C++ kernels of several programs on their way, each distinct one once."""

    def __init__(self, programs: Sequence[Program], timeout_s: float) -> None:
        """Have them built; waits for nothing.

        Args:
            programs: whose kernels.
            timeout_s: seconds after which no compiler is waited for any more.
        """
        told = [(program.source, program.settings) for program in programs]
        self._library = _pool.submit(build_library, told, timeout_s=timeout_s)

    def wait(self) -> str:
        """Wait until all are built, or not; what ``build_library`` gives."""
        return self._library.result()


def _build(program: Program, timeout_s: float) -> float:
    start = time.perf_counter()
    build_library([(program.source, program.settings)], timeout_s=timeout_s)
    return time.perf_counter() - start


def start_building(program: Program, device: str, timeout_s: float) -> Building:
    """Have the kernels of a program built; :func:`finish_building` waits for them."""
    building = Building(program, device, timeout_s)
    _under_way.append(building)
    return building


def compile_in_pool(program: Program, device: str) -> None:
    """Have a candidate's Triton kernels compiled from now on, where processes wait for such work.

    C++ kernels of candidates are built together once all of them are known.
    """
    if device != "cpu":
        pooled_kernels(program.source, program.settings)
        ask_for_blocks(program.source, program.settings)


def finish_building() -> None:
    """Wait until all that was started is built, or not."""
    while _under_way:
        _under_way.pop().wait()
