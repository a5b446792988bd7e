"""Block sizes of kernels that tune themselves, compiled by Inductor's pool while others wait.

Coordinate descent compiles one variant of a kernel, runs it, and only then knows which to compile
next: most of its time is compiling, on one core of many. Here all variants near to where it starts
are compiled at once, before the kernel first runs, and whoever runs it only has to time them. Loads
no compiled kernel.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, get_compile_threads
from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.block_sizes import (
    STEPS,
    cache_places,
    compile_sizes,
    tunes_itself,
    without_steps,
)
from fusewise.compiler.inductor.found_blocks import Told
from fusewise.compiler.inductor.rounds import Begin, Coming, Rounds
from fusewise.compiler.inductor.triton_ahead import await_pool, triton_kernels
from fusewise.compiler.inductor.worth_trying import most_ranked, worth_trying
from fusewise.schedule.block_sizes import BlockSizes

log = logging.getLogger(__name__)

#: By the path of its source, the block sizes that each kernel is compiled with.
Compiled = Mapping[str, tuple[BlockSizes, ...]]

#: Block sizes for each process of the pool, of one kernel and of all of a program together, and how
#: many of a kernel at the least and the most.
_EACH, _TOGETHER, _FEWEST, _MOST = 2, 8, 8, 32
#: Seconds that compiling with one of them takes a process, and that timing one takes.
_COMPILED_S, _TIMED_S = 0.4, 0.01
#: Seconds that a kernel is tuned for step by step where there is no pool, and that one is for which
#: Inductor tries several block sizes.
_STEPS_S, _SEVERAL_S = 3.0, 0.2
#: Seconds after which no process begins with another.
_COMPILING_S: Final = 6.0
#: Seconds for which a pool that starts is waited for.
_STARTING_S: Final = 10.0
#: Kernels that are remembered to have been asked for.
_REMEMBERED: Final = 256


@dataclass(frozen=True)
class _Asked:
    """Block sizes of one kernel on their way."""

    futures: Mapping[BlockSizes, Future[bool]]
    #: Moment of ``time.time`` after which none is begun any more.
    until: float

    def compiled(self, moment: float = math.inf) -> tuple[BlockSizes, ...]:
        """Those that are compiled at a ``moment``, or when none is begun any more; waits for it."""
        wait(self.futures.values(), max(0.0, min(moment, self.until) - time.time()))
        return tuple(sizes for sizes, future in self.futures.items() if _succeeded(future))


class _Kernel(NamedTuple):
    """A kernel whose block sizes may be tried."""

    name: str
    #: The file of its source, and that of the same as it is where nothing is tuned.
    path: str
    plain: str
    code: str


#: By the file of a kernel's source as it is where nothing is tuned: block sizes are asked for once,
#: whether or not its program says by then that it is tuned.
_asked: OrderedDict[str, _Asked] = OrderedDict()


def sizes_of_each() -> int:
    """How many block sizes are compiled for one kernel, at the most."""
    return _sizes(1)


def _sizes(kernels: int) -> int:
    """How many for each of some kernels: what is asked for later has to wait until all are done."""
    processes = get_compile_threads()
    most = max(_FEWEST, min(_MOST, _EACH * processes, _TOGETHER * processes // max(1, kernels)))
    return min(most, most_ranked() or most)


def compiling_s() -> float:
    """Seconds that compiling the block sizes of one kernel takes, all processes at work on it."""
    return sizes_of_each() * _COMPILED_S / get_compile_threads()


def timing_s(codes: Iterable[str]) -> float:
    """Seconds that kernels with these sources take to be tuned, once they are compiled."""
    each = _TIMED_S * sizes_of_each() if get_compile_threads() > 1 else _STEPS_S
    return sum(each if STEPS in code else _SEVERAL_S for code in codes if tunes_itself(code))


def ask_for_blocks(source: str, settings: Mapping[str, Any]) -> None:
    """Have Inductor's pool compile the block sizes that a program's kernels may be tuned to.

    Waits for nothing, and does nothing where there is no pool or none of them tunes itself.

    Args:
        source: the program.
        settings: Inductor's, that it was generated under.
    """
    if STEPS in source:
        compile_blocks({kernel.name: kernel.code for kernel in _tuned(source)}, settings)


def compile_blocks(kernels: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """Have Inductor's pool compile the block sizes that kernels may be tuned to.

    Whether a kernel says that it is tuned makes no difference to what is compiled. Waits for
    nothing, and does nothing where there is no pool.

    Args:
        kernels: their sources by their names.
        settings: Inductor's, that they were generated under.
    """
    with inductor_config.patch(dict(settings)):
        if not kernels or not AsyncCompile.use_process_pool():
            return
        every = [_kernel(name, code) for name, code in kernels.items()]
        new = [kernel for kernel in every if kernel.plain not in _asked]
        names = {kernel.plain: kernel.name for kernel in new}
        _submit(names, _worth_trying(new), cache_places())


def compile_told(told: Iterable[Told]) -> None:
    """Have the pool compile kernels with the block sizes that they know, and wait for it."""
    kernels = {one.path: one for one in told}
    if not kernels or not AsyncCompile.use_process_pool():
        return
    names = {path: one.name for path, one in kernels.items()}
    _submit(names, {path: [one.sizes] for path, one in kernels.items()}, cache_places())
    futures = [f for path in kernels for f in _asked[path].futures.values()]
    wait(futures, _COMPILING_S)


def _tuned(source: str) -> list[_Kernel]:
    """The kernels of a program that are tuned step by step."""
    if STEPS not in source:
        return []
    return [
        _kernel(name, code)
        for name, code, device in triton_kernels(source)
        if STEPS in code and device == "cuda"
    ]


def _kernel(name: str, code: str) -> _Kernel:
    path, plain = (PyCodeCache.write(one)[1] for one in (code, without_steps(code)))
    return _Kernel(name, path, plain, code)


def _worth_trying(kernels: Sequence[_Kernel]) -> dict[str, list[BlockSizes]]:
    """Block sizes to try for each of some kernels, by the file that they are compiled from.

    What a kernel was tuned to before stands beside its own source.
    """
    most = _sizes(len(kernels))
    return {one.plain: worth_trying(one.path, one.name, one.code, most) for one in kernels}


def _submit(
    names: Mapping[str, str],
    lists: Mapping[str, Sequence[BlockSizes]],
    environment: Mapping[str, str],
) -> None:
    """The nearest of all kernels come first: time may be up before the last is compiled."""
    until = time.time() + _COMPILING_S
    pool: Any = AsyncCompile.process_pool()
    futures: dict[str, dict[BlockSizes, Future[bool]]] = {path: {} for path in lists}
    for turn in itertools.zip_longest(*lists.values()):
        for path, sizes in zip(lists, turn, strict=True):
            if sizes is not None:
                futures[path][sizes] = pool.submit(
                    compile_sizes, path, names[path], sizes, environment, until
                )
    for path, own in futures.items():
        _asked[path] = _Asked(own, until)
    while len(_asked) > _REMEMBERED:
        _asked.popitem(last=False)


def await_blocks(source: str, timeout_s: float) -> Compiled:
    """Wait until block sizes are compiled that were asked for, or there is no time for more.

    Args:
        source: the program.
        timeout_s: seconds to wait at most.

    Returns:
        What is compiled, Inductor's own block sizes first.
    """
    moment = time.time() + timeout_s
    asked = {one.path: _asked[one.plain] for one in _tuned(source) if one.plain in _asked}
    compiled = {path: its.compiled(moment) for path, its in asked.items()}
    return {path: sizes for path, sizes in compiled.items() if sizes}


def rounds_to_come(source: str) -> Mapping[str, Rounds]:
    """By the path of a kernel's source, the rounds in which its block sizes are tried.

    The first waits for the pool: for what was asked for, and for others that it starts at all. For
    kernels that have no other block sizes nothing comes: they stay as they are.

    Args:
        source: the program.
    """
    tuned = _tuned(source)
    # Asking for the pool starts it.
    if not tuned or not compiles_blocks():
        return {}
    environment = cache_places()
    rounds = {kernel.path: Rounds(tuple) for kernel in tuned}
    new: list[_Kernel] = []
    for kernel in tuned:
        asked = _asked.get(kernel.plain)
        if asked is None:
            new.append(kernel)
        elif asked.futures:
            rounds[kernel.path] = Rounds(asked.compiled, _beginning(kernel, environment))
    lists = {path: sizes for path, sizes in _worth_trying(new).items() if sizes}
    names = {kernel.plain: kernel.name for kernel in new if kernel.plain in lists}

    def ask(path: str) -> tuple[BlockSizes, ...]:
        if path not in _asked:
            # A pool that does not start is waited for once.
            there = await_pool(_STARTING_S)
            _submit(names, lists if there else dict.fromkeys(lists, ()), environment)
        return _asked[path].compiled()

    for kernel in new:
        if kernel.plain in lists:
            first = functools.partial(ask, kernel.plain)
            rounds[kernel.path] = Rounds(first, _beginning(kernel, environment))
    return rounds


def _beginning(kernel: _Kernel, environment: Mapping[str, str]) -> Begin:
    """What has the pool compile more block sizes of a kernel."""
    name, path = kernel.name, kernel.plain

    def begin(sizes: Sequence[BlockSizes]) -> Coming:
        if not AsyncCompile.use_process_pool():
            return tuple
        try:
            _submit({path: name}, {path: sizes}, environment)
        except (RuntimeError, OSError):
            # A pool that was shut down meanwhile is no reason for a program to fail.
            log.debug("no more block sizes for %s", name, exc_info=True)
            return tuple
        return _asked[path].compiled

    return begin


def compiles_blocks() -> bool:
    """Whether Inductor has a pool that can compile block sizes, or one that starts."""
    return AsyncCompile.use_process_pool() or AsyncCompile._ready_future is not None


def _succeeded(future: Future[bool]) -> bool:
    if not future.done():
        return False
    try:
        return future.result()
    except (Exception, CancelledError):
        # Not all sizes that a kernel may have can be compiled.
        log.debug("block sizes do not compile", exc_info=True)
        return False
