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
    #: More for a vector of such a tile that is stored in part, and for one whose neighbours in the
    #: tile lie multiples of a page away: they want the same places in a cache.
    tile_part: Cost
    tile_far: Cost
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
    # that is compared; and an operation on elements of eight bytes, beside what it costs on four.
    "placed": "placed",
    "position": "position",
    "eight bytes": "eight_bytes",
}


def _named(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    return {name: costs[kind] for kind, names in CLASSES.items() for name in names.split()}


#: Fitted to rows of a Xeon, 1, 2 and 16 threads.
WIDE: Final = Table(
    name="wide",
    width=64,
    turn=Cost(0.368, scalar=0.0806),
    start=Cost(0.142),
    jump=Cost(lane=0.623),
    stay=Cost(0.0641, scalar=0.06),
    tile=Cost(3.01),
    tile_low=Cost(4.33),
    tile_part=Cost(1.23),
    tile_far=Cost(1.31),
    overwritten=Cost(7.93),
    border=Cost(12),
    operations=_named(
        {
            "arithmetic": Cost(0.436, scalar=0.125),
            "extremum": Cost(0.291, scalar=0.0806),
            "rounding": Cost(2.42, scalar=0.427),
            "sign": Cost(2.48, scalar=0.569),
            "division": Cost(2.46, scalar=0.74),
            "root": Cost(5.36, scalar=1.09),
            "inverse root": Cost(5.79, scalar=1.36),
            "remainder": Cost(1.96, scalar=0.629),
            "exp": Cost(11.2, scalar=2.9),
            "log": Cost(16.6, scalar=3.93),
            "tanh": Cost(44.5, scalar=6.83),
            "sigmoid": Cost(20.9, scalar=3.79),
            "erf": Cost(19.1, scalar=7.6),
            "sine": Cost(5.47, scalar=5.68),
            "pow": Cost(13.3, scalar=10),
            "order": Cost(0.0531, scalar=0.0859),
            "equality": Cost(0.0261, scalar=0.0837),
            "logic": Cost(0.0517, scalar=0.0879),
            "where": Cost(1.27, scalar=0.0895),
            "conversion": Cost(0.0599, scalar=0.0546),
            "index": Cost(0.111, lane=0.0131, scalar=0.0773),
            "lookup": Cost(0.292, lane=0.0156, scalar=0.128),
            "bounds": Cost(0.0783, scalar=0.0527),
            "masked": Cost(0.421, lane=0.168, scalar=0.149),
            "random": Cost(lane=9.82, scalar=10),
            "placed": Cost(lane=2.23, scalar=2.4),
            "position": Cost(0.086, scalar=0.032),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.304, scalar=0.0296),
        }
    ),
    other=Cost(0.168, scalar=0.197),
    steps={
        "sum": Cost(0.0657, scalar=0.1, end=3.45),
        "cascade": Cost(0.0563, scalar=0.0788, end=1.96),
        "prod": Cost(0.0506, scalar=0.07, end=1.6),
        "welford": Cost(7.67, scalar=2.28, end=62.4),
        "max": Cost(1.34, scalar=0.383, end=10.5),
        "min": Cost(1.23, scalar=0.3, end=9.54),
        "any": Cost(0.313, scalar=0.0857, end=2.98),
    },
    step=Cost(5.13, scalar=1, end=21.7),
    loads={
        0: Cost(0.304, lane=0.776, scalar=0.108, part=0.56, half=0.376),
        1: Cost(0.244, lane=0.148, scalar=0.0982, part=0.895, half=0.361),
        2: Cost(0.596, scalar=0.671, part=0.666, half=0.884),
        4: Cost(0.114, scalar=0.0511, part=0.162),
        8: Cost(0.474, lane=0.122, scalar=0.0907, part=0.834),
    },
    stores={
        0: Cost(0.302, lane=12.9, scalar=0.117, part=0.925, half=0.721),
        1: Cost(0.254, lane=0.183, scalar=0.1, part=0.754, half=0.388),
        2: Cost(0.717, scalar=0.0609, part=0.394, half=0.213),
        4: Cost(0.0532, scalar=0.348, part=0.229),
        8: Cost(0.148, lane=0.12, scalar=0.103, part=0.534),
    },
    gather=Cost(lane=2.08, scalar=0.425),
    atomic=Cost(lane=26, scalar=4.22),
    atomic_low=Cost(lane=19.8, scalar=13.9),
    atomic_far=Cost(lane=3.21, scalar=1.25),
    atomic_shared=Cost(lane=18.9, scalar=30),
    winding=Cost(lane=1.45, scalar=0.419),
    unforeseen=Cost(lane=0.0835),
    remembered=1.2e4,
    rates=(25.0, 155.0, 5.2),
)

