"""Timing a kernel with several block sizes, in turns, next to where it is timed itself.

All are launched on the same copies of what the kernel changes, warm. What the kernel of the program
is launched with stays as it is. Compiles nothing that is in the cache on disk.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from fusewise.compiler.inductor.launchers import (
    agree,
    can_be_repeated,
    launch_of,
    load_sizes,
    spills,
)
from fusewise.compiler.measuring import cuda_timing
from fusewise.compiler.measuring.sampling import BlockTimes
from fusewise.schedule.block_sizes import BlockSizes
from fusewise.search.samples import summary

log = logging.getLogger(__name__)

#: Seconds for loading the block sizes of a kernel, and for making ready to time them.
_LOADING_S, _READY_S = 2.0, 1.0
#: Rounds at the least and the most, and seconds for each size after which there are enough.
_ROUNDS, _MOST_ROUNDS, _EACH_S = 3, 9, 0.005
#: A launch that takes longer is timed by itself: what launching it takes does not count then.
_SLOW_S = 2e-3

#: Block sizes by the name of a kernel in a program.
BlockSizesOf = Mapping[str, Sequence[BlockSizes]]
#: Gives the seconds of a launch; gives a function that takes one sample of it, seconds.
Look = Callable[[Callable[[], Any]], float]
Clock = Callable[[Callable[[], Any]], Callable[[], float]]


class LoadedBlocks:
    """Kernels of a program, each loaded with several block sizes."""

    def __init__(self, module: ModuleType, wanted: BlockSizesOf) -> None:
        """Load them, which needs a device but has it do nothing.

        Args:
            module: the program, loaded.
            wanted: compiled sizes.
        """
        kernels = {name: getattr(module, name) for name in wanted if hasattr(module, name)}
        self._launchers = {name: _loaded(kernel, wanted[name]) for name, kernel in kernels.items()}

    def take(self, name: str) -> list[Any | None]:
        """What the kernel is loaded with, once: another call of it is not timed again."""
        return self._launchers.pop(name, [])


def _loaded(kernel: Any, wanted: Sequence[BlockSizes]) -> list[Any | None]:
    """A launcher for each size in their order, None where there can be none, until time is up."""
    own: Sequence[Any] = getattr(kernel, "launchers", ())
    if not own:
        return []
    until = time.monotonic() + _LOADING_S
    found: list[Any | None] = []
    for sizes in wanted:
        if time.monotonic() > until:
            break
        found.append(load_sizes(kernel, own[0].config, sizes))
    return found


def time_blocks(
    kernel: Any,
    launchers: Sequence[Any | None],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    look: Look | None = None,
    clock: Clock = cuda_timing.samples,
) -> BlockTimes | None:
    """Time a kernel with each of several block sizes.

    Args:
        kernel: that a program launches with ``args`` and ``kwargs``.
        launchers: of it with each size, Inductor's own first; None for one that cannot be had.
        args: of the launch.
        kwargs: of the launch.
        look: takes the time of one launch; None for the device's own clock.
        clock: as :func:`~fusewise.compiler.measuring.cuda_timing.samples`.

    Returns:
        A time for each launcher, the last ones left out where time was up, None for one that
        computes something else than the first; None where a launch cannot be repeated.
    """
    if not launchers or launchers[0] is None or not can_be_repeated(kernel, args, dict(kwargs)):
        return None
    own = launchers[0]
    copies, named = kernel.clone_args(*args, **kwargs)
    look = look or cuda_timing.Stopwatch().time
    taken: list[list[float]] = []
    samples: list[Callable[[], float] | None] = []
    until = time.monotonic() + _READY_S
    for launcher in launchers:
        if time.monotonic() > until:
            break
        times: list[float] = []
        taken.append(times)
        samples.append(None)
        if launcher is None or spills(kernel, launcher):
            continue
        try:
            # Its own comes last: what was written wrongly is right again.
            if launcher is not own and not agree(kernel, launcher, own, args, dict(kwargs)):
                log.warning("%s computes something else: %s", kernel.fn.__name__, launcher.config)
                continue
            launch = launch_of(launcher, copies, named)
            look(launch)
            first = look(launch)
            if first > _SLOW_S:
                times += [first, look(launch)]
            else:
                samples[-1] = clock(launch)
        except Exception:
            log.debug("%s does not run: %s", kernel.fn.__name__, launcher.config, exc_info=True)
    return _in_turns(taken, samples)


def _in_turns(
    taken: Sequence[list[float]], samples: Sequence[Callable[[], float] | None]
) -> BlockTimes:
    """Rounds over all that can be sampled, so that a change of pace meets all alike.

    ``taken``: of each, what it has by now; is added to.
    """
    began = time.monotonic()
    rounds = 0
    while rounds < _MOST_ROUNDS:
        if rounds >= _ROUNDS and time.monotonic() - began > _EACH_S * len(samples):
            break
        rounds += 1
        for times, sample in zip(taken, samples, strict=True):
            if sample is not None:
                times.append(sample())
    found = [summary(times) if times else None for times in taken]
    spreads = [one.spread for one in found if one is not None and one.count >= _ROUNDS]
    return BlockTimes(
        us=tuple(None if one is None else 1e6 * one.median for one in found),
        rounds=rounds,
        spread=statistics.median(spreads) if spreads else None,
    )
