"""C++ definitions put into the files of Inductor's kernels that use them.

Whoever writes other code into kernels brings a namespace of its own. Nothing here knows what is in
it, nor when it is wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._inductor.codegen import cpp
from torch._inductor.virtualized import V

_INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>\n"


def rewrite_kernels(rewritten: Callable[[str], str], space: str, source: str) -> None:
    """Have the code of each kernel that Inductor generates from now on go through a function.

    Args:
        rewritten: the code of a kernel as it is to be; as it was where nothing is wanted.
        space: namespace of what it may use then.
        source: that defines this namespace.
    """
    original = cpp.KernelGroup.codegen_group

    @functools.wraps(original)
    def codegen_group(self: Any, name: str | None = None) -> str:
        code = rewritten(original(self, name))
        # Where the wrapper is C++, all kernels of a program are in one file.
        return _with_definitions(code, space, source, once_a_file=V.graph.cpp_wrapper)

    cpp.KernelGroup.codegen_group = codegen_group  # type: ignore[method-assign]


def _with_definitions(code: str, space: str, source: str, *, once_a_file: bool = False) -> str:
    """The source of a kernel with the namespace that it uses; as it is where it does not.

    ``once_a_file``: sources of several kernels stand in one file as they are, so only the first
    defines it. Elsewhere each has a namespace, where a macro of another would be in the way.

    Raises:
        RuntimeError: the kernel does not begin as Inductor's do.
    """
    if f"{space}::" not in code:
        return code
    if _INCLUDE not in code:
        raise RuntimeError("Inductor's kernels do not begin with its header any more")
    if once_a_file:
        guard = f"FUSEWISE_{space.upper()}"
        source = f"#ifndef {guard}\n#define {guard}\n{source}#endif\n"
    return code.replace(_INCLUDE, f"{_INCLUDE}{source}", 1)