#: Fitted to rows of an AMD EPYC of family 26 (Zen 5), 1 and 2 threads.
SWIFT: Final = Table(
    name="swift",
    width=64,
    turn=Cost(0.0353, scalar=0.108),
    start=Cost(0.00498),
    jump=Cost(lane=0.272),
    stay=Cost(0.0905, scalar=0.0241),
    tile=Cost(1.21),
    tile_low=Cost(0.798),
    tile_part=Cost(1.17),
    tile_far=Cost(1.23),
    overwritten=Cost(5.59),
    border=Cost(5.05),
    operations=_named(
        {
            "arithmetic": Cost(0.147, scalar=0.0698),
            "extremum": Cost(0.296, scalar=0.166),
            "rounding": Cost(0.389, scalar=1.25),
            "sign": Cost(1.43, scalar=4.95),
            "division": Cost(0.354, scalar=0.325),
            "root": Cost(0.667, scalar=0.499),
            "inverse root": Cost(1.36, scalar=0.866),
            "remainder": Cost(27.7, scalar=0.0962),
            "exp": Cost(3.53, scalar=1.31),
            "log": Cost(12.9, scalar=4.47),
            "tanh": Cost(18.8, scalar=24.5),
            "sigmoid": Cost(4.48, scalar=2.27),
            "erf": Cost(5.82, scalar=2.85),
            "sine": Cost(2.97, scalar=0.865),
            "pow": Cost(19.3, scalar=4.01),
            "order": Cost(0.223, scalar=0.0247),
            "equality": Cost(0.0227, scalar=0.0448),
            "logic": Cost(0.233, scalar=0.0347),
            "where": Cost(0.102, scalar=0.0296),
            "conversion": Cost(0.0022, scalar=0.0279),
            "index": Cost(0.014, lane=0.000899, scalar=0.0191),
            "lookup": Cost(0.0553, lane=0.00119, scalar=0.035),
            "bounds": Cost(0.0747, scalar=0.0535),
            "masked": Cost(0.0763, lane=0.00667, scalar=0.0422),
            "random": Cost(lane=8.71, scalar=4.01),
            "placed": Cost(lane=2.14, scalar=2.4),
            "position": Cost(0.0814, scalar=0.0315),
            "alone": Cost(lane=0.181, scalar=0.2),
            "eight bytes": Cost(0.269, scalar=0.0293),
        }
    ),
    other=Cost(0.0525, scalar=0.0668),
    steps={
        "sum": Cost(0.188, scalar=0.0511, end=0.742),
        "cascade": Cost(0.639, scalar=0.032, end=0.441),
        "prod": Cost(0.0211, scalar=0.0281, end=0.653),
        "welford": Cost(3.73, scalar=0.914, end=51.8),
        "max": Cost(1.16, scalar=0.364, end=2.72),
        "min": Cost(0.818, scalar=0.12, end=2.09),
        "any": Cost(0.235, scalar=0.0343, end=4.34),
    },
    step=Cost(5.57, scalar=0.401, end=7.82),
    loads={
        0: Cost(0.123, lane=0.432, scalar=0.0433, part=0.102, half=2.92),
        1: Cost(0.032, lane=0.00187, scalar=0.0364, part=0.21, half=0.0326),
        2: Cost(0.129, scalar=0.123, part=0.0145, half=0.0996),
        4: Cost(0.00531, scalar=0.0406, part=0.0351),
        8: Cost(0.152, lane=0.0282, scalar=0.021, part=0.193),
    },
    stores={
        0: Cost(0.121, lane=5.19, scalar=0.0624, part=0.327, half=0.476),
        1: Cost(0.084, lane=0.0271, scalar=0.0409, part=0.225, half=0.0783),
        2: Cost(0.464, scalar=0.0348, part=0.021, half=0.052),
        4: Cost(0.0398, scalar=0.0157, part=0.135),
        8: Cost(0.0394, lane=0.00251, scalar=0.0468, part=0.255),
    },
    gather=Cost(lane=0.604, scalar=0.0763),
    atomic=Cost(lane=5.36, scalar=4.25),
    atomic_low=Cost(lane=6.28, scalar=7.46),
    atomic_far=Cost(lane=1.28, scalar=0.573),
    atomic_shared=Cost(lane=0.78, scalar=12),
    winding=Cost(lane=0.264, scalar=0.0311),
    unforeseen=Cost(lane=0.82),
    remembered=4.0e4,
    rates=(115.0, 102.0, 1.53),
)

