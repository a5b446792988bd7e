"""One assembler for kernels, whichever process compiles them.

PyTorch may come with an assembler (ptxas) of its own beside Triton's. Inductor's pool uses it from
the start; in other processes Inductor turns to it when it first compiles a kernel there, by when
Triton has mostly asked for a version, and keeps the wrong one. Triton's cache goes by that version:
what the pool compiled is then not found, and compiled again.
"""

from __future__ import annotations

from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

from fusewise.compiler.inductor.replacing import once


@once
def use_pools_assembler() -> None:
    """Have this process's Triton compile, and look for what is compiled, as Inductor's pool does.

    Does nothing where there is no Triton for NVIDIA's devices.
    """
    try:
        from triton.backends.nvidia import compiler
    except ImportError:
        return
    _set_triton_ptxas_path()
    remembered = (
        getattr(compiler, "get_ptxas_version", None),
        getattr(getattr(compiler, "CUDABackend", None), "hash", None),
    )
    for function in remembered:
        forget = getattr(function, "cache_clear", None)
        if forget is not None:
            forget()
