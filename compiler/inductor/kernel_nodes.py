"""Of which scheduler nodes each Triton kernel is that Inductor generates, by the kernel's name.

Inductor's method is replaced once a process by a dispatcher that asks a context variable: with
nothing active in this context, Inductor acts as if fusewise were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fusewise.compiler.inductor.replacing import holding, once

_noted: ContextVar[dict[str, frozenset[str]] | None] = ContextVar("fusewise_kernels", default=None)


@contextmanager
def noting_kernels() -> Iterator[Mapping[str, frozenset[str]]]:
    """Note the kernels whose code is written in this context.

    Yields:
        The nodes of each by its name; those of the first of several launches of one code.
    """
    _dispatch_definitions()
    noted: dict[str, frozenset[str]] = {}
    with holding(_noted, noted):
        yield noted


def kernel_nodes(kernel: Any) -> frozenset[str]:
    """Names of the scheduler nodes in a kernel, or in all kernels of one launch."""
    kernels = getattr(kernel, "sub_kernels", None) or [kernel]
    return frozenset(
        str(node.get_name())
        for one in kernels
        if getattr(one, "features", None) is not None
        for node in one.features.scheduler_nodes()
    )


@once
def _dispatch_definitions() -> None:
    # Not needed on a CPU.
    from torch._inductor.codegen.triton import TritonScheduling

    scheduling: Any = TritonScheduling
    original = scheduling.define_kernel

    @functools.wraps(original)
    def define_kernel(self: Any, source: str, node_schedule: Any, kernel: Any) -> Any:
        name = original(self, source, node_schedule, kernel)
        noted = _noted.get()
        if noted is not None:
            noted.setdefault(str(name), kernel_nodes(kernel))
        return name

    scheduling.define_kernel = define_kernel