#: Fitted to rows of an EPYC (family 25, model 17), 2 threads.
STEADY: Final = Table(
    name="steady",
    width=64,
    turn=Cost(0.0272, scalar=0.138),
    start=Cost(0.00502),
    jump=Cost(lane=0.476),
    stay=Cost(0.0711, scalar=0.0241),
    tile=Cost(1.1),
    tile_low=Cost(1.64),
    tile_part=Cost(1.2),
    tile_far=Cost(1.27),
    overwritten=Cost(6.87),
    border=Cost(5.23),
    operations=_named(
        {
            "arithmetic": Cost(0.156, scalar=0.184),
            "extremum": Cost(0.0377, scalar=0.144),
            "rounding": Cost(0.407, scalar=1.25),
            "sign": Cost(1.48, scalar=4.86),
            "division": Cost(0.359, scalar=0.586),
            "root": Cost(2.13, scalar=0.496),
            "inverse root": Cost(2.89, scalar=1.39),
            "remainder": Cost(27.8, scalar=0.0965),
            "exp": Cost(5.67, scalar=1.42),
            "log": Cost(15, scalar=4.51),
            "tanh": Cost(24.3, scalar=25.3),
            "sigmoid": Cost(7.56, scalar=3.38),
            "erf": Cost(10.5, scalar=2.85),
            "sine": Cost(4.38, scalar=0.85),
            "pow": Cost(22.1, scalar=4.01),
            "order": Cost(0.269, scalar=0.0247),
            "equality": Cost(0.0229, scalar=0.0448),
            "logic": Cost(0.77, scalar=0.0346),
            "where": Cost(0.193, scalar=0.0296),
            "conversion": Cost(0.00207, scalar=0.027),
            "index": Cost(0.00729, lane=0.000465, scalar=0.0194),
            "lookup": Cost(0.0168, lane=0.000363, scalar=0.0347),
            "bounds": Cost(0.0783, scalar=0.0518),
            "masked": Cost(0.336, lane=0.0298, scalar=0.0423),
            "random": Cost(lane=10.7, scalar=4.01),
            "placed": Cost(lane=2.3, scalar=2.4),
            "position": Cost(0.0864, scalar=0.032),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.303, scalar=0.0296),
        }
    ),
    other=Cost(0.0528, scalar=0.0668),
    steps={
        "sum": Cost(0.358, scalar=0.0764, end=1.51),
        "cascade": Cost(0.926, scalar=0.0318, end=1.05),
        "prod": Cost(0.0211, scalar=0.0281, end=0.653),
        "welford": Cost(3.84, scalar=0.914, end=49.1),
        "max": Cost(1.12, scalar=0.367, end=4.71),
        "min": Cost(0.83, scalar=0.12, end=2.12),
        "any": Cost(0.234, scalar=0.0343, end=4.33),
    },
    step=Cost(5.76, scalar=0.401, end=7.77),
    loads={
        0: Cost(0.114, lane=0.483, scalar=0.0433, part=0.0959, half=2.27),
        1: Cost(0.032, lane=0.00187, scalar=0.0364, part=0.214, half=0.0328),
        2: Cost(0.379, scalar=0.109, part=0.0363, half=0.27),
        4: Cost(0.00436, scalar=0.0418, part=0.0295),
        8: Cost(0.0836, lane=0.0171, scalar=0.0211, part=0.103),
    },
    stores={
        0: Cost(0.109, lane=5.58, scalar=0.0616, part=0.296, half=0.428),
        1: Cost(0.0839, lane=0.027, scalar=0.0409, part=0.228, half=0.0786),
        2: Cost(0.909, scalar=0.0335, part=0.068, half=0.171),
        4: Cost(0.039, scalar=0.0158, part=0.141),
        8: Cost(0.0265, lane=0.00169, scalar=0.0469, part=0.172),
    },
    gather=Cost(lane=0.336, scalar=0.0761),
    atomic=Cost(lane=2.75, scalar=3.89),
    atomic_low=Cost(lane=6.57, scalar=7.4),
    atomic_far=Cost(lane=1.28, scalar=0.573),
    atomic_shared=Cost(lane=0.803, scalar=12),
    winding=Cost(lane=0.471, scalar=0.0306),
    unforeseen=Cost(lane=0.744),
    remembered=4.0e4,
    rates=(97.0, 105.0, 1.21),
)

