"""What the accesses and the bodies of a group are like one by one, in means and sums of doublings.

Totals over a group do not tell a kernel of one large strided read and nine small plain ones from
one of ten that are a little strided each. Logs are taken of each access and each node first here,
and then their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from fusewise.costmodel.dimensions import Mover
from fusewise.costmodel.interface import FloatArray
from fusewise.costmodel.layout import SECTOR_BYTES, Layout
from fusewise.costmodel.operations import CLASSES
from fusewise.costmodel.tiles import Tile
from fusewise.costmodel.traffic import Grid, moved_by
from fusewise.schedule.problem import Node

#: The shape of a kernel's results and rows.
SHAPE: Final = (
    "results_inner",
    "results_outer",
    "inner_power",
    "outer_power",
    "row_power",
    "warps_along",
)
#: Loops, the inner first, along which steps of accesses are told.
_LOOPS: Final = 3
#: Of each access by itself, and then with the blocks that it is moved by.
_OF_LAYOUT: Final = (
    *(f"step_{loop}" for loop in range(_LOOPS)),
    *(f"step_power_{loop}" for loop in range(_LOOPS)),
    "innermost",
    "rests_inner",
    "rests_outer",
    "run",
    "alignment",
    "wide_loads",
    "looked_up",
    "two_bytes",
    "four_bytes",
)
_OF_BLOCKS: Final = (
    "block_sectors",
    "block_loads",
    "warp_sectors",
    "warp_lines",
    "different",
    "moving",
    "stored_part",
    "read_again",
    "read_near",
)
#: Means over the accesses of a kernel, by the sectors that they move.
OF_ACCESSES: Final = (*_OF_LAYOUT, *_OF_BLOCKS)
#: Operations of an iteration of each node, summed over the nodes.
EACH_NODE: Final = (*(f"each_{name}" for name in CLASSES), "each_address")
#: Means over the nodes, by their operations.
MAIN_NODE: Final = (*(f"main_{name}" for name in CLASSES), "main_welford", "main_numel")

#: A number that is divided by two more often than this is as round as any.
_ROUND: Final = 12


def doublings(amount: float) -> float:
    """log2(1 + ``amount``), of nothing less than nought."""
    return math.log2(1.0 + max(amount, 0.0))


def power_of(number: int) -> int:
    """How often 2 goes into ``number``, up to 12 times; 12 for nought."""
    return min((number & -number).bit_length() - 1, _ROUND) if number else _ROUND


def shape_of(tile: Tile) -> tuple[float, ...]:
    """The columns of ``SHAPE``."""
    return (*_shape_of(tile.grid.extents, tile.grid.length), tile.inner)


@lru_cache(maxsize=1 << 12)
def _shape_of(extents: tuple[int, ...], length: int) -> tuple[int, ...]:
    inner, *outer = extents
    second = outer[0] if outer else 0
    return inner, second, power_of(inner), power_of(second), power_of(length)


def access_means(kernels: Sequence[tuple[Sequence[Mover], Grid | None]]) -> FloatArray:
    """The columns of ``OF_ACCESSES`` of kernels, [n, A], from their accesses and their blocks.

    Kernels may be without blocks.
    """
    sums = np.zeros((len(kernels), 1 + len(OF_ACCESSES)))
    for row, (movers, grid) in zip(sums, kernels, strict=True):
        if movers:
            weighed = np.concatenate([_weighed(m, grid) for m in movers])
            np.add.reduce(weighed.reshape(len(movers), -1), out=row)
    # An access weighs 1 at the least.
    means: FloatArray = sums[:, 1:] / np.maximum(sums[:, :1], 1.0)
    return means


@lru_cache(maxsize=1 << 14)
def _weighed(m: Mover, grid: Grid | None) -> FloatArray:
    """The weight of an access, and that times each of its columns; [1 + len(OF_ACCESSES)]."""
    if grid is None:
        each = issued = asked = apart = 0.0
        weight = 1.0 + m.bytes
    else:
        each, issued, asked, apart, times, _ = moved_by(m, grid)
        weight = 1.0 + each * times * SECTOR_BYTES
    told = (
        *_told(m.layout),
        doublings(each),
        doublings(issued),
        doublings(asked),
        doublings(apart),
        m.bytes / max(m.total * m.layout.itemsize, 1),
        m.part,
        m.written,
        m.again,
        m.near,
    )
    return np.array([weight, *(weight * value for value in told)])


@lru_cache(maxsize=1 << 16)
def _told(layout: Layout) -> tuple[float, ...]:
    """What ``_OF_LAYOUT`` names, of one access."""
    beyond = (0,) * _LOOPS
    steps = (*reversed(layout.steps), *beyond)[:_LOOPS]
    loops = len(layout.loops)
    return (
        *(doublings(abs(step)) for step in steps),
        *(power_of(step) for step in steps),
        doublings(layout.loops[-1]) if loops else 0.0,
        layout.rests,
        steps[1] == 0,
        doublings(layout.inside),
        math.log2(max(layout.alignment, 1)),
        math.log2(max(layout.vector, 1)),
        layout.looked_up,
        layout.itemsize == 2,  # noqa: PLR2004
        layout.itemsize == 4,  # noqa: PLR2004
    )


def node_told(node: Node, operations: Sequence[float], address: float) -> list[float]:
    """What is summed of a node: its work, then ``EACH_NODE``, then ``MAIN_NODE`` times its work.

    Args:
        node: any.
        operations: of all its iterations, by class as in ``CLASSES``.
        address: operations on its indices, of all iterations.
    """
    iterations = max(node.numel * node.rnumel, 1)
    each = [doublings(count / iterations) for count in operations]
    work = 1.0 + max(sum(operations), 0.0)
    main = [*each, float(node.reduction_type.startswith("welford")), doublings(node.numel)]
    return [work, *each, doublings(address / iterations), *(work * value for value in main)]


def loop_powers(node: Node) -> tuple[float, float]:
    """How often 2 goes into the innermost loop over a node's results, and into the next."""
    inner, outer = (*reversed(node.ranges[0]), 0, 0)[:2]
    return power_of(inner), power_of(outer)
