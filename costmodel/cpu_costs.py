"""Which processor a device is most like, and what the body of a node costs there.

The costs are those of ``cpu_tables``. Nothing here knows loops, bandwidths or threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fusewise.costmodel.cpu_tables import CLASSES, FREE, NARROW, SWIFT, WIDE, Cost, Table
from fusewise.costmodel.device import DeviceProfile
from fusewise.costmodel.interface import FloatArray

_TABLES: Final = {table.name: table for table in (NARROW, WIDE, SWIFT)}
_MASKING: Final = frozenset(" ".join(CLASSES[k] for k in ("comparison", "index", "masked")).split())
#: What a loop body has that is no work, or is counted otherwise.
_UNCOUNTED: Final = frozenset(
    ["load", "store", "store_reduction", "output", "constant", "reduction", "get_index", "ops"]
)


#: What a thread copies in its cache from which on a processor is like the swifter of the two with
#: vectors of 64 bytes, GB/s: between 70 of the fastest of the others and 97 to 119 of that one.
_SWIFT_GBS: Final = 80.0


def is_swift(cache_gbs: FloatArray) -> NDArray[np.bool_]:
    """Whether processors whose threads copy so much in their caches are of the newest generation.

    Nothing that was probed tells it better: kernels of theirs take half as long in all respects.
    """
    found: NDArray[np.bool_] = cache_gbs > _SWIFT_GBS
    return found


def table_of(profile: DeviceProfile) -> Table:
    """The table of the processor that a device is most like."""
    if profile.vector_bytes < WIDE.width:
        return NARROW
    threads = max(profile.threads, 1)
    each = np.array(max(profile.cache_gbs, profile.copy_gbs) / threads)
    return SWIFT if is_swift(each) else WIDE


@lru_cache(maxsize=1 << 14)
def body_cost(
    ops: tuple[tuple[str, float], ...], reduction: str | None, *, table: str, still: bool = False
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
