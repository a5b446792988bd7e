"""Block sizes of one kernel: those that Inductor starts from, their neighbours, compiling one.

Compiling is called in processes of Inductor's pool, which have neither a device nor much of
fusewise, so this imports as little as it can. Nothing here runs a kernel or looks at a device.
"""

from __future__ import annotations

import copy
import functools
import heapq
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusewise.schedule.block_sizes import BlockSizes

#: Values of a block that one thread holds, at the least and the most: with fewer, threads do the
#: same work; with many more they do not fit into registers, and the compiler takes its time.
_LEAST_HELD, _MOST_HELD = 1, 64
_THREADS_OF_WARP = 32
#: How Inductor says in the source of a kernel that it is tuned step by step, and whether to try
#: several block sizes.
STEPS = "'coordinate_descent_tuning': True"
_FEW, _SEVERAL = "'max_autotune_pointwise': False", "'max_autotune_pointwise': True"
#: All that it says about tuning step by step.
_ABOUT_STEPS = re.compile(
    r", 'coordinate_descent_(?:tuning|search_radius|check_all_directions)': [^,}]+"
)
#: Steps that a start other than Inductor's own for the kernel counts for.
_OTHERS = 2
#: Settings under which a kernel is to compute the same in every run, to the last bit.
_SAME_AGAIN = ("deterministic", "are_deterministic_algorithms_enabled")
#: Kernels that a process of the pool keeps loaded.
_LOADED = 16
#: Reductions whose rows several blocks share rest on the number of blocks, and scans on their size.
_SHARED, _SCAN = "RSPLIT", "SPLIT_SCAN"
#: Elements that a block of a reduction takes at a time up to which Inductor leaves it as it is.
_SHORT = 64
#: Where caches are, which may have changed since the pool was started.
_PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_LIBDEVICE_PATH")


def sizes_of(config: Any) -> BlockSizes:
    """The sizes in a configuration of Triton's."""
    return BlockSizes(tuple(sorted(config.kwargs.items())), config.num_warps, config.num_stages)


def config_of(sizes: BlockSizes, like: Any) -> Any:
    """The configuration of Triton's with these sizes, in all else like another of the kernel."""
    made = copy.copy(like)
    made.kwargs = dict(sizes.constants)
    made.num_warps, made.num_stages = sizes.warps, sizes.stages
    # What Inductor notes on a configuration is how it was found.
    for note in ("found_by_coordesc", "found_by_combo_autotune"):
        vars(made).pop(note, None)
    return made


def found_by_steps(config: Any) -> bool:
    """Whether a configuration is what tuning of its kernel came to."""
    return bool(getattr(config, "found_by_coordesc", False))


def load_kernel(path: str, name: str) -> Any:
    """The kernel of a source file as Inductor reads it, uncompiled and shared with nobody."""
    from torch._inductor.runtime.compile_tasks import _reload_python_module

    module = _reload_python_module(Path(path).stem, path, set_sys_modules=False)
    return getattr(module, name)


def with_several(source: str) -> str:
    """The source of a kernel with more block sizes to start from, where Inductor knows more."""
    return source.replace(_FEW, _SEVERAL)


def tunes_itself(source: str) -> bool:
    """Whether a kernel is tuned when it runs, in one way or the other."""
    return STEPS in source or _SEVERAL in source


def without_steps(source: str) -> str:
    """The source of a kernel as it is where nothing tunes it step by step.

    Whether it is tuned matters when it runs: what the compiler makes of both is the same.
    """
    return _ABOUT_STEPS.sub("", source)


def can_be_tried(kernel: Any) -> bool:
    """Whether other block sizes than Inductor's own do for a kernel, and may be tried in any order.

    Not those of Inductor's templates, nor where memory was set aside for so many blocks.
    """
    kinds = ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION")
    return (
        kernel.heuristic_type.name in kinds
        and not kernel.custom_kernel
        and not _is_to_repeat(kernel)
        and not any(_SHARED in config.kwargs for config in kernel.configs or ())
        and bool(kernel.configs)
    )


def _is_to_repeat(kernel: Any) -> bool:
    return any(kernel.inductor_meta.get(setting, False) for setting in _SAME_AGAIN)


def nearest(kernel: Any, others: Sequence[Any], most: int) -> list[BlockSizes]:
    """Block sizes worth trying: Inductor's own for the kernel, other starts, then what is near.

    Args:
        kernel: as Inductor loads it, uncompiled.
        others: configurations to start from beside its own.
        most: how many, more only if Inductor itself has more.
    """
    own = [sizes_of(config) for config in kernel.configs]
    starts = list(dict.fromkeys((*own, *(sizes_of(config) for config in others))))
    template = kernel.configs[0]
    found = dict.fromkeys(own)
    for sizes in _by_distance(kernel, starts, len(own), template):
        if len(found) >= most:
            break
        found[sizes] = None
    return list(found)


def _by_distance(
    kernel: Any, starts: Sequence[BlockSizes], own: int, template: Any
) -> Iterator[BlockSizes]:
    """All that steps lead to, those of few steps first; a step doubles or halves one size."""
    order = itertools.count()
    left = [(0 if i < own else _OTHERS, next(order), sizes) for i, sizes in enumerate(starts)]
    heapq.heapify(left)
    seen = set(starts)
    while left:
        distance, _, sizes = heapq.heappop(left)
        yield sizes
        for step in steps_from(kernel, config_of(sizes, template)):
            if step not in seen:
                seen.add(step)
                heapq.heappush(left, (distance + 1, next(order), step))


