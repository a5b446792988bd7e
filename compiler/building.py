"""C++ kernels of a program built while the next programs are still being generated.

The compiler runs in processes of its own, so that a thread which waits for it holds up nothing.
Whatever goes wrong there is left to who loads the program.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from fusewise.compiler.inductor.cpp_batch import build_library
from fusewise.compiler.inductor.driver import Program

log = logging.getLogger(__name__)

_pool: Final = ThreadPoolExecutor(1, thread_name_prefix="fusewise-building")
_under_way: list[Future[str]] = []


def start_building(program: Program, timeout_s: float) -> None:
    """Have the kernels of a program built; waits for nothing."""
    _under_way.append(
        _pool.submit(build_library, [(program.source, program.settings)], timeout_s=timeout_s)
    )


def finish_building() -> None:
    """Wait until all that was started is built, or not."""
    while _under_way:
        try:
            _under_way.pop().result()
        except Exception:
            log.debug("kernels are not built ahead", exc_info=True)
