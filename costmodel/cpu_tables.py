"""What operations and accesses of C++ loops cost on one thread of the processors that are known.

In nanoseconds of the three processors that the x86 dataset was taken on, two with vectors of 64
bytes and masks for parts of them, one with 32 bytes and none. They fit the kernels of its training
families. Says nothing of which processor is like which.
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
    #: Elements of type bool, for each thread, whose branches a processor remembers from run to run,
    #: and the part of the time of a load that is left then. Masks of vectors need no branches: 0.
    remembered: float
    foretold: float


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
    remembered=0.0,
    foretold=1.0,
)

#: Fitted to rows of an AMD EPYC of family 26 (Zen 5), 1 and 2 threads.
SWIFT: Final = Table(
    name="swift",
    width=64,
    turn=Cost(0.072, scalar=0.0469),
    start=Cost(0.0593),
    jump=Cost(lane=0.467),
    stay=Cost(0.0108, scalar=0.0264),
    tile=Cost(1.53),
    tile_low=Cost(0.983),
    operations=_named(
        {
            "arithmetic": Cost(0.116, scalar=0.0847),
            "rounding": Cost(0.819, scalar=0.623),
            "division": Cost(0.59, scalar=0.37),
            "exp": Cost(3.94, scalar=1.43),
            "log": Cost(12.1, scalar=3.0),
            "tanh": Cost(19.5, scalar=21.0),
            "sigmoid": Cost(4.96, scalar=2.17),
            "erf": Cost(6.18, scalar=2.79),
            "sine": Cost(3.18, scalar=1.28),
            "pow": Cost(22.9, scalar=4.4),
            "comparison": Cost(0.028, scalar=0.0413),
            "where": Cost(0.294, scalar=0.0413),
            "conversion": Cost(0.00874, scalar=0.0291),
            "index": Cost(0.0586, lane=0.00648, scalar=0.0388),
            "lookup": Cost(0.0658, lane=0.00817, scalar=0.0418),
            "masked": Cost(0.182, lane=0.0626, scalar=0.0792),
            "random": Cost(lane=8.85, scalar=4.4),
        }
    ),
    other=Cost(0.0942, scalar=0.0867),
    steps={
        "sum": Cost(0.263, scalar=0.031, end=0.326),
        "prod": Cost(0.0222, scalar=0.0308, end=0.708),
        "welford": Cost(4.02, scalar=0.88, end=31.2),
        "max": Cost(1.52, scalar=0.175, end=2.95),
        "min": Cost(0.9, scalar=0.132, end=4.02),
        "any": Cost(0.0737, scalar=0.044, end=1.39),
    },
    step=Cost(5.29, scalar=0.44, end=7.72),
    loads={
        0: Cost(0.133, lane=0.713, scalar=0.0444, part=0.34, half=0.33),
        1: Cost(0.0779, lane=0.0239, scalar=0.0421, part=0.294, half=0.108),
        2: Cost(0.176, scalar=0.217, part=0.0839, half=0.18),
        4: Cost(0.0205, scalar=0.0321, part=0.273),
        8: Cost(0.112, lane=0.0466, scalar=0.0428, part=0.5),
    },
    stores={
        0: Cost(0.133, lane=5.63, scalar=0.0469, part=0.436, half=0.237),
        1: Cost(0.12, lane=0.0475, scalar=0.0443, part=0.381, half=0.168),
        2: Cost(0.384, scalar=0.0397, part=0.164, half=0.0677),
        4: Cost(0.0324, scalar=0.0969, part=0.647),
        8: Cost(0.0822, lane=0.109, scalar=0.0695, part=0.552),
    },
    gather=Cost(lane=0.618, scalar=0.156),
    atomic=Cost(lane=5.85, scalar=3.85),
    atomic_low=Cost(lane=7.86, scalar=6.97),
    atomic_far=Cost(lane=0.88, scalar=0.871),
    atomic_shared=Cost(lane=6.86, scalar=13.2),
    remembered=0.0,
    foretold=1.0,
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
        0: Cost(0.2, lane=3.58, scalar=0.1, part=5.0, half=0.489),
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
    remembered=1.0e5,
    foretold=0.15,
)
