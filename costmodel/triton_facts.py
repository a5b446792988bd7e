"""Facts of a Triton kernel: what is known of it before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fusewise.costmodel.triton_index import Level

Kind = Literal["pointwise", "reduction", "persistent_reduction"]
Doing = Literal["load", "store", "atomic"]

#: Dimensions in the order in which Inductor puts them into a block, the last the nearest.
DIMENSIONS: Final[tuple[str, ...]] = ("z", "y", "x", "r0_", "r1_")


@dataclass(frozen=True)
class Access:
    """A load, store or atomic update in a kernel."""

    doing: Doing
    pointer: str
    #: Bytes of an element.
    width: int
    #: Dimensions along which a block has elements of its own, in the order of a block.
    dims: tuple[str, ...]
    #: How its index moves along each of these.
    levels: tuple[tuple[Level, ...], ...]
    #: Whether its index depends on what was loaded.
    indirect: bool
    #: Part of the positions that are accessed, as far as the mask tells.
    share: float
    #: Dimensions whose loop it stands in.
    looped: frozenset[str]
    #: What the cache is told: to keep it, to let go of it, or nothing.
    eviction: str
    #: Dimensions whose end its mask looks at.
    masked: frozenset[str]

    @property
    def strides(self) -> dict[str, int]:
        """Elements from an element to its neighbour, along each dimension."""
        return {
            dim: moves[0].stride if moves else 0
            for dim, moves in zip(self.dims, self.levels, strict=True)
        }

    @property
    def runs(self) -> dict[str, int]:
        """How many neighbours along each dimension are so far apart from each other."""
        return {
            dim: moves[0].extent if moves else 1
            for dim, moves in zip(self.dims, self.levels, strict=True)
        }


@dataclass(frozen=True)
class KernelFacts:
    """What the source of a kernel tells."""

    name: str
    kind: Kind
    #: Positions along each dimension, in the order of a block.
    numels: Mapping[str, int]
    #: Upper bounds of these, powers of two.
    size_hints: Mapping[str, int]
    #: Block sizes that stand in the source.
    blocks: Mapping[str, int]
    #: ``inner``, ``outer``, ``outer_tiny``, ``default``, or "" where nothing is reduced.
    hint: str
    accesses: tuple[Access, ...]
    #: Operations on elements, those of many instructions, and those of several threads together,
    #: each as often as it stands in the source.
    operations: int
    special: int
    together: int
    #: Of the last: means with variances, and online softmax.
    welford: int
    #: Loops over a reduction, one after the other.
    passes: int
    #: Most values that are kept at once between where they are computed and last used.
    live: int
    #: As Inductor counts them.
    loads: int
    stores: int
    reductions: int
    atomic: bool
    #: How much memory lies along each dimension, as Inductor scores it.
    tiling_scores: Mapping[str, int]
    #: Positions along x that a block goes through, where it does.
    each_block: int | None
    #: Of the device: multiprocessors, threads that each holds, and registers.
    multiprocessors: int
    most_threads: int
    registers: int