def steps_from(kernel: Any, config: Any) -> Iterator[BlockSizes]:
    """What doubling or halving one size of a configuration leads to, as far as it makes sense."""
    for name in kernel.coordesc_tuner.tunable_fields:
        for value in _neighbours(kernel, config, name):
            yield from _sound(kernel, config, {name: value})


def trades_from(kernel: Any, config: Any) -> Iterator[BlockSizes]:
    """Blocks of as many values in another shape: one side doubled, another one halved.

    Two steps of which each alone is mostly no gain: a block gets too large, or too small.
    """
    sides = [name for name in kernel.coordesc_tuner.tunable_fields if name.endswith("BLOCK")]
    for longer, shorter in itertools.permutations(sides, 2):
        values = (_neighbours(kernel, config, name) for name in (longer, shorter))
        for long, short in itertools.product(*values):
            if long > config.kwargs[longer] and short < config.kwargs[shorter]:
                yield from _sound(kernel, config, {longer: long, shorter: short})


def _neighbours(kernel: Any, config: Any, name: str) -> list[int]:
    """Twice and half a size of a configuration, as far as it has it and Inductor would try them."""
    from torch._inductor.runtime.coordinate_descent_tuner import get_field

    value = get_field(config, name)
    if value is None:
        return []
    found: list[int] = kernel.coordesc_tuner.get_neighbour_values(name, value, radius=1)
    return found


def _sound(kernel: Any, config: Any, changes: Mapping[str, int]) -> Iterator[BlockSizes]:
    """The sizes of a configuration with some changed, if they are worth trying."""
    from torch._inductor.runtime.coordinate_descent_tuner import set_field

    made = copy.copy(config)
    made.kwargs = dict(config.kwargs)
    for name, value in changes.items():
        set_field(made, name, value)
    if kernel.coordesc_tuner.is_valid_config(made) and _is_sound(kernel, made):
        yield sizes_of(made)


def _is_sound(kernel: Any, config: Any) -> bool:
    """Whether threads get a fitting amount of work, and tiles are such as hardware can copy."""
    least: Mapping[str, int] = kernel.inductor_meta.get("tma_min_block_sizes") or {}
    if any(config.kwargs.get(name, size) < size for name, size in least.items()):
        return False
    blocks = {n: v for n, v in config.kwargs.items() if n.endswith("BLOCK")}
    if not blocks and not kernel.size_hints:
        # Kernels that share a launch have blocks of their own each.
        return True
    held = math.prod(blocks.values())
    for prefix, size in (kernel.size_hints or {}).items():
        # Rows that a block holds as a whole are no argument.
        if prefix.startswith("r") and f"{prefix.upper()}BLOCK" not in blocks:
            held *= size
    each = held / (_THREADS_OF_WARP * config.num_warps)
    return bool(_LEAST_HELD <= each <= _MOST_HELD)


def shorter(kernel: Any) -> Iterator[Any]:
    """Configurations that Inductor may try once it has loaded a reduction with its own.

    Where many registers leave few blocks side by side it takes half as much at a time, as
    ``CachingAutotuner._dynamic_scale_rblock`` has it; how many there are only a device tells.

    Args:
        kernel: as Inductor loads it, uncompiled.
    """
    device, told = kernel.device_props, kernel.inductor_meta
    if kernel.heuristic_type.name != "REDUCTION" or not told.get("dynamic_scale_rblock", True):
        return
    if device.type != "cuda" or _is_to_repeat(kernel):
        return
    known = {sizes_of(config) for config in kernel.configs}
    for config in kernel.configs:
        pieces = {name: size for name, size in config.kwargs.items() if name.startswith("R")}
        blocks = math.ceil(kernel.size_hints["x"] / config.kwargs.get("XBLOCK", 1))
        # One for each processor runs in any case.
        if math.prod(pieces.values()) <= _SHORT or blocks <= device.multi_processor_count:
            continue
        longest = max(pieces, key=pieces.__getitem__)
        made = copy.deepcopy(config)
        made.kwargs[longest] //= 2
        least = told.get("min_rblock") if longest == "R0_BLOCK" else None
        if sizes_of(made) not in known and made.kwargs[longest] >= (least or 1):
            known.add(sizes_of(made))
            yield made


def cache_places() -> dict[str, str]:
    """Variables that say where the caches of this process are, for those of the pool."""
    return {name: os.environ[name] for name in _PLACES if name in os.environ}


def compile_shorter(path: str, name: str, environment: Mapping[str, str], until: float) -> int:
    """Compile a reduction with what is :func:`shorter`, as :func:`compile_sizes` does with sizes.

    Returns:
        With how many configurations it was compiled before it was too late.
    """
    os.environ.update(environment)
    kernel = _kept(path, name)
    count = 0
    for config in shorter(kernel):
        if time.time() > until:
            break
        kernel._precompile_config(config)
        count += 1
    return count


def compile_sizes(
    path: str, name: str, sizes: BlockSizes, environment: Mapping[str, str], until: float
) -> bool:
    """Compile a kernel with some block sizes into the cache on disk. For processes of the pool.

    Args:
        path: the file of its source.
        name: of the kernel.
        sizes: to compile it with.
        environment: variables that say where the caches are.
        until: moment of ``time.time`` after which nobody waits for it any more.

    Returns:
        Whether it was compiled; not if it is too late. Raises what the compiler raises.
    """
    if time.time() > until:
        return False
    os.environ.update(environment)
    kernel = _kept(path, name)
    kernel._precompile_config(config_of(sizes, kernel.configs[0]))
    return True


_kept = functools.lru_cache(_LOADED)(load_kernel)
