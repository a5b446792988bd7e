"""What operations and accesses of C++ loops cost on one thread of the processors that are known.

In nanoseconds of the five processors that the x86 dataset was taken on, four with vectors of 64
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
    "arithmetic": "abs add sub mul neg fma square",
    "extremum": "relu maximum minimum",
    "rounding": "floor ceil round trunc floor_to_int ceil_to_int round_to_int trunc_to_int",
    "sign": "sign",
    "division": "truediv reciprocal div_rn",
    "root": "sqrt",
    "inverse root": "rsqrt",
    "remainder": "fmod mod remainder floordiv",
    "exp": "exp exp2 expm1",
    "log": "log log2 log10 log1p",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf erfc erfinv",
    "sine": "sin cos tan",
    "pow": "pow",
    "order": "lt le gt ge",
    "equality": "eq ne isnan isinf",
    "logic": "and_ or_ xor logical_and logical_or logical_not logical_xor "
    "bitwise_and bitwise_or bitwise_not bitwise_xor",
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
    turn=Cost(0.283, scalar=0.0585),
    start=Cost(0.369),
    jump=Cost(lane=0.63),
    stay=Cost(0.047, scalar=0.06),
    tile=Cost(3.35),
    tile_low=Cost(4.56),
    border=Cost(11.9),
    operations=_named(
        {
            "arithmetic": Cost(0.408, scalar=0.0955),
            "extremum": Cost(0.228, scalar=0.0853),
            "rounding": Cost(2.15, scalar=0.498),
            "sign": Cost(2.37, scalar=0.491),
            "division": Cost(2.19, scalar=0.963),
            "root": Cost(4.48, scalar=0.835),
            "inverse root": Cost(5.06, scalar=0.868),
            "remainder": Cost(1.9, scalar=0.804),
            "exp": Cost(11.2, scalar=3.05),
            "log": Cost(16.3, scalar=3.04),
            "tanh": Cost(45.8, scalar=8.0),
            "sigmoid": Cost(15.7, scalar=4.04),
            "erf": Cost(19.6, scalar=6.71),
            "sine": Cost(5.41, scalar=5.74),
            "pow": Cost(22.0, scalar=10.0),
            "order": Cost(0.0416, scalar=0.0967),
            "equality": Cost(0.0411, scalar=0.097),
            "logic": Cost(0.0411, scalar=0.0991),
            "where": Cost(0.98, scalar=0.1),
            "conversion": Cost(0.0812, scalar=0.0779),
            "index": Cost(0.202, lane=0.0309, scalar=0.104),
            "lookup": Cost(0.249, lane=0.0647, scalar=0.109),
            "masked": Cost(0.492, lane=0.35, scalar=0.2),
            "random": Cost(lane=10.0, scalar=10.0),
        }
    ),
    other=Cost(0.2, scalar=0.2),
    steps={
        "sum": Cost(0.0543, scalar=0.0718, end=2.28),
        "cascade": Cost(0.0562, scalar=0.0707, end=1.93),
        "prod": Cost(0.05, scalar=0.07, end=1.6),
        "welford": Cost(7.9, scalar=2.0, end=45.2),
        "max": Cost(1.53, scalar=0.3, end=10.5),
        "min": Cost(1.4, scalar=0.3, end=11.1),
        "any": Cost(0.131, scalar=0.1, end=1.8),
    },
    step=Cost(5.0, scalar=1.0, end=20.0),
    loads={
        0: Cost(0.297, lane=0.696, scalar=0.1, part=0.949, half=0.486),
        1: Cost(0.289, lane=0.385, scalar=0.1, part=0.982, half=0.482),
        2: Cost(0.556, scalar=0.555, part=0.843, half=0.684),
        4: Cost(0.0969, scalar=0.0673, part=0.466),
        8: Cost(0.245, lane=0.0599, scalar=0.115, part=1.21),
    },
    stores={
        0: Cost(0.302, lane=11.3, scalar=0.0958, part=1.02, half=0.505),
        1: Cost(0.298, lane=0.186, scalar=0.1, part=1.0, half=0.495),
        2: Cost(0.662, scalar=0.0702, part=0.866, half=0.191),
        4: Cost(0.096, scalar=0.504, part=0.486),
        8: Cost(0.199, lane=0.829, scalar=0.119, part=0.986),
    },
    gather=Cost(lane=1.81, scalar=0.538),
    atomic=Cost(lane=23.9, scalar=5.11),
    atomic_low=Cost(lane=19.8, scalar=16.0),
    atomic_far=Cost(lane=2.0, scalar=1.77),
    atomic_shared=Cost(lane=34.3, scalar=30.0),
    winding=Cost(lane=2.32, scalar=2.0),
    unforeseen=Cost(lane=0.374),
    remembered=1.2e4,
    rates=(25.0, 155.0, 5.2),
)

#: Fitted to rows of an AMD EPYC of family 26 (Zen 5), 1 and 2 threads.
SWIFT: Final = Table(
    name="swift",
    width=64,
    turn=Cost(0.0272, scalar=0.0729),
    start=Cost(0.0133),
    jump=Cost(lane=0.215),
    stay=Cost(0.0819, scalar=0.0241),
    tile=Cost(1.3),
    tile_low=Cost(0.884),
    border=Cost(5.42),
    operations=_named(
        {
            "arithmetic": Cost(0.159, scalar=0.0569),
            "extremum": Cost(0.264, scalar=0.169),
            "rounding": Cost(0.35, scalar=1.46),
            "sign": Cost(1.42, scalar=4.18),
            "division": Cost(0.363, scalar=0.453),
            "root": Cost(0.636, scalar=0.383),
            "inverse root": Cost(1.4, scalar=0.564),
            "remainder": Cost(27.0, scalar=0.124),
            "exp": Cost(3.94, scalar=1.4),
            "log": Cost(10.8, scalar=3.53),
            "tanh": Cost(19.1, scalar=29.7),
            "sigmoid": Cost(4.59, scalar=2.42),
            "erf": Cost(5.77, scalar=2.54),
            "sine": Cost(3.03, scalar=0.839),
            "pow": Cost(27.0, scalar=4.01),
            "order": Cost(0.184, scalar=0.0278),
            "equality": Cost(0.0362, scalar=0.0518),
            "logic": Cost(0.194, scalar=0.0389),
            "where": Cost(0.0938, scalar=0.033),
            "conversion": Cost(0.00308, scalar=0.0394),
            "index": Cost(0.0254, lane=0.0021, scalar=0.0259),
            "lookup": Cost(0.0492, lane=0.00524, scalar=0.0297),
            "masked": Cost(0.0892, lane=0.0131, scalar=0.057),
            "random": Cost(lane=8.98, scalar=4.01),
        }
    ),
    other=Cost(0.0626, scalar=0.0676),
    steps={
        "sum": Cost(0.19, scalar=0.0366, end=0.552),
        "cascade": Cost(0.568, scalar=0.0287, end=0.438),
        "prod": Cost(0.0208, scalar=0.0281, end=0.65),
        "welford": Cost(3.67, scalar=0.801, end=43.5),
        "max": Cost(1.19, scalar=0.283, end=2.75),
        "min": Cost(0.943, scalar=0.12, end=2.46),
        "any": Cost(0.0987, scalar=0.0401, end=2.63),
    },
    step=Cost(5.61, scalar=0.401, end=7.14),
    loads={
        0: Cost(0.12, lane=0.416, scalar=0.04, part=0.173, half=3.44),
        1: Cost(0.0377, lane=0.0046, scalar=0.0373, part=0.236, half=0.0433),
        2: Cost(0.131, scalar=0.0948, part=0.0185, half=0.0763),
        4: Cost(0.00479, scalar=0.0537, part=0.1),
        8: Cost(0.0863, lane=0.0205, scalar=0.027, part=0.292),
    },
    stores={
        0: Cost(0.121, lane=5.29, scalar=0.0506, part=0.362, half=0.33),
        1: Cost(0.098, lane=0.0265, scalar=0.0409, part=0.303, half=0.1),
        2: Cost(0.348, scalar=0.0392, part=0.0458, half=0.0469),
        4: Cost(0.0718, scalar=0.0249, part=0.3),
        8: Cost(0.0529, lane=0.016, scalar=0.0543, part=0.469),
    },
    gather=Cost(lane=0.576, scalar=0.0967),
    atomic=Cost(lane=5.51, scalar=4.79),
    atomic_low=Cost(lane=6.7, scalar=8.55),
    atomic_far=Cost(lane=0.801, scalar=0.793),
    atomic_shared=Cost(lane=1.48, scalar=12.0),
    winding=Cost(lane=0.511, scalar=0.146),
    unforeseen=Cost(lane=0.403),
    remembered=1.2e4,
    rates=(115.0, 102.0, 1.53),
)

#: Fitted to rows of an EPYC (family 25, model 17), 2 threads.
STEADY: Final = Table(
    name="steady",
    width=64,
    turn=Cost(0.0206, scalar=0.109),
    start=Cost(0.0133),
    jump=Cost(lane=0.4),
    stay=Cost(0.0466, scalar=0.0241),
    tile=Cost(1.2),
    tile_low=Cost(1.74),
    border=Cost(5.38),
    operations=_named(
        {
            "arithmetic": Cost(0.107, scalar=0.173),
            "extremum": Cost(0.0342, scalar=0.169),
            "rounding": Cost(0.35, scalar=1.46),
            "sign": Cost(1.42, scalar=4.18),
            "division": Cost(0.262, scalar=0.973),
            "root": Cost(2.05, scalar=0.383),
            "inverse root": Cost(2.66, scalar=0.9),
            "remainder": Cost(27.0, scalar=0.124),
            "exp": Cost(5.88, scalar=1.4),
            "log": Cost(16.1, scalar=3.53),
            "tanh": Cost(23.3, scalar=29.7),
            "sigmoid": Cost(6.85, scalar=3.61),
            "erf": Cost(10.9, scalar=2.54),
            "sine": Cost(4.01, scalar=0.839),
            "pow": Cost(33.6, scalar=4.01),
            "order": Cost(0.196, scalar=0.0278),
            "equality": Cost(0.0362, scalar=0.0518),
            "logic": Cost(0.54, scalar=0.0389),
            "where": Cost(0.151, scalar=0.033),
            "conversion": Cost(0.00284, scalar=0.0394),
            "index": Cost(0.0131, lane=0.00108, scalar=0.0259),
            "lookup": Cost(0.0151, lane=0.00161, scalar=0.0297),
            "masked": Cost(0.383, lane=0.0562, scalar=0.057),
            "random": Cost(lane=11.0, scalar=4.01),
        }
    ),
    other=Cost(0.0626, scalar=0.0676),
    steps={
        "sum": Cost(0.237, scalar=0.0546, end=0.688),
        "cascade": Cost(1.36, scalar=0.0287, end=1.05),
        "prod": Cost(0.0208, scalar=0.0281, end=0.65),
        "welford": Cost(4.09, scalar=0.801, end=48.5),
        "max": Cost(1.78, scalar=0.283, end=4.1),
        "min": Cost(0.943, scalar=0.12, end=2.46),
        "any": Cost(0.0987, scalar=0.0401, end=2.63),
    },
    step=Cost(5.61, scalar=0.401, end=7.14),
    loads={
        0: Cost(0.111, lane=0.384, scalar=0.04, part=0.16, half=3.18),
        1: Cost(0.0377, lane=0.0046, scalar=0.0373, part=0.236, half=0.0433),
        2: Cost(0.316, scalar=0.0948, part=0.0446, half=0.184),
        4: Cost(0.00392, scalar=0.0612, part=0.0819),
        8: Cost(0.0455, lane=0.0108, scalar=0.027, part=0.154),
    },
    stores={
        0: Cost(0.109, lane=4.79, scalar=0.0506, part=0.328, half=0.299),
        1: Cost(0.098, lane=0.0265, scalar=0.0409, part=0.303, half=0.1),
        2: Cost(1.12, scalar=0.0392, part=0.147, half=0.151),
        4: Cost(0.0691, scalar=0.0249, part=0.289),
        8: Cost(0.0355, lane=0.0107, scalar=0.0543, part=0.314),
    },
    gather=Cost(lane=0.239, scalar=0.0967),
    atomic=Cost(lane=2.29, scalar=4.79),
    atomic_low=Cost(lane=6.7, scalar=8.55),
    atomic_far=Cost(lane=0.801, scalar=0.793),
    atomic_shared=Cost(lane=1.48, scalar=12.0),
    winding=Cost(lane=0.762, scalar=0.146),
    unforeseen=Cost(lane=0.601),
    remembered=12000.0,
    rates=(97.0, 105.0, 1.21),
)

#: Fitted to rows of another Xeon (family 6, model 167), 2 threads.
KEEN: Final = Table(
    name="keen",
    width=64,
    turn=Cost(0.0712, scalar=0.0848),
    start=Cost(0.0254),
    jump=Cost(lane=0.396),
    stay=Cost(0.0312, scalar=0.0303),
    tile=Cost(1.46),
    tile_low=Cost(0.986),
    border=Cost(40.7),
    operations=_named(
        {
            "arithmetic": Cost(0.176, scalar=0.0749),
            "extremum": Cost(0.462, scalar=0.0482),
            "rounding": Cost(0.69, scalar=0.113),
            "sign": Cost(1.8, scalar=0.907),
            "division": Cost(0.829, scalar=0.508),
            "root": Cost(3.28, scalar=0.448),
            "inverse root": Cost(4.64, scalar=1.48),
            "remainder": Cost(40.4, scalar=0.393),
            "exp": Cost(4.64, scalar=1.78),
            "log": Cost(11.0, scalar=6.89),
            "tanh": Cost(24.0, scalar=14.1),
            "sigmoid": Cost(6.05, scalar=2.73),
            "erf": Cost(7.94, scalar=6.61),
            "sine": Cost(4.42, scalar=0.431),
            "pow": Cost(17.7, scalar=0.574),
            "order": Cost(0.149, scalar=0.051),
            "equality": Cost(0.0317, scalar=0.0399),
            "logic": Cost(0.417, scalar=0.0442),
            "where": Cost(0.538, scalar=0.118),
            "conversion": Cost(0.00681, scalar=0.0329),
            "index": Cost(0.0284, lane=0.00234, scalar=0.0382),
            "lookup": Cost(0.029, lane=0.00237, scalar=0.046),
            "masked": Cost(0.117, lane=0.0184, scalar=0.0874),
            "random": Cost(lane=7.11, scalar=5.05),
        }
    ),
    other=Cost(0.0909, scalar=0.0883),
    steps={
        "sum": Cost(0.279, scalar=0.0418, end=0.899),
        "cascade": Cost(0.828, scalar=0.0384, end=0.78),
        "prod": Cost(0.0256, scalar=0.0353, end=0.812),
        "welford": Cost(3.63, scalar=3.45, end=37.3),
        "max": Cost(1.14, scalar=0.583, end=3.29),
        "min": Cost(1.22, scalar=0.152, end=4.12),
        "any": Cost(0.901, scalar=0.0483, end=12.6),
    },
    step=Cost(64.7, scalar=0.505, end=8.99),
    loads={
        0: Cost(0.152, lane=0.605, scalar=0.0752, part=0.292, half=0.602),
        1: Cost(0.0553, lane=0.00795, scalar=0.0447, part=0.26, half=0.0667),
        2: Cost(0.279, scalar=0.141, part=0.0392, half=0.0821),
        4: Cost(0.0199, scalar=0.0503, part=0.13),
        8: Cost(0.118, lane=0.0642, scalar=0.0228, part=1.33),
    },
    stores={
        0: Cost(0.153, lane=5.01, scalar=0.0549, part=0.474, half=0.472),
        1: Cost(0.0897, lane=0.0142, scalar=0.0509, part=0.347, half=0.102),
        2: Cost(0.589, scalar=0.0407, part=0.0976, half=0.231),
        4: Cost(0.211, scalar=0.0364, part=0.487),
        8: Cost(0.0662, lane=0.026, scalar=0.0506, part=0.394),
    },
    gather=Cost(lane=0.767, scalar=0.06),
    atomic=Cost(lane=5.37, scalar=4.34),
    atomic_low=Cost(lane=6.15, scalar=5.92),
    atomic_far=Cost(lane=0.528, scalar=0.702),
    atomic_shared=Cost(lane=24.3, scalar=15.2),
    winding=Cost(lane=0.223, scalar=0.368),
    unforeseen=Cost(lane=2.22),
    remembered=1.2e4,
    rates=(29.7, 223.0, 7.66),
)

#: Atomic additions, lookups and their checks as timed by themselves on that processor.
NARROW: Final = Table(
    name="narrow",
    width=32,
    turn=Cost(0.159, scalar=0.0585),
    start=Cost(0.242),
    jump=Cost(lane=0.727),
    stay=Cost(0.0581, scalar=0.06),
    tile=Cost(2.77),
    tile_low=Cost(2.26),
    border=Cost(10.5),
    operations=_named(
        {
            "arithmetic": Cost(0.182, scalar=0.0725),
            "extremum": Cost(0.0731, scalar=0.0758),
            "rounding": Cost(1.54, scalar=0.5),
            "sign": Cost(1.52, scalar=0.5),
            "division": Cost(0.436, scalar=0.832),
            "root": Cost(0.809, scalar=0.745),
            "inverse root": Cost(1.39, scalar=0.702),
            "remainder": Cost(0.944, scalar=0.756),
            "exp": Cost(6.77, scalar=3.1),
            "log": Cost(13.1, scalar=3.17),
            "tanh": Cost(23.3, scalar=8.0),
            "sigmoid": Cost(9.25, scalar=3.97),
            "erf": Cost(10.7, scalar=6.0),
            "sine": Cost(3.18, scalar=5.8),
            "pow": Cost(17.8, scalar=10.0),
            "order": Cost(0.0234, scalar=0.1),
            "equality": Cost(0.0232, scalar=0.101),
            "logic": Cost(0.0232, scalar=0.101),
            "where": Cost(0.36, scalar=0.1),
            "conversion": Cost(0.0317, scalar=0.0758),
            "index": Cost(0.118, lane=0.0291, scalar=0.11),
            "lookup": Cost(0.117, lane=0.181, scalar=0.11),
            "masked": Cost(0.3, lane=0.413, scalar=0.201),
            "random": Cost(lane=10.0, scalar=10.0),
        }
    ),
    other=Cost(0.12, scalar=0.2),
    steps={
        "sum": Cost(0.0699, scalar=0.068, end=0.421),
        "cascade": Cost(0.0787, scalar=0.0689, end=0.492),
        "prod": Cost(0.05, scalar=0.07, end=0.6),
        "welford": Cost(7.61, scalar=2.0, end=30.3),
        "max": Cost(0.366, scalar=0.3, end=0.948),
        "min": Cost(0.4, scalar=0.3, end=1.3),
        "any": Cost(0.0987, scalar=0.1, end=0.556),
    },
    step=Cost(3.0, scalar=1.0, end=12.0),
    loads={
        0: Cost(0.202, lane=0.782, scalar=0.1, part=5.0, half=0.498),
        1: Cost(0.2, lane=0.5, scalar=0.1, part=5.0, half=0.5),
        2: Cost(0.18, lane=0.0236, scalar=0.486, part=0.931, half=3.08),
        4: Cost(0.0258, lane=0.00691, scalar=0.0546, part=0.339),
        8: Cost(0.156, lane=0.0317, scalar=0.1, part=3.0),
    },
    stores={
        0: Cost(0.201, lane=8.25, scalar=0.0989, part=5.0, half=0.503),
        1: Cost(0.203, lane=0.746, scalar=0.1, part=5.0, half=0.52),
        2: Cost(0.352, lane=0.0336, scalar=0.202, part=0.792, half=0.345),
        4: Cost(0.0653, lane=0.0146, scalar=0.257, part=0.493),
        8: Cost(0.15, lane=0.3, scalar=0.1, part=3.0),
    },
    gather=Cost(lane=0.99, scalar=0.5),
    atomic=Cost(lane=4.61, scalar=2.7),
    atomic_low=Cost(lane=6.09, scalar=5.0),
    atomic_far=Cost(lane=5.88, scalar=4.0),
    atomic_shared=Cost(lane=23.1, scalar=25.0),
    winding=Cost(lane=1.1, scalar=1.54),
    unforeseen=Cost(lane=3.41),
    remembered=1.0e5,
    rates=(69.5, 96.0, 1.0),
)
