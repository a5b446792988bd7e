"""Kernels with several block sizes: all of them timed warm, against each other, and kept.

Inductor times block sizes when a kernel first runs, each by itself and with the cache emptied
before, and keeps the best beside the kernel's source. What follows another kernel in a program
finds much of its inputs in the cache, and for kernels of some microseconds the order is another one
then; and of two that are as good, one noisy time each takes either. So kernels of fusewise's are
timed warm, in rounds, where they are measured and where they run, and what a measuring process
found is what a program takes, also where its kernels were loaded before.

A kernel that is tuned step by step compiles a variant for each step. Where those around its start
are compiled already (see ``blocks_ahead``), they are all timed instead, or round after round while
the program is used (see ``rounds``).

Inductor's methods are replaced once a process, for kernels of other programs they do what they did.
"""

from __future__ import annotations

import functools
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.assembler import use_pools_assembler
from fusewise.compiler.inductor.block_sizes import found_by_steps, sizes_of
from fusewise.compiler.inductor.launchers import (
    agree,
    can_be_repeated,
    launch_of,
    load_sizes,
    spills,
)
from fusewise.compiler.inductor.replacing import once
from fusewise.compiler.inductor.rounds import due, ended, has_rounds
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.schedule.errors import MeasureError
from fusewise.search.blocks import fastest

log = logging.getLogger(__name__)

#: Gives a function that takes one time, seconds of a launch, for a launch on the current stream
#: that can be repeated.
Clock = Callable[[Callable[[], Any]], Callable[[], float]]

#: Times of a call that is timed by itself.
_FEW = 5
#: Seconds that loading the block sizes of one kernel may take, and seconds for the rounds.
_LOADING_S, _ROUNDS_S = 2.0, 0.5

#: Files of kernels of fusewise's programs in this process.
_ours: set[str] = set()
#: By the file of a kernel, block sizes that are compiled.
_offered: dict[str, tuple[BlockSizes, ...]] = {}
#: What all kernels of this process are timed by, and what fusewise's are; None for Inductor's own.
_clock: Clock | None = None
_clock_of_ours: Clock | None = None


def tune_warm(clock: Clock) -> None:
    """Have all kernels of this process tuned with a warm cache. For processes that measure."""
    global _clock  # noqa: PLW0603
    _clock = clock
    _dispatch()


def tune_ours_warm(clock: Clock) -> None:
    """Have kernels of fusewise's programs in this process tuned with a warm cache."""
    global _clock_of_ours  # noqa: PLW0603
    _clock_of_ours = clock


def offer_blocks(compiled: Mapping[str, tuple[BlockSizes, ...]]) -> None:
    """Have kernels that would be tuned step by step take the best of these instead.

    Args:
        compiled: by the path of a kernel's source, what it is compiled with; what stands first is
            kept unless another is faster.
    """
    _offered.update(compiled)


def take_what_was_measured(source: str) -> None:
    """Have the kernel of this source, when it first runs, take what a measuring process found.

    Where nothing was found it is tuned here, as ours are.
    """
    _, path = PyCodeCache.write(source)
    _ours.add(path)
    _dispatch()


@once
def _dispatch() -> None:
    # Not needed on a CPU.
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    kernel_class: Any = CachingAutotuner
    _dispatch_shortening(kernel_class)
    _dispatch_timing(kernel_class)
    _dispatch_choice(kernel_class)
    _dispatch_steps(kernel_class)


def _dispatch_shortening(kernel_class: Any) -> None:
    original = kernel_class._dynamic_scale_rblock

    @functools.wraps(original)
    def dynamic_scale_rblock(self: Any) -> None:
        ours = _clock is not None or self.filename in _ours
        found = [found_by_steps(result.config) for result in self.compile_results]
        # What was found was timed against others. Not all releases of Inductor leave it at that.
        if not ours or not found or not all(found):
            original(self)

    kernel_class._dynamic_scale_rblock = dynamic_scale_rblock


