"""The feature table: name, unit and definition of each feature, in the order of the columns.

The one place that says which features there are. Whoever changes a row, its meaning or its order
raises ``FEATURES_VERSION``: a model and a stored sample are only good for the version they carry.

Units: ``log2`` columns hold log2(1 + x), since sizes span decades and trees split on order only;
``share`` columns lie in 0..1; ``count`` and ``flag`` columns hold plain numbers. ``doublings``
columns hold means or sums over several accesses or nodes of log2(1 + x), of log2(x) where x is 1 at
the least.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from fusewise.costmodel.operations import SORTS

FEATURES_VERSION: Final = 33


class Feature(NamedTuple):
    """One column."""

    name: str
    unit: str
    definition: str

    @property
    def logarithmic(self) -> bool:
        """Whether it holds log2(1 + x) of one amount x."""
        return self.unit.startswith("log2")


_OF_BODIES: Final = (
    ("arithmetic", "additions and the like"),
    ("division", "divisions"),
    ("transcendental", "exponentials and the like"),
    ("selection", "comparisons"),
    ("indexing", "computed positions"),
    ("conversion", "conversions"),
    ("random", "random numbers"),
    ("reducing", "steps of reductions"),
)

FEATURES: Final[tuple[Feature, ...]] = (
    # Loops
    Feature("iterations", "log2 iterations", "numel x rnumel, summed over the nodes"),
    Feature("numel", "log2 iterations", "largest iteration space outside a reduction"),
    Feature("rnumel", "log2 iterations", "largest reduction space; 1 where nothing is reduced"),
    Feature("smallest_iterations", "log2 iterations", "smallest numel x rnumel of a node"),
    Feature("inner_extent", "log2 iterations", "smallest innermost loop extent of a node"),
    Feature("depth", "count", "most loops of a node"),
    Feature("loop_shapes", "count", "different (numel, rnumel) among the nodes"),
    Feature("passes", "count", "times the loops must start again since a reduction must be done"),
    Feature("nodes", "count", "nodes"),
    Feature("pointwise", "count", "pointwise nodes"),
    Feature("reductions", "count", "reduction nodes"),
    Feature("plain_reductions", "count", "of these: sum, product, extremum, any"),
    Feature("distinct_reductions", "count", "of these: over different values or of another kind"),
    Feature("index_reductions", "count", "of these: argmax, argmin"),
    Feature("fused_reductions", "count", "of these: Welford, online softmax, dot, others"),
    Feature("outer_reductions", "count", "reductions whose largest read does not lie along them"),
    Feature("rows", "log2 iterations", "most values that a reduction gives; 0 where there is none"),
    Feature(
        "column_run", "log2 elements", "longest stretch along the results of an outer reduction"
    ),
    Feature("scans", "count", "scan and sort nodes"),
    Feature("other_nodes", "count", "template, foreach and extern nodes"),
    # Loops of a C++ kernel, as far as they can be told beforehand; 0 on a GPU
    Feature("workers", "log2 threads", "threads that the loops are spread over evenly"),
    Feature("least_workers", "log2 threads", "of the loop nest that fewest share"),
    Feature("nests", "count", "loop nests"),
    Feature("shared_nests", "count", "loop nests that several threads share"),
    Feature("sent_off", "log2 times", "how often several threads are sent off"),
    Feature("lanes", "count", "elements of a vector; 1 where nothing is vectorised"),
    Feature("loop_turns", "log2 turns", "turns of the busiest thread, of 16 fp32 elements at once"),
    Feature("instructions", "log2 ns", "time of its operations, by a table of one processor"),
    Feature("lane_by_lane", "log2 ns", "of this, elements of vectors that are taken one by one"),
    Feature("scalar_work", "log2 ns", "of this, in loops that are not vectorised"),
    Feature("row_ends", "log2 ns", "of this, vectors that are put together to one value"),
    Feature("each_worker", "log2 bytes", "distinct bytes of each thread"),
    Feature("loop_starts", "log2 turns", "times that the busiest thread starts an innermost loop"),
    Feature("partial_vectors", "log2 turns", "of its turns, those of vectors that are not full"),
    Feature("borders", "log2 stretches", "stretches of what is stored that threads part"),
    Feature("unforeseen", "log2 ns", "of the instructions, branches that could go either way"),
    # Blocks of a Triton kernel, as far as they can be told beforehand; 0 on a CPU
    Feature("programs", "log2 blocks", "blocks that are launched"),
    Feature("turns", "log2 turns", "turns of the loop over the reduction in each block"),
    Feature("tile", "log2 elements", "elements that a block holds at once"),
    Feature("tile_along", "log2 elements", "of these, along the reduction"),
    Feature("tile_across", "log2 elements", "of these, along the inner dimension of the results"),
    Feature("tile_outer", "log2 elements", "of these, along the other dimensions of the results"),
    Feature("warps", "log2 warps", "warps of a block"),
    Feature("each_thread", "log2 elements", "elements of a block for each of its threads"),
    Feature("persistent", "flag", "1 where a block holds whole rows of the reductions"),
    Feature("padding", "log2 ratio", "elements that the blocks hold, over iterations, less 1"),
    Feature("even", "flag", "1 where rows end where a block does, so that nothing is masked"),
    Feature("tuned", "flag", "1 where the compiler tries several block sizes"),
    Feature("waves", "log2 waves", "times that the device is filled with blocks"),
    Feature("rounds", "log2 rounds", "turns one after the other, of all waves"),
    Feature("sector_bytes", "log2 bytes", "bytes of the sectors that the blocks touch, in all"),
    Feature("stored_sectors", "log2 bytes", "of these, those that stores touch"),
    Feature("issued", "log2 accesses", "loads and stores that the warps issue, in all"),
    Feature("wavefronts", "log2 lines", "cache lines that the sectors which these ask for fill"),
    Feature("lines", "log2 lines", "cache lines that those which look up their place lie in"),
    Feature("requests", "log2 lines", "lines of which warps ask memory for sectors, each time"),
    Feature("spread", "log2 bytes", "bytes of the lines that all of it lies in"),
    Feature("turn_loads", "count", "accesses that a turn of the loop in each block loads"),
    Feature("row_threads", "log2 threads", "threads that share a row of a reduction"),
    Feature(
        "combined",
        "log2 operations",
        "steps in which these put their results together, and those of sorts",
    ),
    Feature("combining", "log2 steps", "such steps one after the other, of all waves"),
    Feature(
        "vector_bytes", "log2 bytes", "bytes that a thread loads or stores at once, on average"
    ),
    Feature("sector_ratio", "log2 ratio", "bytes of these sectors over distinct bytes"),
    Feature("round_bytes", "log2 bytes", "bytes of sectors in flight in a round"),
    Feature("results_inner", "log2 results", "along the inner dimension that blocks part"),
    Feature("results_outer", "log2 results", "along the next; 0 where there is none"),
    Feature("inner_power", "count", "times that 2 goes into the former, 12 at the most"),
    Feature("outer_power", "count", "times that 2 goes into the latter; 12 where there is none"),
    Feature("row_power", "count", "times that 2 goes into the reduction, 12 at the most"),
    Feature("warps_along", "flag", "1 where memory lies along the reduction, and so warps"),
    # What its accesses are like, one by one: means by the sectors that they touch; by bytes
    # on a CPU, where what tells of blocks and warps is 0
    Feature("step_0", "doublings elements", "step of an access along its innermost loop"),
    Feature("step_1", "doublings elements", "step along the next loop outwards"),
    Feature("step_2", "doublings elements", "step along the third loop"),
    Feature("step_power_0", "count mean", "times that 2 goes into the first of these steps"),
    Feature("step_power_1", "count mean", "times that 2 goes into the second"),
    Feature("step_power_2", "count mean", "times that 2 goes into the third"),
    Feature("innermost", "doublings turns", "turns of its innermost loop"),
    Feature("rests_inner", "share", "accesses that stay in place along the innermost loop"),
    Feature("rests_outer", "share", "accesses that stay in place along the next"),
    Feature("run", "doublings turns", "turns inside the loop along which its neighbours lie"),
    Feature("alignment", "doublings bytes", "what every row of its neighbours begins at"),
    Feature("wide_loads", "doublings elements", "elements that a thread can load at once"),
    Feature("looked_up", "share", "accesses through places that were loaded or computed"),
    Feature("two_bytes", "share", "accesses of elements of two bytes"),
    Feature("four_bytes", "share", "accesses of elements of four bytes"),
    Feature("block_sectors", "doublings sectors", "sectors that a block touches in a turn"),
    Feature("block_loads", "doublings loads", "loads or stores that its warps issue"),
    Feature("warp_sectors", "doublings sectors", "sectors that one of these asks for"),
    Feature("warp_lines", "doublings lines", "lines that these lie in"),
    Feature("different", "ratio", "distinct bytes over those of all iterations"),
    Feature("moving", "share", "part of the iterations in which it moves anything"),
    Feature("stored_part", "share", "accesses that store"),
    Feature("read_again", "share", "accesses that an earlier pass did as well"),
    Feature("read_near", "share", "accesses whose sectors were fetched for another one"),
    # Memory: each (buffer, index) once; what fusion keeps in registers is not in here
    Feature("read_contiguous", "log2 bytes", "distinct bytes read, innermost stride 1"),
    Feature("read_strided", "log2 bytes", "distinct bytes read, innermost stride above 1"),
    Feature("read_broadcast", "log2 bytes", "distinct bytes read, repeated over some loop"),
    Feature("read_gather", "log2 bytes", "distinct bytes read through an index that was loaded"),
    Feature("read_opaque", "log2 bytes", "distinct bytes read in an order that is not known"),
    Feature("written_contiguous", "log2 bytes", "bytes stored, innermost stride 1"),
    Feature("written_strided", "log2 bytes", "bytes stored, innermost stride above 1"),
    Feature("written_atomic", "log2 bytes", "distinct bytes updated atomically"),
    Feature("written_other", "log2 bytes", "bytes stored in any other way"),
    Feature(
        "atomic_updates",
        "log2 elements",
        "atomic updates, of neighbours of 1 or 2 bytes two at once",
    ),
    Feature("atomic_hits", "log2 ratio", "most atomic updates of each element, on average"),
    Feature(
        "atomic_turns",
        "log2 rounds",
        "rounds of atomic updates: neighbours in a sector, on a GPU those of a warp, are one",
    ),
    Feature(
        "atomic_crowd", "log2 ratio", "most of these one after the other in each line, on average"
    ),
    Feature(
        "atomic_halves",
        "log2 updates",
        "of these, of lone elements of 1 or 2 bytes, each as often as others are at it",
    ),
    Feature("line_bytes", "log2 bytes", "bytes of the lines that accesses in short stretches move"),
    Feature(
        "across_bytes", "log2 bytes", "distinct bytes whose neighbours lie along an outer loop"
    ),
    Feature("runs", "log2 stretches", "stretches of neighbouring bytes that are read or stored"),
    Feature(
        "unaligned", "share", "part of the touched bytes in rows that no vector load can begin"
    ),
    Feature(
        "random_bytes",
        "log2 bytes",
        "bytes looked up by loaded indices beyond the cache; for rows, one element a line",
    ),
    Feature("cached", "log2 bytes", "bytes read of what the group wrote or read at another index"),
    Feature("in_place", "log2 bytes", "bytes that are written where they were read"),
    Feature("reread", "log2 bytes", "bytes that a later pass reads again"),
    Feature("stores_removed", "log2 bytes", "bytes not stored: all users are in the group"),
    Feature("reads_removed", "log2 bytes", "bytes not read: the value is in a register"),
    Feature("distinct", "log2 bytes", "distinct bytes that the group reads and stores"),
    Feature("touched", "log2 bytes", "bytes touched, each repetition over a loop counted"),
    Feature("reuse", "log2 ratio", "touched over distinct bytes"),
    Feature("irregular", "share", "part of the distinct bytes not accessed contiguously"),
    Feature("inner_stride", "log2 elements", "largest step of an access along the innermost loop"),
    # Arithmetic, over all iterations; what is written out again is computed once. Operations count
    # as so many of the cheapest of their class as take as long on a GPU
    Feature("arithmetic", "log2 operations", "additions, multiplications, extrema, roundings"),
    Feature("division", "log2 operations", "divisions, square roots, remainders"),
    Feature("transcendental", "log2 operations", "exponentials, logarithms, trigonometry"),
    Feature("selection", "log2 operations", "comparisons, selections, logic, masks"),
    Feature("indexing", "log2 operations", "integer index arithmetic and bounds checks"),
    Feature("address", "log2 operations", "divisions, remainders and bounds within indices"),
    Feature("conversion", "log2 operations", "conversions between dtypes"),
    Feature("random", "log2 operations", "random numbers"),
    Feature("reducing", "log2 operations", "steps of reductions, scans and sorts"),
    Feature("welford", "log2 operations", "of these, of means with variances"),
    Feature("means", "log2 operations", "of these, of means whose variances nobody needs"),
    Feature("online_softmax", "log2 operations", "of these, of sums of exponentials with maxima"),
    Feature("flops", "log2 operations", "operations of template and extern nodes"),
    Feature("operations_each", "log2 operations", "operations an iteration"),
    Feature("turn_operations", "log2 operations", "operations of a thread in a turn"),
    Feature("intensity", "log2 operations/byte", "operations over distinct bytes"),
    # The same node by node: what an iteration of each takes, summed over the nodes, and of those
    # that do most, the mean by the operations of all iterations
    *(
        Feature(f"each_{name}", "doublings operations", f"{of} an iteration, summed over nodes")
        for name, of in _OF_BODIES
    ),
    Feature("each_address", "doublings operations", "the same of divisions within indices"),
    *(
        Feature(f"main_{name}", "doublings operations", f"{of} an iteration of the busiest nodes")
        for name, of in _OF_BODIES
    ),
    Feature("main_welford", "share", "means with variances among the busiest nodes"),
    Feature("main_numel", "doublings iterations", "iterations of these outside of a reduction"),
    Feature("loop_power", "count", "times that 2 goes into the innermost loop of results, at most"),
    Feature("next_power", "count", "times that 2 goes into the loop outside of it, at most"),
    # Operation by operation, of all nodes, over the iterations of the one that has most of these
    *(
        Feature(name, "log2 operations", f"`{'`, `'.join(members)}`, each iteration")
        for name, members in SORTS.items()
    ),
    # Widths
    Feature("width_min", "bytes", "narrowest element"),
    Feature("width_max", "bytes", "widest element"),
    Feature("widths_mixed", "flag", "elements of two or more widths"),
    Feature("narrow", "share", "part of the touched bytes in elements of 1 byte"),
    Feature("half", "share", "part of the touched bytes in elements of 2 bytes"),
    Feature("wide", "share", "part of the touched bytes in elements of 8 bytes or more"),
    # Counts
    Feature("inputs", "count", "buffers read from outside"),
    Feature("outputs", "count", "buffers stored"),
    Feature("intermediates", "count", "buffers that fusion removes"),
    Feature("loads", "count", "different (buffer, index) loaded"),
    Feature("live_values", "count", "mean number of values kept for a later node"),
    # Against the device
    Feature("parallel", "log2 iterations/core", "iterations that may run at once, each core"),
    Feature(
        "cache_fill",
        "log2 ratio",
        "distinct and cached bytes, those in place once, over the last-level cache",
    ),
    Feature("is_cuda", "flag", "1 on a CUDA device"),
    Feature("device_threads", "log2 threads", "threads of the device"),
    Feature("device_cores", "log2 cores", "cores of the device"),
    Feature("device_copy", "log2 GB/s", "copy bandwidth"),
    Feature("device_cache", "log2 GB/s", "copy bandwidth within the cache"),
    Feature("device_gather", "log2 GB/s", "gather bandwidth"),
    Feature("device_flops", "log2 GFLOP/s", "fp32 matrix multiplication rate"),
    Feature("device_transcendental", "log2 10^9/s", "exponentials a second"),
    Feature("device_launch", "log2 us", "time from one small kernel to the next"),
    Feature("device_cache_bytes", "log2 bytes", "last-level cache"),
)

#: Column of each feature.
COLUMN: Final[dict[str, int]] = {feature.name: i for i, feature in enumerate(FEATURES)}

#: Columns that hold logarithms of one amount.
LOGARITHMIC: Final = [i for i, feature in enumerate(FEATURES) if feature.logarithmic]

#: Changes whenever a name, unit, definition or the order does: a guard against a forgotten version.
FEATURES_DIGEST: Final = hashlib.sha256(repr(FEATURES).encode()).hexdigest()[:12]