#: Fitted to rows of another Xeon (family 6, model 167), 2 threads.
KEEN: Final = Table(
    name="keen",
    width=64,
    turn=Cost(0.091, scalar=0.113),
    start=Cost(0.00952),
    jump=Cost(lane=0.436),
    stay=Cost(0.0408, scalar=0.0303),
    tile=Cost(1.41),
    tile_low=Cost(0.854),
    tile_part=Cost(1.09),
    tile_far=Cost(1.29),
    overwritten=Cost(6.06),
    border=Cost(38.5),
    operations=_named(
        {
            "arithmetic": Cost(0.176, scalar=0.0881),
            "extremum": Cost(0.487, scalar=0.0449),
            "rounding": Cost(0.876, scalar=0.0959),
            "sign": Cost(1.88, scalar=1.07),
            "division": Cost(0.914, scalar=0.394),
            "root": Cost(3.22, scalar=0.581),
            "inverse root": Cost(4.62, scalar=2.24),
            "remainder": Cost(41.7, scalar=0.306),
            "exp": Cost(4.61, scalar=1.71),
            "log": Cost(12.3, scalar=9.04),
            "tanh": Cost(23.3, scalar=12.4),
            "sigmoid": Cost(5.9, scalar=2.51),
            "erf": Cost(7.96, scalar=7.35),
            "sine": Cost(4.6, scalar=0.441),
            "pow": Cost(10.5, scalar=0.574),
            "order": Cost(0.187, scalar=0.0448),
            "equality": Cost(0.02, scalar=0.0343),
            "logic": Cost(0.489, scalar=0.0389),
            "where": Cost(0.538, scalar=0.104),
            "conversion": Cost(0.00488, scalar=0.0227),
            "index": Cost(0.0156, lane=0.000993, scalar=0.0284),
            "lookup": Cost(0.0322, lane=0.000533, scalar=0.0538),
            "bounds": Cost(0.0737, scalar=0.0528),
            "masked": Cost(0.1, lane=0.00924, scalar=0.0644),
            "random": Cost(lane=6.85, scalar=5.05),
            "placed": Cost(lane=2.19, scalar=2.4),
            "position": Cost(0.0821, scalar=0.0316),
            "alone": Cost(lane=0.221, scalar=0.2),
            "eight bytes": Cost(0.273, scalar=0.0288),
        }
    ),
    other=Cost(0.0761, scalar=0.0876),
    steps={
        "sum": Cost(0.277, scalar=0.0582, end=1.04),
        "cascade": Cost(0.958, scalar=0.0428, end=0.786),
        "prod": Cost(0.0259, scalar=0.0353, end=0.815),
        "welford": Cost(3.49, scalar=3.97, end=41.4),
        "max": Cost(1.08, scalar=0.745, end=3.44),
        "min": Cost(1.08, scalar=0.152, end=3.54),
        "any": Cost(2.33, scalar=0.041, end=21.5),
    },
    step=Cost(68.8, scalar=0.505, end=9.78),
    loads={
        0: Cost(0.155, lane=0.597, scalar=0.0822, part=0.173, half=0.474),
        1: Cost(0.0467, lane=0.00322, scalar=0.0435, part=0.236, half=0.0501),
        2: Cost(0.247, scalar=0.168, part=0.0307, half=0.0992),
        4: Cost(0.0223, scalar=0.0356, part=0.0455),
        8: Cost(0.21, lane=0.0814, scalar=0.0177, part=0.858),
    },
    stores={
        0: Cost(0.153, lane=5.29, scalar=0.0668, part=0.429, half=0.679),
        1: Cost(0.0759, lane=0.014, scalar=0.0509, part=0.26, half=0.0792),
        2: Cost(0.733, scalar=0.0349, part=0.0447, half=0.251),
        4: Cost(0.121, scalar=0.0229, part=0.23),
        8: Cost(0.0492, lane=0.00406, scalar=0.0436, part=0.214),
    },
    gather=Cost(lane=0.803, scalar=0.0465),
    atomic=Cost(lane=5.22, scalar=4.11),
    atomic_low=Cost(lane=6.08, scalar=5.04),
    atomic_far=Cost(lane=0.804, scalar=0.505),
    atomic_shared=Cost(lane=13.7, scalar=15.2),
    winding=Cost(lane=0.153, scalar=0.0679),
    unforeseen=Cost(lane=0.822),
    remembered=6.0e3,
    rates=(29.7, 223.0, 7.66),
)

