"""What every process would find out again about the C++ compiler, found out once for all of them.

Inductor builds and loads a library for each set of vector instructions before it generates C++,
one process at a time under a file lock: many processes that start together wait for minutes, and
one that stands still with the lock holds up all others. Compiles only those probes; no kernel is
built here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

from fusewise.schedule.errors import UnsupportedError

#: Names of the sets that work, for children.
_VARIABLE = "FUSEWISE_VECTORS"
#: Between names, which may be of several words.
_BETWEEN = ","


def probed_vectors() -> dict[str, str]:
    """Variables for child processes that are to trust this one's probes: :func:`trust_probes`.

    Raises:
        UnsupportedError: there is no C++ compiler.
    """
    with inductor_config.patch({"cpp.vec_isa_ok": True}):
        offered = cpu_vec_isa.valid_vec_isa_list.__wrapped__()
    try:
        with ThreadPoolExecutor() as pool:
            # Each waits for a compiler and a process that loads what it built.
            working = list(pool.map(bool, offered))
    except InvalidCxxCompiler as error:
        raise UnsupportedError(
            "no C++ compiler that works",
            subject=f"torch._inductor.config.cpp.cxx {inductor_config.cpp.cxx}",
            remedy="install g++, or name a compiler in the variable CXX",
        ) from error
    names = [str(isa) for isa, works in zip(offered, working, strict=True) if works]
    return {_VARIABLE: _BETWEEN.join(names)}


def trust_probes(variables: Mapping[str, str] = os.environ) -> None:
    """Take over what the parent of this process found out; without that, do nothing.

    ``variables``: of the parent's, where they did not come with the start of this process.
    """
    told = variables.get(_VARIABLE)
    if told is None:
        return
    names = frozenset(told.split(_BETWEEN))

    def check_build(self: cpu_vec_isa.VecISA, code: str) -> bool:  # noqa: ARG001
        return str(self) in names

    cpu_vec_isa.VecISA.check_build = check_build  # type: ignore[method-assign]
