"""What is told of the costs of C++ loops: by operation, by access, by turn.

The costs themselves are of single processors, in ``cpu_processors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Cost(NamedTuple):
    """Nanoseconds of something on one thread."""

    #: For a vector of the table's width.
    vector: float = 0.0
    #: For each element of a vector, where it is put together of single ones.
    lane: float = 0.0
    #: For one element in a loop that is not vectorised.
    scalar: float = 0.0
    #: For a vector that is put together to one value.
    end: float = 0.0
    #: More for a vector that is loaded or stored in part; for half of one, of narrow elements.
    part: float = 0.0
    half: float = 0.0


FREE: Final = Cost()


class Chain(NamedTuple):
    """More for a step of Welford's, which waits for the one before it: nanoseconds a vector."""

    #: In a row of one loop that threads part among them; where vectors lie across rows.
    parted: float
    across: float
    #: In a row of one loop that has more steps than the compiler keeps reciprocals of their counts
    #: for; and on elements of two bytes.
    long: float = 0.0
    halves: float = 0.0


class Table(NamedTuple):
    """Costs on one sort of processors."""

    name: str
    #: Bytes of a vector.
    width: int
    #: What compiled the kernels, as a profile names it.
    compiler: str
    #: A turn of the loops; the start of an innermost loop.
    turn: Cost
    start: Cost
    #: An access that jumps along a vector; one that stays in place; a row of a tile that is
    #: transposed, of elements of four bytes and of two.
    jump: Cost
    stay: Cost
    tile: Cost
    tile_low: Cost
    #: More for a vector of such a tile that is stored in part, and for one whose neighbours in the
    #: tile lie multiples of a page away: they want the same places in a cache.
    tile_part: Cost
    tile_far: Cost
    #: More for half a vector of elements of two bytes that is loaded under a mask, of which ATen
    #: makes one of a whole vector (``VecMaskCast``): 22 ns on a Xeon, where a whole one takes 3.
    masked_half: Cost
    #: A vector that is stored in part over what was read: the next load waits for it.
    overwritten: Cost
    #: A stretch of stored elements that threads part among them: each waits for the lines at the
    #: ends of its part.
    border: Cost
    #: Operations by name, and those that have none.
    operations: Mapping[str, Cost]
    other: Cost
    #: A step of a reduction by the first word of its type, and of all other types; a long sum is
    #: a cascade.
    steps: Mapping[str, Cost]
    step: Cost
    chain: Chain
    #: Loads and stores by bytes of an element; elements of type bool are their own, 0.
    loads: Mapping[int, Cost]
    stores: Mapping[int, Cost]
    #: What accesses cost beside that which look their element up, near the last one where they go
    #: on as the loops do, anywhere; or add to what others may add to; no processor adds to an
    #: element of two bytes in one go.
    near: Cost
    gather: Cost
    atomic: Cost
    atomic_low: Cost
    #: And more for additions each of which goes to another line; and, at most, where threads add
    #: anywhere in a few lines, which go from one to the other.
    atomic_far: Cost
    atomic_shared: Cost
    #: A quotient or remainder of a loop's position in an index that goes along it.
    winding: Cost
    #: More for the load of an element of type bool that could be either as well, since loads of
    #: these are branches; for the store of one; and for how many of them, on each thread, a
    #: processor remembers from run to run which way they went.
    unforeseen: Cost
    unforeseen_stored: Cost
    remembered: float
    #: What a thread copies in its cache (GB/s), multiplies (GFLOP/s) and how many exponentials it
    #: computes (10^9/s): whatever is nearest in these is like it.
    rates: tuple[float, float, float]


#: Operations that cost alike.
CLASSES: Final = {
    "arithmetic": "abs add sub mul neg fma square",
    "extremum": "relu maximum minimum",
    "rounding": "floor ceil round trunc floor_to_int ceil_to_int round_to_int trunc_to_int",
    "sign": "sign",
    "division": "truediv reciprocal div_rn",
    "root": "sqrt",
    "inverse root": "rsqrt",
    "remainder": "fmod remainder floordiv",
    "exp": "exp exp2 expm1",
    "log": "log log2 log10 log1p",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf erfc erfinv",
    "sine": "sin cos tan",
    "pow": "pow",
    "order": "lt le gt ge",
    "equality": "eq ne",
    "alone": "isnan isinf signbit ldexp mod to_dtype_bitcast",
    "logic": "and_ or_ xor logical_and logical_or logical_not logical_xor "
    "bitwise_and bitwise_or bitwise_not bitwise_xor",
    "where": "where",
    "conversion": "to_dtype",
    "index": "index_expr",
    "lookup": "indirect_indexing",
    "bounds": "check_bounds",
    "masked": "masked",
    "random": "rand randn randint64",
    # Not of the graph: an index that is computed from what was looked up; a position in the loops
    # that is compared; a number that is chosen by comparing values; an operation on elements of
    # eight bytes, beside what it costs on four; a flag that is made of an integer; and one of
    # positions within bounds, and beside that one for values of two bytes.
    "placed": "placed",
    "position": "position",
    "numbered": "numbered",
    "eight bytes": "eight_bytes",
    "flag": "flag",
    "checked": "checked",
    "checked half": "checked_half",
}
