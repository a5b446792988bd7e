"""Triton kernels that Inductor's pool of processes compiles while programs are generated.

Inductor sends a kernel to its pool as soon as its code is written, and what comes back is in the
caches on disk. A process that is to run the program then only has to wait for that here, and needs
no pool of its own. Loads no kernel.
"""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels

from fusewise.compiler.inductor.shorter_ahead import ask_for_shorter

log = logging.getLogger(__name__)

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


def await_kernels(
    source: str, settings: Mapping[str, Any], timeout_s: float, but: Collection[str] = ()
) -> bool:
    """Wait until a program's Triton kernels are compiled, or have failed to.

    Args:
        source: the program.
        settings: Inductor's, that it was generated under.
        timeout_s: seconds to wait at most.
        but: names of kernels that need not be.

    Returns:
        Whether any pool was at work on all of them: a process that loads the program then finds
        them on disk.
    """
    until = time.monotonic() + timeout_s
    with inductor_config.patch(dict(settings)):
        kernels = [kernel for kernel in triton_kernels(source) if kernel[0] not in but]
        if not kernels or not AsyncCompile.use_process_pool():
            return not kernels
        # All are asked for before any is waited for.
        futures = [future for kernel in kernels for future in _futures(*kernel)]
    for future in futures:
        try:
            future.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False
        except (Exception, CancelledError):
            # Who loads the program meets it again.
            log.debug("a kernel does not compile", exc_info=True)
    return True


class Pooled:
    """The Triton kernels of a program in Inductor's pool."""

    def __init__(self, futures: Sequence[Any], count: int, *, ahead: bool) -> None:
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
    return Pooled([f for f in futures if isinstance(f, Future)], len(kernels), ahead=True)


def _futures(name: str, code: str, device: str) -> Iterator[Any]:
    """What the pool compiles of a kernel: what is loaded first, then what that may lead to."""
    yield _future(name, code, device)
    shorter = ask_for_shorter(name, code) if device == "cuda" else None
    if shorter is not None:
        yield shorter


def _future(name: str, code: str, device: str) -> Any:
    """The pool's own future: Inductor's would load the kernel in this process."""
    found: Any = CompiledTritonKernels.get(code)
    if found is None:
        found = AsyncCompile().triton(name, code, device)
    pooled = getattr(found, "future", None)
    return _Done() if pooled is None else pooled


class _Done:
    """Stands for what is compiled already."""

    def result(self, timeout_s: float) -> None:
        del timeout_s