#: Atomic additions, lookups and their checks as timed by themselves on that processor.
NARROW: Final = Table(
    name="narrow",
    width=32,
    turn=Cost(0.239, scalar=0.0753),
    start=Cost(0.0849),
    jump=Cost(lane=0.812),
    stay=Cost(0.0949, scalar=0.06),
    tile=Cost(2.98),
    tile_low=Cost(2.32),
    tile_part=Cost(0.882),
    tile_far=Cost(1.26),
    overwritten=Cost(6.22),
    border=Cost(10.3),
    operations=_named(
        {
            "arithmetic": Cost(0.204, scalar=0.0782),
            "extremum": Cost(0.0818, scalar=0.0742),
            "rounding": Cost(1.79, scalar=0.429),
            "sign": Cost(1.65, scalar=0.568),
            "division": Cost(0.385, scalar=0.544),
            "root": Cost(0.699, scalar=0.951),
            "inverse root": Cost(1.56, scalar=1.07),
            "remainder": Cost(0.972, scalar=0.591),
            "exp": Cost(5.84, scalar=2.66),
            "log": Cost(14.8, scalar=4.12),
            "tanh": Cost(22.8, scalar=6.83),
            "sigmoid": Cost(8.91, scalar=3.68),
            "erf": Cost(9.29, scalar=6.71),
            "sine": Cost(3.31, scalar=5.88),
            "pow": Cost(11.5, scalar=10),
            "order": Cost(0.0302, scalar=0.0883),
            "equality": Cost(0.0147, scalar=0.0874),
            "logic": Cost(0.0287, scalar=0.0896),
            "where": Cost(0.473, scalar=0.0889),
            "conversion": Cost(0.0227, scalar=0.0517),
            "index": Cost(0.0652, lane=0.0124, scalar=0.0815),
            "lookup": Cost(0.124, lane=0.0346, scalar=0.127),
            "bounds": Cost(0.0793, scalar=0.0527),
            "masked": Cost(0.26, lane=0.223, scalar=0.147),
            "random": Cost(lane=10.3, scalar=10),
            "placed": Cost(lane=2.22, scalar=2.4),
            "position": Cost(0.085, scalar=0.0319),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.301, scalar=0.0296),
        }
    ),
    other=Cost(0.101, scalar=0.197),
    steps={
        "sum": Cost(0.105, scalar=0.094, end=0.598),
        "cascade": Cost(0.0798, scalar=0.0765, end=0.497),
        "prod": Cost(0.0506, scalar=0.07, end=0.603),
        "welford": Cost(5.04, scalar=2.28, end=35.2),
        "max": Cost(0.267, scalar=0.377, end=0.934),
        "min": Cost(0.353, scalar=0.3, end=1.12),
        "any": Cost(0.229, scalar=0.0857, end=0.894),
    },
    step=Cost(3.08, scalar=1, end=13),
    loads={
        0: Cost(0.208, lane=1.1, scalar=0.108, part=2.95, half=0.387),
        1: Cost(0.17, lane=0.203, scalar=0.0979, part=4.53, half=0.378),
        2: Cost(0.174, lane=0.0131, scalar=0.426, part=0.779, half=4.15),
        4: Cost(0.0267, lane=0.00232, scalar=0.038, part=0.117),
        8: Cost(0.297, lane=0.0526, scalar=0.0776, part=1.97),
    },
    stores={
        0: Cost(0.201, lane=8.12, scalar=0.12, part=4.49, half=0.716),
        1: Cost(0.174, lane=0.804, scalar=0.1, part=3.77, half=0.41),
        2: Cost(0.387, lane=0.0347, scalar=0.169, part=0.359, half=0.378),
        4: Cost(0.0356, lane=0.00661, scalar=0.149, part=0.234),
        8: Cost(0.112, lane=0.0473, scalar=0.0865, part=1.63),
    },
    gather=Cost(lane=1.27, scalar=0.375),
    atomic=Cost(lane=5.07, scalar=2.35),
    atomic_low=Cost(lane=6.07, scalar=4.33),
    atomic_far=Cost(lane=10.3, scalar=2.89),
    atomic_shared=Cost(lane=11.8, scalar=25),
    winding=Cost(lane=0.661, scalar=0.284),
    unforeseen=Cost(lane=2.42),
    remembered=5.0e4,
    rates=(69.5, 96.0, 1.0),
)
