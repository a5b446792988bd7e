"""Kernels for which Inductor knows several block sizes: that all take the same.

Inductor times them when a kernel first runs, each with the cache emptied before, and keeps the best
beside the kernel's source. What follows another kernel in a program finds much of its inputs in the
cache, and for kernels of some microseconds the order is another one then. So a measuring process
times them warm, and a program that runs what was measured takes what was found there, also where
its kernels were loaded before.

Inductor's methods are replaced once a process. Which block sizes there are is Inductor's to say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

from fusewise.compiler.inductor.replacing import once

#: Seconds of one call, which launches on the current stream and can be repeated.
_Clock = Callable[[Callable[[], Any]], float]

#: Inductor's own limit of registers that are spilled, where a kernel's metadata have none.
_SPILLED = 16
#: What a kernel changes is copied before it is timed, up to this.
_MOST_COPIED_BYTES = 1 << 28

#: Files of kernels that were measured in another process.
_measured: set[str] = set()
#: What kernels of this process are timed by while they are tuned; None for Inductor's own.
_clock: _Clock | None = None


def tune_warm(seconds: _Clock) -> None:
    """Have the kernels of this process tuned with a warm cache. For processes that measure.

    Args:
        seconds: of one call, which launches on the current stream and can be repeated.
    """
    global _clock  # noqa: PLW0603
    _clock = seconds
    _dispatch_timing()


@once
def _dispatch_timing() -> None:
    # Not needed on a CPU.
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    original: Any = CachingAutotuner.bench

    @functools.wraps(original)
    def bench(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> float:
        clock = _clock
        if clock is None or not _repeatable(self, launcher, args, kwargs):
            return float(original(self, launcher, *args, **kwargs))
        copies, named = self.clone_args(*args, **kwargs)

        def launch() -> None:
            launcher(*copies, **named, stream=torch.cuda.current_stream().cuda_stream)

        return 1e3 * clock(launch)

    CachingAutotuner.bench = bench  # type: ignore[method-assign]


def _repeatable(kernel: Any, launcher: Any, args: Any, kwargs: Any) -> bool:
    """Whether a kernel can be launched again and again on copies of what it changes."""
    if kwargs.get("with_profiler") or kernel.device_props.type != "cuda" or kernel.custom_kernel:
        return False
    # Inductor leaves such a one out without timing it.
    if (launcher.n_spills or 0) > kernel.inductor_meta.get("spill_threshold", _SPILLED):
        return False
    named = {**dict(zip(kernel.fn.arg_names, args, strict=False)), **kwargs}
    changed = [named[name] for name in kernel.mutated_arg_names if name in named]
    return (
        not kernel.reset_to_zero_arg_names
        # Indices that were overwritten would send a second launch out of bounds.
        and all(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in changed)
        and sum(v.untyped_storage().nbytes() for v in changed) <= _MOST_COPIED_BYTES
    )


def take_what_was_measured(source: str) -> None:
    """Have the kernel of this source, when it first runs, take what a measuring process found.

    Where nothing was found, Inductor tunes it as ever.
    """
    _, path = PyCodeCache.write(source)
    _measured.add(path)
    _dispatch_choice()


@once
def _dispatch_choice() -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    original: Any = CachingAutotuner.benchmark_all_configs

    @functools.wraps(original)
    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = _found(self) if self.filename in _measured else None
        if found is None:
            return original(self, *args, **kwargs)
        # Only their order is looked at.
        return {launcher: float(launcher is not found) for launcher in self.launchers}

    CachingAutotuner.benchmark_all_configs = benchmark_all_configs  # type: ignore[method-assign]


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
