"""Of which scheduler nodes each Triton kernel is that Inductor generates, by the kernel's name.

Inductor's method is replaced once a process by a dispatcher that asks a context variable: with
nothing active in this context, Inductor acts as if fusewise were not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from fusewise.compiler.inductor.replacing import holding, once


class Launch(NamedTuple):
    """One launch of a kernel in a program."""

    #: Its name, which several launches of one code share.
    kernel: str
    #: Names of the scheduler nodes that are computed.
    nodes: frozenset[str]


#: Called with each launch whose code is written.
_listeners: ContextVar[tuple[Callable[[Launch], object], ...]] = ContextVar(
    "fusewise_launches", default=()
)


@contextmanager
def noting_kernels() -> Iterator[Mapping[str, frozenset[str]]]:
    """Note the kernels whose code is written in this context.

    Yields:
        The nodes of each by its name; those of the first of several launches of one code.
    """
    noted: dict[str, frozenset[str]] = {}
    with _listening(lambda launch: noted.setdefault(launch.kernel, launch.nodes)):
        yield noted


@contextmanager
def noting_launches() -> Iterator[Sequence[Launch]]:
    """Note each launch of a kernel that is written in this context, in its order."""
    noted: list[Launch] = []
    with _listening(noted.append):
        yield noted


@contextmanager
def _listening(listener: Callable[[Launch], object]) -> Iterator[None]:
    _dispatch_definitions()
    with holding(_listeners, (*_listeners.get(), listener)):
        yield


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
        if listeners := _listeners.get():
            launch = Launch(str(name), kernel_nodes(kernel))
            for listener in listeners:
                listener(launch)
        return name

    scheduling.define_kernel = define_kernel
