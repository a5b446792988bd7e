"""Which kernels a generated program has, by their code; compiles and loads none."""

from __future__ import annotations

from fusewise.compiler.inductor.cpp_kernels import definitions
from fusewise.compiler.inductor.triton_ahead import triton_kernels


def kernel_codes(source: str) -> frozenset[str]:
    """The source of each distinct C++ and Triton kernel of a program."""
    cpp = (text for _, text in definitions(source).values())
    triton = (code for _, code, _ in triton_kernels(source))
    return frozenset((*cpp, *triton))
