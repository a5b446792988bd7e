"""Block sizes of a kernel that are compiled to be timed, whether or not they are any good.

A model that is to tell good sizes from bad ones has to see both: some are near to Inductor's own,
where good ones mostly are, and as many are drawn from what is farther away. Runs no kernel.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
from dataclasses import dataclass

from fusewise.compiler.inductor.block_sizes import can_be_tried, config_of, sizes_of
from fusewise.compiler.inductor.worth_trying import kernel_of, nearby
from fusewise.schedule.block_sizes import BlockSizes

log = logging.getLogger(__name__)

#: Sizes that are drawn from, Inductor's own and the nearest included.
_DRAWN_FROM = 96
#: How Inductor says in the source of a kernel whether to look for what was found to be the best.
_REMEMBERS, _FORGETS = "'force_disable_caches': False", "'force_disable_caches': True"
#: Stands for the name of a kernel, which goes by its place in a program.
_NAME = "triton_"


@dataclass(frozen=True)
class KernelBlocks:
    """A kernel with block sizes, each compiled into the cache on disk or failed."""

    source_hash: str
    name: str
    source: str
    #: How many of ``sizes``, the first of them, Inductor itself would try.
    own: int
    sizes: tuple[BlockSizes, ...]
    failed: frozenset[BlockSizes]

    @property
    def compiled(self) -> tuple[BlockSizes, ...]:
        """Those that can be loaded."""
        return tuple(sizes for sizes in self.sizes if sizes not in self.failed)


def source_hash(name: str, source: str) -> str:
    """Hash of a kernel's source, whatever its name."""
    return hashlib.sha256(source.replace(name, _NAME).encode()).hexdigest()


def compiled_blocks(name: str, source: str, count: int, until: float) -> KernelBlocks | None:
    """Compile a kernel with some block sizes into the cache on disk.

    Args:
        name: of the kernel.
        source: as Inductor generated it, for a GPU.
        count: sizes beside Inductor's own; half of them the nearest to those, the others drawn,
            the same for equal sources.
        until: moment of ``time.monotonic`` after which no further size is compiled.

    Returns:
        What came of it; None where other sizes than Inductor's own do not do for the kernel, none
        could be compiled in time, or it cannot be read.
    """
    key = source_hash(name, source)
    try:
        # What a measuring process has found to be the best would stand for all of Inductor's own.
        unbiased = source.replace(_REMEMBERS, _FORGETS)
        kernel = kernel_of(name, unbiased)
        if not can_be_tried(kernel):
            return None
        found = nearby(kernel, name, unbiased, _DRAWN_FROM)
    except Exception:
        # Whoever loads the program meets it again.
        log.debug("no block sizes for %s", name, exc_info=True)
        return None
    own = len(dict.fromkeys(map(sizes_of, kernel.configs)))
    drawn = found[:own] + draw(found[own:], count, key)
    tried: list[BlockSizes] = []
    failed: set[BlockSizes] = set()
    for sizes in drawn:
        if time.monotonic() > until:
            break
        tried.append(sizes)
        try:
            kernel._precompile_config(config_of(sizes, kernel.configs[0]))
        except Exception:
            # Not all sizes that a kernel may have can be compiled.
            log.debug("%s does not compile with %s", name, sizes, exc_info=True)
            failed.add(sizes)
    if len(tried) <= own or tried[0] in failed:
        return None
    return KernelBlocks(key, name, source, own, tuple(tried), frozenset(failed))


def draw(by_distance: list[BlockSizes], count: int, seed: str) -> list[BlockSizes]:
    """Some sizes in random order: half of them the nearest, the others any of the rest.

    Args:
        by_distance: to draw from, the nearest first.
        count: how many, if there are so many.
        seed: decides which, and their order.
    """
    generator = random.Random(seed)
    near = min((count + 1) // 2, len(by_distance))
    far = by_distance[near:]
    drawn = by_distance[:near] + generator.sample(far, min(count - near, len(far)))
    # Where time is up before all are timed, as many of either kind are left out.
    generator.shuffle(drawn)
    return drawn
