"""Which operations a C++ compiler takes out of the innermost loop of a nest.

Where a problem says along which loops each operation goes. Nothing here knows what one costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fusewise.costmodel.operations import CLASSES, operation_class
from fusewise.costmodel.written_once import Counts
from fusewise.schedule.problem import Computed

_CHEAP: Final = CLASSES.index("arithmetic")


class Parted(NamedTuple):
    """Operations by where they are done; what a mask leaves out of most vectors counts less."""

    #: In each turn of the innermost loop.
    turn: Counts
    #: Once for all of its turns: of one value, and of the values of a vector.
    once: Counts
    once_vector: Counts


def parted(computed: Sequence[Computed], tiled: Sequence[int], loops: int) -> Parted:
    """The operations that a node has ``computed``, by where they are done.

    Along the innermost loop vectors are of what goes along it, and the rest is computed before it;
    in tiles that are transposed what does not go along both sides is. By the times that kernels
    take, additions and the like stay where they are written unless nothing moves them, and so does
    all where vectors lie along another loop or nothing is vectorised.

    Args:
        computed: by a node.
        tiled: positions of the loops that are vectorised, as in ``Nest.tiled``.
        loops: how many there are.
    """
    turn: dict[str, float] = {}
    once: dict[str, float] = {}
    once_vector: dict[str, float] = {}
    sides = tuple(tiled) if len(tiled) > 1 or tuple(tiled) == (loops - 1,) else ()
    for each in computed:
        stays = each.along and operation_class(each.name) == _CHEAP
        if stays or all(each.along >> side & 1 for side in sides):
            counts = turn
        else:
            counts = once_vector if each.along >> sides[-1] & 1 else once
        counts[each.name] = counts.get(each.name, 0.0) + each.count * each.held
    return Parted(*(tuple(counts.items()) for counts in (turn, once, once_vector)))
