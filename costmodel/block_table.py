"""The table of what the block model goes by: name, unit and definition, in the order of columns.

Whoever changes a row, its meaning or its order, or what :mod:`~fusewise.costmodel.triton_source`
reads, raises ``BLOCKS_VERSION``: trees are only good for the version that they were made for.

Units: ``log2`` columns hold log2(x), so that a difference is a ratio; ``share`` columns lie in 0 to
1; ``count``, ``flag`` and ``code`` columns hold plain numbers.
"""

from __future__ import annotations

import hashlib
from typing import Final

from fusewise.costmodel.feature_table import Feature

BLOCKS_VERSION: Final = 1

#: Of the kernel, whatever its block sizes are.
OF_KERNEL: Final[tuple[Feature, ...]] = (
    Feature("kind", "code", "0 pointwise, 1 reduction in a loop, 2 of whole rows"),
    Feature("hint", "code", "0 none, 1 inner, 2 outer, 3 outer and short, 4 neither"),
    Feature("dims", "count", "dimensions of the results"),
    Feature("reduced_dims", "count", "dimensions that are reduced"),
    Feature("mixed", "flag", "1 where a block goes through several parts of the results"),
    Feature("results", "log2 positions", "positions outside of a reduction"),
    Feature("x_numel", "log2 positions", "positions along x"),
    Feature("y_numel", "log2 positions", "positions along y"),
    Feature("length", "log2 positions", "positions along the reduction"),
    Feature("iterations", "log2 positions", "all of them"),
    Feature("loads", "count", "loads in the source"),
    Feature("stores", "count", "stores in the source"),
    Feature("atomics", "count", "atomic updates in the source"),
    Feature("indirect", "count", "accesses whose index was loaded"),
    Feature("operations", "log2 operations", "1 and operations on elements in the source"),
    Feature("special", "log2 operations", "1 and those of them that take many instructions"),
    Feature("together", "count", "operations that put values of threads together"),
    Feature("welford", "count", "of these, those of means with variances, and of online softmax"),
    Feature("passes", "count", "loops over the reduction, one after the other"),
    Feature("live", "count", "most values that are kept at once"),
    Feature("bytes", "log2 bytes", "different bytes of all accesses"),
    Feature("reuse", "log2 ratio", "bytes that are accessed, repetitions counted, over these"),
    Feature("width_least", "bytes", "narrowest element"),
    Feature("width_most", "bytes", "widest element"),
    Feature("along_x", "share", "part of the accessed bytes whose neighbours lie along x"),
    Feature("along_y", "share", "part of them whose neighbours lie along y"),
    Feature("along_rows", "share", "part of them whose neighbours lie along the reduction"),
    Feature("stored", "share", "part of them that are stored or updated"),
    Feature("masked", "share", "part of them with a mask"),
    Feature("kept", "share", "part of them that the cache is told to keep"),
    Feature(
        "vector_most", "log2 bytes", "most bytes that an access could take at once, on average"
    ),
    Feature("multiprocessors", "log2 multiprocessors", "multiprocessors of the device"),
)

#: Of the block sizes.
OF_SIZES: Final[tuple[Feature, ...]] = (
    Feature("x_block", "log2 positions", "block along x"),
    Feature("y_block", "log2 positions", "block along y"),
    Feature("r_block", "log2 positions", "block along the reduction"),
    Feature("held", "log2 positions", "positions of a block"),
    Feature("warps", "log2 warps", "warps of a block"),
    Feature("stages", "count", "stages of a pipelined loop"),
    Feature("loop_stages", "count", "stages of a loop over results, where there is one"),
    Feature("each", "log2 positions", "positions of a block for each of its threads"),
    Feature("programs", "log2 blocks", "blocks that are launched"),
    Feature("share_out", "log2 blocks", "of these, for each multiprocessor"),
    Feature("waves", "log2 waves", "times that the device is filled with blocks"),
    Feature("last_wave", "log2 ratio", "waves that are begun, over these"),
    Feature("turns", "log2 turns", "turns of the loop in each block"),
    Feature("rounds", "log2 turns", "turns one after the other, of all waves begun"),
    Feature("padding", "log2 ratio", "positions that blocks hold in all turns, over iterations"),
    Feature("run_threads", "log2 threads", "threads side by side along memory, in the main access"),
    Feature("runs", "log2 ratio", "block along these neighbours, over how many there are"),
    Feature("row_threads", "log2 threads", "threads that share a row of a reduction"),
    Feature("row_warps", "log2 warps", "warps that do"),
    Feature("vector_loads", "log2 bytes", "bytes that a thread loads at once, on average"),
    Feature("vector_stores", "log2 bytes", "bytes that a thread stores at once, on average"),
    Feature("sector_bytes", "log2 bytes", "bytes of the sectors that blocks touch, in all"),
    Feature("sector_ratio", "log2 ratio", "these over different bytes"),
    Feature("warp_sectors", "log2 bytes", "bytes of the sectors that warps touch, in all"),
    Feature("each_request", "log2 sectors", "sectors that a warp asks for at once, on average"),
    Feature("requests", "log2 requests", "accesses that a thread issues, in all"),
    Feature("turn_bytes", "log2 bytes", "bytes that a thread loads in a turn"),
    Feature("registers", "log2 registers", "registers that a thread's values may take"),
    Feature("resident", "log2 warps", "warps that a multiprocessor may hold at once"),
    Feature("flight_bytes", "log2 bytes", "bytes of a turn of all blocks that it may hold"),
    Feature("work", "log2 operations", "operations of a thread, in all"),
    Feature("special_work", "log2 operations", "of these, those of many instructions, and 1"),
    Feature("combining", "log2 steps", "steps in which threads put rows together, in all, and 1"),
)

#: All columns: of the kernel, of the sizes, and what the sizes are beside Inductor's own.
BLOCK_FEATURES: Final[tuple[Feature, ...]] = (
    *OF_KERNEL,
    *OF_SIZES,
    *(
        Feature(f"{name}_change", unit, f"{definition}; less the same of Inductor's own")
        for name, unit, definition in OF_SIZES
    ),
)

#: Changes whenever a name, unit, definition or the order does: a guard against a forgotten version.
BLOCKS_DIGEST: Final = hashlib.sha256(repr(BLOCK_FEATURES).encode()).hexdigest()[:12]
