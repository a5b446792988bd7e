"""Hashes of PyTorch's and Triton's own code, told to a process that would compute them anew.

All that is compiled is kept under them. Each process reads thousands of files for them, half a
second beside an H200, before it finds the first kernel that another one has compiled.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from torch._inductor.codecache import torch_key
from torch._inductor.runtime import triton_compat


class CodeKeys(msgspec.Struct, frozen=True):
    """What this process has found out."""

    torch: bytes
    #: "" where there is no Triton.
    triton: str


def code_keys() -> CodeKeys:
    """Those of this process, which compiling computes in any case."""
    return CodeKeys(torch_key(), triton_compat.triton_key() if triton_compat.HAS_TRITON else "")


def take_code_keys(keys: CodeKeys) -> None:
    """Have this process take them as its own. For one that imports the same packages."""
    kept: Any = torch_key
    kept.clear()
    kept.set(keys.torch)
    if keys.triton:
        # Triton asks for it where it is defined.
        defined_in = sys.modules[triton_compat.triton_key.__module__]
        defined_in.triton_key = lambda: keys.triton  # type: ignore[attr-defined]