def _dispatch_timing(kernel_class: Any) -> None:
    original = kernel_class.bench

    @functools.wraps(original)
    def bench(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> float:
        clock = _clock_for(self)
        if clock is None or spills(self, launcher) or not can_be_repeated(self, args, kwargs):
            return float(original(self, launcher, *args, **kwargs))
        sample = clock(launch_of(launcher, *self.clone_args(*args, **kwargs)))
        return 1e3 * statistics.median(sample() for _ in range(_FEW))

    kernel_class.bench = bench


def _dispatch_choice(kernel_class: Any) -> None:
    original = kernel_class.benchmark_all_configs

    @functools.wraps(original)
    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = _found(self) if self.filename in _ours else None
        if chosen is None and (self.filename in _offered or has_rounds(self)):
            # They are timed with all others.
            chosen = self.launchers[0]
        clock = _clock_for(self)
        if chosen is None and clock is not None and can_be_repeated(self, args, kwargs):
            chosen = _fastest(self, self.launchers, clock, args, kwargs)
        if chosen is None:
            return original(self, *args, **kwargs)
        # Only their order is looked at.
        return {launcher: float(launcher is not chosen) for launcher in self.launchers}

    kernel_class.benchmark_all_configs = benchmark_all_configs


def _dispatch_steps(kernel_class: Any) -> None:
    original = kernel_class.coordinate_descent_tuning

    @functools.wraps(original)
    def coordinate_descent_tuning(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
        clock = _clock_for(self)
        repeated = clock is not None and can_be_repeated(self, args, kwargs)
        if has_rounds(self):
            return _next_round(self, launcher, clock if repeated else None, args, kwargs)
        offered = _offered.get(self.filename, ())
        if clock is None or not repeated or not offered:
            return original(self, launcher, *args, **kwargs)
        began = time.time_ns()
        chosen = _best(self, launcher, offered, clock, args, kwargs)
        _keep(self, chosen, began)
        return chosen

    kernel_class.coordinate_descent_tuning = coordinate_descent_tuning


def _next_round(kernel: Any, launcher: Any, clock: Clock | None, args: Any, kwargs: Any) -> Any:
    """The fastest launcher of a kernel after another round, if one is due.

    Without a ``clock`` there is no way to time it: it stays as it is.
    """
    rounds = due(kernel)
    if rounds is None:
        return _as_it_ended(kernel, launcher)
    if clock is None:
        rounds.stop()
        return launcher
    offered = rounds.take(sizes_of(launcher.config))
    if not offered:
        return launcher
    began = time.time_ns()
    try:
        chosen = _best(kernel, launcher, offered, clock, args, kwargs)
    except torch.OutOfMemoryError:
        # There has to be room for copies of what it changes.
        log.debug("%s is not timed: no memory", kernel.fn.__name__)
        rounds.stop()
        return launcher
    last = rounds.settle(kernel, chosen.config, gained=chosen is not launcher)
    _keep(kernel, chosen, began, final=last)
    return chosen


def _as_it_ended(kernel: Any, launcher: Any) -> Any:
    """The launcher that the rounds of a kernel came to, if they are over."""
    rounds = ended(kernel)
    if rounds is None:
        return launcher
    chosen = launcher
    if rounds.best not in (None, sizes_of(launcher.config)):
        chosen = load_sizes(kernel, launcher.config, rounds.best) or launcher
    # Releases of Inductor that do not remember what they launched ask at every launch.
    chosen.config.found_by_coordesc = True
    return chosen


def _best(
    kernel: Any, launcher: Any, offered: Sequence[BlockSizes], clock: Clock, args: Any, kwargs: Any
) -> Any:
    """The fastest launcher among block sizes that computes what the kernel's own does."""
    launchers = _loaded(kernel, launcher, offered)
    chosen = _fastest(kernel, launchers, clock, args, kwargs) or launcher
    if chosen is not launcher and not agree(kernel, launcher, chosen, args, kwargs):
        # A compiler may fail at what it rarely meets.
        log.warning("%s computes something else with %s", kernel.fn.__name__, chosen.config)
        chosen = launcher
    log.debug(
        "%s: %s of %d for %s",
        kernel.fn.__name__,
        chosen.config,
        len(launchers),
        launcher.config,
    )
    return chosen


def _keep(kernel: Any, chosen: Any, began: int, *, final: bool = True) -> None:
    """Keep a launcher's block sizes beside the kernel's source; ``began``: in nanoseconds.

    Where that is not final the kernel asks again, in this process.
    """
    chosen.config.found_by_coordesc = final
    if kernel.save_cache_hook:
        kernel.save_cache_hook(chosen.config, time.time_ns() - began, found_by_coordesc=True)


def _clock_for(kernel: Any) -> Clock | None:
    if _clock is not None:
        return _clock
    # What a user captures is not to hold launches that take times.
    if kernel.filename not in _ours or torch.cuda.is_current_stream_capturing():
        return None
    return _clock_of_ours


def _loaded(kernel: Any, launcher: Any, offered: Sequence[BlockSizes]) -> list[Any]:
    """The kernel with all offered block sizes, as far as the device can hold them."""
    use_pools_assembler()
    launchers = []
    until = time.monotonic() + _LOADING_S
    for sizes in offered:
        if sizes == sizes_of(launcher.config):
            launchers.append(launcher)
            continue
        if time.monotonic() > until:
            break
        loaded = load_sizes(kernel, launcher.config, sizes)
        if loaded is not None:
            launchers.append(loaded)
    return launchers


def _fastest(
    kernel: Any, launchers: Sequence[Any], clock: Clock, args: Any, kwargs: Any
) -> Any | None:
    """The fastest launcher; the first unless another is faster beyond noise.

    None where none could be timed.

    All are timed on the same copies of what the kernel changes.
    """
    copies, named = kernel.clone_args(*args, **kwargs)
    ran: list[Any] = []
    samples: list[Callable[[], float]] = []
    for launcher in launchers:
        if spills(kernel, launcher):
            continue
        try:
            sample = clock(launch_of(launcher, copies, named))
        except Exception:
            log.debug("%s does not run: %s", kernel.fn.__name__, launcher.config, exc_info=True)
            continue
        ran.append(launcher)
        samples.append(sample)
    try:
        return ran[fastest(samples, _ROUNDS_S)] if ran else None
    except MeasureError:
        # A time that is none is no reason for a program to fail.
        log.debug("%s is not timed", kernel.fn.__name__, exc_info=True)
        return None


def _found(kernel: Any) -> Any | None:
    """The launcher whose block sizes are kept beside the kernel's source; None if there is none."""
    kept: Any = getattr(kernel.save_cache_hook, "__self__", None)
    best = None if kept is None else kept._read()
    if best is None or best.get("configs_hash") != kept.configs_hash:
        return None
    for launcher in kernel.launchers:
        told = {
            **launcher.config.kwargs,
            "num_warps": launcher.config.num_warps,
            "num_stages": launcher.config.num_stages,
        }
        if all(best.get(name) == value for name, value in told.items()):
            return launcher
    return None
