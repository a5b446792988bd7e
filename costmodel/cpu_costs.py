"""Which processor a device is most like, and what the body of a node costs there.

The costs are those of ``cpu_processors``. Nothing here knows loops, bandwidths or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fusewise.costmodel.cpu_processors import KEEN, NARROW, STEADY, SWIFT, WIDE
from fusewise.costmodel.cpu_tables import CLASSES, FREE, Cost, Table
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import FloatArray

#: Of the processors that are known.
TABLES: Final = (NARROW, WIDE, SWIFT, KEEN, STEADY)
_TABLES: Final = {table.name: table for table in TABLES}
_MASKS: Final = (
    "order",
    "equality",
    "logic",
    "index",
    "masked",
    "position",
    "checked",
    "checked half",
)
_MASKING: Final = frozenset(" ".join(CLASSES[k] for k in _MASKS).split())
#: Taken of what was summed over a row, mostly, rather than of each element.
_ROOTS: Final = frozenset({"sqrt", "rsqrt", "reciprocal"})
#: What a loop body has that is no work, or is counted otherwise.
_UNCOUNTED: Final = frozenset(
    ["load", "store", "store_reduction", "output", "constant", "reduction", "get_index", "ops"]
)


def nearest(
    cache: FloatArray, multiplied: FloatArray, exponentials: FloatArray, tables: Sequence[Table]
) -> NDArray[np.intp]:
    """Which of ``tables`` each processor is most like, [n].

    Args:
        cache: what a thread copies in its cache, GB/s [n].
        multiplied: what it computes of matrix products, GFLOP/s [n].
        exponentials: how many of these it computes, 10^9/s [n].
        tables: to choose from.
    """
    found = np.log(np.maximum(np.stack((cache, multiplied, exponentials), axis=1), 1e-3))
    known = np.log([table.rates for table in tables])
    result: NDArray[np.intp] = np.abs(found[:, None, :] - known).sum(axis=2).argmin(axis=1)
    return result


def table_of(profile: DeviceProfile) -> Table:
    """The table of the processor that a device is most like, with as wide vectors.

    Of those that the same compiler compiled for, where there are any: GCC 12 makes a branch of each
    flag that is loaded, GCC 13 none.
    """
    narrow = profile.vector_bytes < WIDE.width
    tables = [table for table in TABLES if (table.width < WIDE.width) == narrow]
    tables = [table for table in tables if table.compiler == profile.compiler] or tables
    threads = max(profile.threads, 1)
    cache = max(profile.cache_gbs, profile.copy_gbs)
    each = np.array([[cache], [profile.flops_gfs], [profile.transcendental_gops]]) / threads
    return tables[int(nearest(each[0], each[1], each[2], tables)[0])]


def slowness(profile: DeviceProfile, table: Table) -> float:
    """How much longer than by ``table`` a device takes for what it computes, at least 1.

    Exponentials tell, which are such loops themselves. Two threads of a Xeon (family 6, model 207)
    take 1.4 times as long as the table of one of model 167 says, and 1.34 times as long for an
    exponential. Of none is it known that it is faster than its table.
    """
    each = profile.transcendental_gops / max(profile.threads, 1)
    return max(table.rates[2] / max(each, 1e-3), 1.0)


@lru_cache(maxsize=1 << 14)
def body_cost(
    ops: tuple[tuple[str, float], ...],
    reduction: str | None,
    *,
    table: str,
    still: bool = False,
) -> Cost:
    """What a node does in a turn of its loops, its loads and stores left out.

    Args:
        ops: of its body, with how often each is computed.
        reduction: type of the reduction that it is; None where it is none.
        table: the name of the one that counts.
        still: whether masks stay as they are along a vector: they are found once a row.
    """
    of = _TABLES[table]
    step = FREE if reduction is None else of.steps.get(reduction.split("_")[0], of.step)
    vector = lane = scalar = end = 0.0
    costs = [
        (of.operations.get(name, of.other), count)
        for name, count in ops
        if name not in _UNCOUNTED
        and not name.startswith("masked_subblock")
        and not (still and name in _MASKING)
    ]
    for cost, count in (*costs, (step, 1)):
        vector += cost.vector * count
        lane += cost.lane * count
        scalar += cost.scalar * count
        end += cost.end * count
    return Cost(vector, lane, scalar, end)


def rootless(ops: Sequence[tuple[str, float]], spared: float) -> tuple[tuple[str, float], ...]:
    """``ops`` without so many roots of each sort, which are found elsewhere."""
    if not spared:
        return tuple(ops)
    left = ((name, count - spared if name in _ROOTS else count) for name, count in ops)
    return tuple((name, count) for name, count in left if count > 0)
