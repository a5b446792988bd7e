"""Triton kernels that Inductor's pool of processes compiles while programs are generated.

Inductor sends a kernel to its pool as soon as its code is written, and what comes back is in the
caches on disk. A process that is to run the program then only has to wait for that here, and needs
no pool of its own. Loads no kernel.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels

from fusewise.compiler.inductor.block_sizes import without_steps
from fusewise.compiler.inductor.shorter_ahead import ask_for_shorter

#: Name that kernels are compiled under in a generated program.
_CALL = "async_compile.triton"


def triton_kernels(source: str) -> Iterator[tuple[str, str, str]]:
    """Name, source and kind of device of the Triton kernels that a program defines."""
    if _CALL not in source:
        return
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        # Loading it tells why.
        return
    for statement in statements:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == _CALL:
            name, code = (ast.literal_eval(argument) for argument in call.args)
            keywords = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            yield name, code, keywords.get("device_str", "cuda")


def await_pool(timeout_s: float) -> bool:
    """Wait until Inductor's pool has started; whether it has, which is never so without one.

    It is a process that imports what Inductor needs anew, and may take as long as a small program
    takes to compile.
    """
    if AsyncCompile.use_process_pool():
        return True
    starting = AsyncCompile._ready_future
    if starting is None:
        return False
    wait([starting], timeout_s)
    return bool(AsyncCompile.use_process_pool())


def await_kernels(source: str, settings: Mapping[str, Any], timeout_s: float) -> bool:
    """Wait until a program's Triton kernels are compiled, or have failed to.

    Args:
        source: the program.
        settings: Inductor's, that it was generated under.
        timeout_s: seconds to wait at most.

    Returns:
        Whether any pool was at work on all of them: a process that loads the program then finds
        them on disk.
    """
    pooled = pooled_kernels(source, settings)
    pooled.wait(timeout_s)
    return pooled.done if pooled.ahead else not pooled.count


class Pooled:
    """The Triton kernels of a program in Inductor's pool."""

    def __init__(self, futures: Sequence[Future[Any]], count: int, *, ahead: bool) -> None:
        #: Kernels of the program.
        self.count = count
        #: Whether a pool is at work on them.
        self.ahead = ahead
        self._futures = list(futures)
        self._began = time.monotonic()
        self._ended = self._began
        for future in self._futures:
            future.add_done_callback(self._one_ended)

    def _one_ended(self, _future: Any) -> None:
        self._ended = max(self._ended, time.monotonic())

    @property
    def done(self) -> bool:
        """Whether all are compiled, or have failed to be."""
        return all(future.done() for future in self._futures)

    def wait(self, timeout_s: float) -> float:
        """Wait for them at most ``timeout_s``; seconds that the pool took, as far as it came."""
        wait(self._futures, timeout_s)
        return (self._ended if self.done else time.monotonic()) - self._began


def pooled_kernels(source: str, settings: Mapping[str, Any], but: Collection[str] = ()) -> Pooled:
    """Have Inductor's pool compile a program's Triton kernels, if it has one; waits for nothing.

    Args:
        source: the program.
        settings: Inductor's, that it was generated under.
        but: names of kernels that need not be.
    """
    with inductor_config.patch(dict(settings)):
        kernels = [kernel for kernel in triton_kernels(source) if kernel[0] not in but]
        if not kernels or not AsyncCompile.use_process_pool():
            return Pooled([], len(kernels), ahead=False)
        futures = [future for kernel in kernels for future in _futures(*kernel)]
    return Pooled([f for f in futures if f is not None], len(kernels), ahead=True)


def _futures(name: str, code: str, device: str) -> Iterator[Future[Any] | None]:
    """What the pool compiles of a kernel: what is loaded first, then what that may lead to.

    A kernel that is tuned has mostly been asked for before, as Inductor's own program has it.
    """
    plain = without_steps(code)
    yield _future(name, plain, device)
    yield ask_for_shorter(name, plain) if device == "cuda" else None


def _future(name: str, code: str, device: str) -> Future[Any] | None:
    """The pool's own future, as Inductor's would load the kernel; None where it is compiled."""
    found: Any = CompiledTritonKernels.get(code)
    if found is None:
        found = AsyncCompile().triton(name, code, device)
    pooled = getattr(found, "future", None)
    return pooled if isinstance(pooled, Future) else None
