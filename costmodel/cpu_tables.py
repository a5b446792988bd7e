"""What operations and accesses of C++ loops cost on one thread of the processors that are known.

In nanoseconds of the four processors that the x86 dataset was taken on, three with vectors of 64
bytes and masks for parts of them, one with 32 bytes and none. They fit the kernels of its training
families. Says nothing of which device is like which of them.
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


class Table(NamedTuple):
    """Costs on one sort of processors."""

    name: str
    #: Bytes of a vector.
    width: int
    #: A turn of the loops; the start of an innermost loop.
    turn: Cost
    start: Cost
    #: An access that jumps along a vector; one that stays in place; a row of a tile that is
    #: transposed, of elements of four bytes and of two.
    jump: Cost
    stay: Cost
    tile: Cost
    tile_low: Cost
    #: Operations by name, and those that have none.
    operations: Mapping[str, Cost]
    other: Cost
    #: A step of a reduction by the first word of its type, and of all other types.
    steps: Mapping[str, Cost]
    step: Cost
    #: Loads and stores by bytes of an element; elements of type bool are their own, 0.
    loads: Mapping[int, Cost]
    stores: Mapping[int, Cost]
    #: What accesses cost beside that which look their element up, or add to what others may add
    #: to; no processor adds to an element of two bytes in one go.
    gather: Cost
    atomic: Cost
    atomic_low: Cost
    #: And more for additions each of which goes to another line; and where threads add to elements
    #: of one line, which goes from one to the other.
    atomic_far: Cost
    atomic_shared: Cost
    #: A quotient or remainder of a loop's position in an index that goes along it.
    winding: Cost
    #: More for the load of an element of type bool that could be either as well, since loads of
    #: these are branches, and for how many of them, on each thread, a processor remembers from run
    #: to run which way they went.
    unforeseen: Cost
    remembered: float
    #: What a thread copies in its cache (GB/s), multiplies (GFLOP/s) and how many exponentials it
    #: computes (10^9/s): whatever is nearest in these is like it.
    rates: tuple[float, float, float]


#: Operations that cost alike.
CLASSES: Final = {
    "arithmetic": "abs add sub mul neg fma square relu maximum minimum",
    "rounding": "floor ceil round trunc sign floor_to_int ceil_to_int round_to_int trunc_to_int",
    "division": "truediv reciprocal sqrt rsqrt div_rn fmod mod remainder floordiv",
    "exp": "exp exp2 expm1",
    "log": "log log2 log10 log1p",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf erfc erfinv",
    "sine": "sin cos tan",
    "pow": "pow",
    "comparison": "eq ne lt le gt ge and_ or_ xor logical_and logical_or logical_not logical_xor "
    "bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf",
    "where": "where",
    "conversion": "to_dtype",
    "index": "index_expr",
    "lookup": "indirect_indexing check_bounds",
    "masked": "masked",
    "random": "rand randn randint64",
}


def _named(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    return {name: costs[kind] for kind, names in CLASSES.items() for name in names.split()}


#: Fitted to rows of a Xeon, 1, 2 and 16 threads.
WIDE: Final = Table(
    name="wide",
    width=64,
    turn=Cost(0.567, scalar=0.0595),
    start=Cost(0.546),
    jump=Cost(lane=0.697),
    stay=Cost(0.0474, scalar=0.06),
    tile=Cost(3.91),
    tile_low=Cost(4.31),
    operations=_named(
        {
            "arithmetic": Cost(0.162, scalar=0.0841),
            "rounding": Cost(2.27, scalar=0.498),
            "division": Cost(1.9, scalar=0.804),
            "exp": Cost(11.6, scalar=3.09),
            "log": Cost(20.8, scalar=3.02),
            "tanh": Cost(46.3, scalar=8.0),
            "sigmoid": Cost(16.1, scalar=3.97),
            "erf": Cost(21.7, scalar=6.34),
            "sine": Cost(5.42, scalar=5.83),
            "pow": Cost(29.6, scalar=10.0),
            "comparison": Cost(0.0407, scalar=0.0991),
            "where": Cost(0.524, scalar=0.1),
            "conversion": Cost(0.066, scalar=0.0795),
            "index": Cost(0.204, lane=0.0315, scalar=0.109),
            "lookup": Cost(0.225, lane=0.0426, scalar=0.11),
            "masked": Cost(0.5, lane=0.417, scalar=0.2),
            "random": Cost(lane=10.0, scalar=10.0),
        }
    ),
    other=Cost(0.2, scalar=0.2),
    steps={
        "sum": Cost(0.0525, scalar=0.0706, end=1.92),
        "prod": Cost(0.05, scalar=0.07, end=1.6),
        "welford": Cost(8.05, scalar=2.0, end=50.2),
        "max": Cost(1.48, scalar=0.3, end=12.5),
        "min": Cost(1.4, scalar=0.3, end=11.1),
        "any": Cost(0.13, scalar=0.1, end=1.73),
    },
    step=Cost(5.0, scalar=1.0, end=20.0),
    loads={
        0: Cost(0.3, lane=0.955, scalar=0.1, part=0.985, half=0.497),
        1: Cost(0.298, lane=0.726, scalar=0.1, part=0.998, half=0.497),
        2: Cost(0.989, scalar=0.559, part=0.994, half=1.25),
        4: Cost(0.0807, scalar=0.0615, part=0.52),
        8: Cost(0.22, lane=0.0394, scalar=0.119, part=1.12),
    },
    stores={
        0: Cost(0.302, lane=7.33, scalar=0.0994, part=1.01, half=0.503),
        1: Cost(0.299, lane=0.194, scalar=0.1, part=1.0, half=0.498),
        2: Cost(0.854, scalar=0.0698, part=0.977, half=0.202),
        4: Cost(0.129, scalar=0.531, part=0.528),
        8: Cost(0.2, lane=1.13, scalar=0.12, part=0.996),
    },
    gather=Cost(lane=1.31, scalar=0.509),
    atomic=Cost(lane=18.6, scalar=7.1),
    atomic_low=Cost(lane=18.3, scalar=16.0),
    atomic_far=Cost(lane=2.0, scalar=1.98),
    atomic_shared=Cost(lane=30.0, scalar=30.0),
    winding=Cost(lane=2.0, scalar=2.0),
    unforeseen=Cost(lane=0.5),
    remembered=1.2e4,
    rates=(25.0, 155.0, 5.2),
)

#: Fitted to rows of an AMD EPYC of family 26 (Zen 5), 1 and 2 threads.
SWIFT: Final = Table(
    name="swift",
    width=64,
    turn=Cost(0.0708, scalar=0.0882),
    start=Cost(0.0341),
    jump=Cost(lane=0.499),
    stay=Cost(0.0143, scalar=0.0241),
    tile=Cost(1.51),
    tile_low=Cost(0.898),
    operations=_named(
        {
            "arithmetic": Cost(0.203, scalar=0.0673),
            "rounding": Cost(0.405, scalar=1.46),
            "division": Cost(0.358, scalar=0.299),
            "exp": Cost(3.57, scalar=1.21),
            "log": Cost(13.4, scalar=1.91),
            "tanh": Cost(18.9, scalar=19.1),
            "sigmoid": Cost(4.71, scalar=2.18),
            "erf": Cost(5.93, scalar=2.54),
            "sine": Cost(2.82, scalar=1.16),
            "pow": Cost(27.5, scalar=4.01),
            "comparison": Cost(0.0463, scalar=0.0348),
            "where": Cost(0.341, scalar=0.0358),
            "conversion": Cost(0.00547, scalar=0.0221),
            "index": Cost(0.0445, lane=0.00441, scalar=0.0287),
            "lookup": Cost(0.0497, lane=0.00534, scalar=0.0368),
            "masked": Cost(0.165, lane=0.0557, scalar=0.0664),
            "random": Cost(lane=8.55, scalar=4.01),
        }
    ),
    other=Cost(0.0911, scalar=0.0789),
    steps={
        "sum": Cost(0.304, scalar=0.0288, end=0.432),
        "prod": Cost(0.0204, scalar=0.0281, end=0.645),
        "welford": Cost(4.26, scalar=0.801, end=33.8),
        "max": Cost(1.69, scalar=0.167, end=2.26),
        "min": Cost(0.825, scalar=0.12, end=2.97),
        "any": Cost(0.0842, scalar=0.0401, end=4.42),
    },
    step=Cost(5.23, scalar=0.401, end=7.31),
    loads={
        0: Cost(0.121, lane=0.578, scalar=0.0404, part=0.268, half=0.692),
        1: Cost(0.0501, lane=0.008, scalar=0.0378, part=0.192, half=0.066),
        2: Cost(0.0878, scalar=0.306, part=0.0417, half=0.194),
        4: Cost(0.0109, scalar=0.0375, part=0.16),
        8: Cost(0.104, lane=0.0482, scalar=0.0322, part=0.471),
    },
    stores={
        0: Cost(0.121, lane=6.28, scalar=0.0469, part=0.389, half=0.228),
        1: Cost(0.106, lane=0.0372, scalar=0.0405, part=0.296, half=0.126),
        2: Cost(0.574, scalar=0.0572, part=0.105, half=0.0547),
        4: Cost(0.0407, scalar=0.058, part=1.09),
        8: Cost(0.074, lane=0.0805, scalar=0.0682, part=0.874),
    },
    gather=Cost(lane=0.611, scalar=0.145),
    atomic=Cost(lane=5.47, scalar=4.46),
    atomic_low=Cost(lane=8.13, scalar=7.1),
    atomic_far=Cost(lane=0.801, scalar=0.793),
    atomic_shared=Cost(lane=5.05, scalar=12.0),
    winding=Cost(lane=0.524, scalar=0.345),
    unforeseen=Cost(lane=1.21),
    remembered=1.2e4,
    rates=(115.0, 102.0, 1.53),
)

#: Fitted to rows of another Xeon (family 6, model 167), 2 threads.
KEEN: Final = Table(
    name="keen",
    width=64,
    turn=Cost(0.0836, scalar=0.0785),
    start=Cost(0.0458),
    jump=Cost(lane=0.473),
    stay=Cost(0.0122, scalar=0.0303),
    tile=Cost(1.27),
    tile_low=Cost(0.957),
    operations=_named(
        {
            "arithmetic": Cost(0.211, scalar=0.062),
            "rounding": Cost(1.35, scalar=0.542),
            "division": Cost(1.19, scalar=0.385),
            "exp": Cost(4.72, scalar=1.71),
            "log": Cost(12.7, scalar=2.93),
            "tanh": Cost(23.5, scalar=14.1),
            "sigmoid": Cost(6.02, scalar=2.98),
            "erf": Cost(8.02, scalar=3.94),
            "sine": Cost(4.59, scalar=1.17),
            "pow": Cost(29.8, scalar=2.78),
            "comparison": Cost(0.0568, scalar=0.0407),
            "where": Cost(0.625, scalar=0.0513),
            "conversion": Cost(0.00779, scalar=0.0301),
            "index": Cost(0.0621, lane=0.00653, scalar=0.0401),
            "lookup": Cost(0.0435, lane=0.00401, scalar=0.0471),
            "masked": Cost(0.213, lane=0.0819, scalar=0.0874),
            "random": Cost(lane=6.68, scalar=5.05),
        }
    ),
    other=Cost(0.105, scalar=0.0994),
    steps={
        "sum": Cost(0.261, scalar=0.0364, end=0.787),
        "prod": Cost(0.0256, scalar=0.0353, end=0.812),
        "welford": Cost(4.49, scalar=1.85, end=32.6),
        "max": Cost(1.44, scalar=0.233, end=3.45),
        "min": Cost(1.22, scalar=0.152, end=4.12),
        "any": Cost(0.129, scalar=0.0465, end=5.66),
    },
    step=Cost(42.0, scalar=0.505, end=9.02),
    loads={
        0: Cost(0.152, lane=0.61, scalar=0.0556, part=0.344, half=0.507),
        1: Cost(0.0593, lane=0.00897, scalar=0.0462, part=0.245, half=0.0774),
        2: Cost(0.289, scalar=0.327, part=0.0613, half=0.141),
        4: Cost(0.0178, scalar=0.0351, part=0.376),
        8: Cost(0.138, lane=0.239, scalar=0.0443, part=0.564),
    },
    stores={
        0: Cost(0.153, lane=6.59, scalar=0.0568, part=0.493, half=0.287),
        1: Cost(0.106, lane=0.0216, scalar=0.0509, part=0.358, half=0.128),
        2: Cost(0.762, scalar=0.0728, part=0.131, half=0.0681),
        4: Cost(0.0653, scalar=0.0688, part=1.18),
        8: Cost(0.0956, lane=0.257, scalar=0.082, part=0.808),
    },
    gather=Cost(lane=0.895, scalar=0.26),
    atomic=Cost(lane=5.83, scalar=4.26),
    atomic_low=Cost(lane=6.18, scalar=7.1),
    atomic_far=Cost(lane=0.814, scalar=0.928),
    atomic_shared=Cost(lane=11.2, scalar=15.2),
    winding=Cost(lane=0.24, scalar=0.483),
    unforeseen=Cost(lane=2.89),
    remembered=1.2e4,
    rates=(29.7, 223.0, 7.66),
)

#: Atomic additions, lookups and their checks as timed by themselves on that processor.
NARROW: Final = Table(
    name="narrow",
    width=32,
    turn=Cost(0.208, scalar=0.0591),
    start=Cost(0.32),
    jump=Cost(lane=0.835),
    stay=Cost(0.0364, scalar=0.06),
    tile=Cost(2.72),
    tile_low=Cost(2.48),
    operations=_named(
        {
            "arithmetic": Cost(0.0727, scalar=0.0758),
            "rounding": Cost(1.54, scalar=0.5),
            "division": Cost(0.944, scalar=0.756),
            "exp": Cost(6.37, scalar=3.1),
            "log": Cost(12.9, scalar=3.11),
            "tanh": Cost(23.8, scalar=8.0),
            "sigmoid": Cost(9.31, scalar=3.99),
            "erf": Cost(10.8, scalar=6.0),
            "sine": Cost(3.18, scalar=5.8),
            "pow": Cost(17.8, scalar=10.0),
            "comparison": Cost(0.0233, scalar=0.101),
            "where": Cost(0.279, scalar=0.101),
            "conversion": Cost(0.0336, scalar=0.0772),
            "index": Cost(0.122, lane=0.0309, scalar=0.111),
            "lookup": Cost(0.12, lane=0.251, scalar=0.11),
            "masked": Cost(0.3, lane=0.418, scalar=0.204),
            "random": Cost(lane=10.0, scalar=10.0),
        }
    ),
    other=Cost(0.12, scalar=0.2),
    steps={
        "sum": Cost(0.0721, scalar=0.0689, end=0.492),
        "prod": Cost(0.05, scalar=0.07, end=0.6),
        "welford": Cost(7.81, scalar=2.0, end=30.3),
        "max": Cost(0.384, scalar=0.3, end=1.08),
        "min": Cost(0.4, scalar=0.3, end=1.3),
        "any": Cost(0.0994, scalar=0.1, end=0.578),
    },
    step=Cost(3.0, scalar=1.0, end=12.0),
    loads={
        0: Cost(0.2, lane=0.537, scalar=0.1, part=5.0, half=0.489),
        1: Cost(0.2, lane=0.5, scalar=0.1, part=5.0, half=0.5),
        2: Cost(0.216, lane=0.0286, scalar=0.497, part=1.04, half=4.77),
        4: Cost(0.0328, lane=0.0115, scalar=0.0569, part=0.411),
        8: Cost(0.154, lane=0.0312, scalar=0.1, part=3.0),
    },
    stores={
        0: Cost(0.201, lane=8.09, scalar=0.0996, part=5.0, half=0.503),
        1: Cost(0.202, lane=0.659, scalar=0.1, part=5.0, half=0.514),
        2: Cost(0.419, lane=0.0384, scalar=0.201, part=0.922, half=0.377),
        4: Cost(0.0661, lane=0.0149, scalar=0.306, part=0.491),
        8: Cost(0.15, lane=0.296, scalar=0.1, part=3.0),
    },
    gather=Cost(lane=0.821, scalar=0.5),
    atomic=Cost(lane=3.57, scalar=2.7),
    atomic_low=Cost(lane=6.22, scalar=5.0),
    atomic_far=Cost(lane=4.24, scalar=4.0),
    atomic_shared=Cost(lane=25.0, scalar=25.0),
    winding=Cost(lane=2.0, scalar=2.0),
    unforeseen=Cost(lane=3.04),
    remembered=1.0e5,
    rates=(69.5, 96.0, 1.0),
)
