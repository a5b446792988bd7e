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
    # that is compared; a number that is chosen by comparing values; and an operation on elements of
    # eight bytes, beside what it costs on four.
    "placed": "placed",
    "position": "position",
    "numbered": "numbered",
    "eight bytes": "eight_bytes",
}


def _named(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    return {name: costs[kind] for kind, names in CLASSES.items() for name in names.split()}


#: Fitted to rows of a Xeon, 1, 2 and 16 threads.
WIDE: Final = Table(
    name="wide",
    width=64,
    turn=Cost(0.363, scalar=0.0821),
    start=Cost(0.125),
    jump=Cost(lane=0.598),
    stay=Cost(0.067, scalar=0.06),
    tile=Cost(2.97),
    tile_low=Cost(4.35),
    tile_part=Cost(1.28),
    tile_far=Cost(1.26),
    overwritten=Cost(8.62),
    border=Cost(11.9),
    operations=_named(
        {
            "arithmetic": Cost(0.428, scalar=0.133),
            "extremum": Cost(0.311, scalar=0.0797),
            "rounding": Cost(2.4, scalar=0.408),
            "sign": Cost(2.49, scalar=0.565),
            "division": Cost(2.5, scalar=0.762),
            "root": Cost(5.48, scalar=1.21),
            "inverse root": Cost(5.95, scalar=1.45),
            "remainder": Cost(1.96, scalar=0.578),
            "exp": Cost(11.3, scalar=2.89),
            "log": Cost(16.3, scalar=3.95),
            "tanh": Cost(44.5, scalar=6.75),
            "sigmoid": Cost(21, scalar=3.77),
            "erf": Cost(19.1, scalar=7.9),
            "sine": Cost(5.47, scalar=5.66),
            "pow": Cost(12.6, scalar=10),
            "order": Cost(0.0553, scalar=0.084),
            "equality": Cost(0.0235, scalar=0.0817),
            "logic": Cost(0.0531, scalar=0.0845),
            "where": Cost(1.26, scalar=0.0912),
            "conversion": Cost(0.0577, scalar=0.0477),
            "index": Cost(0.101, lane=0.0115, scalar=0.0731),
            "lookup": Cost(0.329, lane=0.0135, scalar=0.138),
            "bounds": Cost(0.0631, scalar=0.0536),
            "masked": Cost(0.42, lane=0.154, scalar=0.142),
            "random": Cost(lane=9.82, scalar=10),
            "placed": Cost(lane=2.25, scalar=2.4),
            "position": Cost(0.0794, scalar=0.0295),
            "numbered": Cost(5.48, scalar=0.51),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.163, scalar=0.0208),
        }
    ),
    other=Cost(0.159, scalar=0.194),
    steps={
        "sum": Cost(0.0661, scalar=0.115, end=3.44),
        "cascade": Cost(0.0572, scalar=0.0802, end=1.97),
        "prod": Cost(0.0508, scalar=0.07, end=1.6),
        "welford": Cost(7.67, scalar=2.31, end=62.5),
        "max": Cost(1.37, scalar=0.388, end=10.7),
        "min": Cost(1.24, scalar=0.3, end=9.15),
        "any": Cost(0.393, scalar=0.0815, end=2.76),
    },
    step=Cost(4.95, scalar=1, end=22.6),
    loads={
        0: Cost(0.303, lane=0.776, scalar=0.111, part=0.481, half=0.377),
        1: Cost(0.24, lane=0.15, scalar=0.0975, part=1, half=0.343),
        2: Cost(0.607, scalar=0.728, part=0.611, half=0.875),
        4: Cost(0.125, scalar=0.0501, part=0.136),
        8: Cost(0.567, lane=0.15, scalar=0.0853, part=0.758),
    },
    stores={
        0: Cost(0.302, lane=13, scalar=0.125, part=0.896, half=0.843),
        1: Cost(0.249, lane=0.174, scalar=0.1, part=0.734, half=0.369),
        2: Cost(0.708, scalar=0.0618, part=0.335, half=0.222),
        4: Cost(0.0531, scalar=0.36, part=0.206),
        8: Cost(0.137, lane=0.0892, scalar=0.0976, part=0.458),
    },
    gather=Cost(lane=2.12, scalar=0.401),
    atomic=Cost(lane=26.3, scalar=4.04),
    atomic_low=Cost(lane=20.1, scalar=13.9),
    atomic_far=Cost(lane=3.15, scalar=1.14),
    atomic_shared=Cost(lane=18.3, scalar=30),
    winding=Cost(lane=1.52, scalar=0.403),
    unforeseen=Cost(lane=0.0729),
    remembered=1.2e4,
    rates=(25.0, 155.0, 5.2),
)

#: Fitted to rows of an AMD EPYC of family 26 (Zen 5), 1 and 2 threads.
SWIFT: Final = Table(
    name="swift",
    width=64,
    turn=Cost(0.0352, scalar=0.111),
    start=Cost(0.00434),
    jump=Cost(lane=0.282),
    stay=Cost(0.0894, scalar=0.0241),
    tile=Cost(1.21),
    tile_low=Cost(0.792),
    tile_part=Cost(1.19),
    tile_far=Cost(1.15),
    overwritten=Cost(5.53),
    border=Cost(4.89),
    operations=_named(
        {
            "arithmetic": Cost(0.146, scalar=0.0705),
            "extremum": Cost(0.303, scalar=0.165),
            "rounding": Cost(0.385, scalar=1.19),
            "sign": Cost(1.43, scalar=4.95),
            "division": Cost(0.36, scalar=0.327),
            "root": Cost(0.662, scalar=0.554),
            "inverse root": Cost(1.35, scalar=0.921),
            "remainder": Cost(27.5, scalar=0.0882),
            "exp": Cost(3.56, scalar=1.3),
            "log": Cost(12.9, scalar=4.47),
            "tanh": Cost(18.8, scalar=24),
            "sigmoid": Cost(4.45, scalar=2.28),
            "erf": Cost(5.82, scalar=2.95),
            "sine": Cost(2.98, scalar=0.876),
            "pow": Cost(19.3, scalar=4.01),
            "order": Cost(0.23, scalar=0.0242),
            "equality": Cost(0.0204, scalar=0.0438),
            "logic": Cost(0.236, scalar=0.0334),
            "where": Cost(0.0975, scalar=0.0302),
            "conversion": Cost(0.00209, scalar=0.0244),
            "index": Cost(0.0127, lane=0.000793, scalar=0.018),
            "lookup": Cost(0.0615, lane=0.00102, scalar=0.0378),
            "bounds": Cost(0.0598, scalar=0.0548),
            "masked": Cost(0.0763, lane=0.00621, scalar=0.0403),
            "random": Cost(lane=8.71, scalar=4.01),
            "placed": Cost(lane=2.13, scalar=2.4),
            "position": Cost(0.0752, scalar=0.029),
            "numbered": Cost(5.73, scalar=0.51),
            "alone": Cost(lane=0.181, scalar=0.2),
            "eight bytes": Cost(0.142, scalar=0.0205),
        }
    ),
    other=Cost(0.0497, scalar=0.0658),
    steps={
        "sum": Cost(0.185, scalar=0.0588, end=0.742),
        "cascade": Cost(0.647, scalar=0.0325, end=0.443),
        "prod": Cost(0.0212, scalar=0.0281, end=0.654),
        "welford": Cost(3.86, scalar=0.926, end=51.5),
        "max": Cost(1.18, scalar=0.37, end=2.71),
        "min": Cost(0.822, scalar=0.12, end=2),
        "any": Cost(0.294, scalar=0.0326, end=4.01),
    },
    step=Cost(5.19, scalar=0.401, end=8.16),
    loads={
        0: Cost(0.122, lane=0.431, scalar=0.0445, part=0.0876, half=3.03),
        1: Cost(0.0315, lane=0.00189, scalar=0.0361, part=0.233, half=0.031),
        2: Cost(0.129, scalar=0.134, part=0.0133, half=0.0993),
        4: Cost(0.00572, scalar=0.0393, part=0.0297),
        8: Cost(0.175, lane=0.0303, scalar=0.0197, part=0.174),
    },
    stores={
        0: Cost(0.121, lane=5.22, scalar=0.0669, part=0.317, half=0.559),
        1: Cost(0.0826, lane=0.0261, scalar=0.0409, part=0.219, half=0.0745),
        2: Cost(0.466, scalar=0.0355, part=0.0178, half=0.0542),
        4: Cost(0.04, scalar=0.0157, part=0.121),
        8: Cost(0.0364, lane=0.00189, scalar=0.0442, part=0.219),
    },
    gather=Cost(lane=0.601, scalar=0.0721),
    atomic=Cost(lane=5.37, scalar=4.16),
    atomic_low=Cost(lane=6.29, scalar=7.47),
    atomic_far=Cost(lane=1.26, scalar=0.523),
    atomic_shared=Cost(lane=0.743, scalar=12),
    winding=Cost(lane=0.262, scalar=0.03),
    unforeseen=Cost(lane=0.679),
    remembered=4.0e4,
    rates=(115.0, 102.0, 1.53),
)

#: Fitted to rows of an EPYC (family 25, model 17), 2 threads.
STEADY: Final = Table(
    name="steady",
    width=64,
    turn=Cost(0.0272, scalar=0.136),
    start=Cost(0.00439),
    jump=Cost(lane=0.483),
    stay=Cost(0.076, scalar=0.0241),
    tile=Cost(1.1),
    tile_low=Cost(1.65),
    tile_part=Cost(1.23),
    tile_far=Cost(1.2),
    overwritten=Cost(6.93),
    border=Cost(5.15),
    operations=_named(
        {
            "arithmetic": Cost(0.159, scalar=0.181),
            "extremum": Cost(0.0383, scalar=0.138),
            "rounding": Cost(0.407, scalar=1.19),
            "sign": Cost(1.48, scalar=4.84),
            "division": Cost(0.405, scalar=0.554),
            "root": Cost(2.15, scalar=0.55),
            "inverse root": Cost(2.93, scalar=1.47),
            "remainder": Cost(27.7, scalar=0.0887),
            "exp": Cost(5.61, scalar=1.45),
            "log": Cost(15.1, scalar=4.52),
            "tanh": Cost(24.3, scalar=25),
            "sigmoid": Cost(7.58, scalar=3.36),
            "erf": Cost(10.4, scalar=2.95),
            "sine": Cost(4.47, scalar=0.855),
            "pow": Cost(21.4, scalar=4.01),
            "order": Cost(0.283, scalar=0.0242),
            "equality": Cost(0.0206, scalar=0.0438),
            "logic": Cost(0.824, scalar=0.0332),
            "where": Cost(0.19, scalar=0.0301),
            "conversion": Cost(0.00198, scalar=0.0234),
            "index": Cost(0.00664, lane=0.00041, scalar=0.0183),
            "lookup": Cost(0.0185, lane=0.00031, scalar=0.0373),
            "bounds": Cost(0.0632, scalar=0.0524),
            "masked": Cost(0.338, lane=0.028, scalar=0.0404),
            "random": Cost(lane=10.7, scalar=4.01),
            "placed": Cost(lane=2.35, scalar=2.4),
            "position": Cost(0.0801, scalar=0.0295),
            "numbered": Cost(5.57, scalar=0.51),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.163, scalar=0.0208),
        }
    ),
    other=Cost(0.05, scalar=0.0658),
    steps={
        "sum": Cost(0.349, scalar=0.0881, end=1.56),
        "cascade": Cost(0.897, scalar=0.0323, end=1.05),
        "prod": Cost(0.0212, scalar=0.0281, end=0.654),
        "welford": Cost(3.92, scalar=0.926, end=47.9),
        "max": Cost(1.07, scalar=0.374, end=5.02),
        "min": Cost(0.836, scalar=0.12, end=2.03),
        "any": Cost(0.293, scalar=0.0326, end=4),
    },
    step=Cost(5.55, scalar=0.401, end=8.09),
    loads={
        0: Cost(0.114, lane=0.495, scalar=0.0445, part=0.0825, half=2.22),
        1: Cost(0.0315, lane=0.00189, scalar=0.0361, part=0.238, half=0.0312),
        2: Cost(0.385, scalar=0.116, part=0.0334, half=0.274),
        4: Cost(0.0047, scalar=0.0396, part=0.025),
        8: Cost(0.0984, lane=0.0196, scalar=0.0198, part=0.0931),
    },
    stores={
        0: Cost(0.109, lane=5.59, scalar=0.0657, part=0.287, half=0.501),
        1: Cost(0.0823, lane=0.0257, scalar=0.0409, part=0.222, half=0.0747),
        2: Cost(0.897, scalar=0.0338, part=0.0578, half=0.179),
        4: Cost(0.0393, scalar=0.0159, part=0.128),
        8: Cost(0.0245, lane=0.00127, scalar=0.0444, part=0.148),
    },
    gather=Cost(lane=0.373, scalar=0.0718),
    atomic=Cost(lane=2.75, scalar=3.7),
    atomic_low=Cost(lane=6.63, scalar=7.39),
    atomic_far=Cost(lane=1.26, scalar=0.523),
    atomic_shared=Cost(lane=0.772, scalar=12),
    winding=Cost(lane=0.491, scalar=0.0294),
    unforeseen=Cost(lane=0.607),
    remembered=4.0e4,
    rates=(97.0, 105.0, 1.21),
)

#: Fitted to rows of another Xeon (family 6, model 167), 2 threads.
KEEN: Final = Table(
    name="keen",
    width=64,
    turn=Cost(0.0906, scalar=0.114),
    start=Cost(0.0083),
    jump=Cost(lane=0.436),
    stay=Cost(0.042, scalar=0.0303),
    tile=Cost(1.42),
    tile_low=Cost(0.844),
    tile_part=Cost(1.09),
    tile_far=Cost(1.24),
    overwritten=Cost(6.1),
    border=Cost(37.6),
    operations=_named(
        {
            "arithmetic": Cost(0.175, scalar=0.0904),
            "extremum": Cost(0.482, scalar=0.0442),
            "rounding": Cost(0.893, scalar=0.0913),
            "sign": Cost(1.88, scalar=1.07),
            "division": Cost(0.928, scalar=0.405),
            "root": Cost(3.2, scalar=0.644),
            "inverse root": Cost(4.62, scalar=2.37),
            "remainder": Cost(41.8, scalar=0.281),
            "exp": Cost(4.62, scalar=1.71),
            "log": Cost(12.3, scalar=9.09),
            "tanh": Cost(23.3, scalar=12.4),
            "sigmoid": Cost(5.91, scalar=2.49),
            "erf": Cost(7.97, scalar=7.59),
            "sine": Cost(4.59, scalar=0.445),
            "pow": Cost(9.9, scalar=0.574),
            "order": Cost(0.195, scalar=0.0437),
            "equality": Cost(0.018, scalar=0.0335),
            "logic": Cost(0.491, scalar=0.0372),
            "where": Cost(0.508, scalar=0.106),
            "conversion": Cost(0.00464, scalar=0.0197),
            "index": Cost(0.0142, lane=0.000873, scalar=0.0268),
            "lookup": Cost(0.0356, lane=0.000455, scalar=0.0579),
            "bounds": Cost(0.0588, scalar=0.0538),
            "masked": Cost(0.0997, lane=0.00856, scalar=0.0614),
            "random": Cost(lane=6.84, scalar=5.05),
            "placed": Cost(lane=2.2, scalar=2.4),
            "position": Cost(0.0751, scalar=0.0291),
            "numbered": Cost(5.37, scalar=0.51),
            "alone": Cost(lane=0.222, scalar=0.2),
            "eight bytes": Cost(0.138, scalar=0.0198),
        }
    ),
    other=Cost(0.072, scalar=0.0863),
    steps={
        "sum": Cost(0.277, scalar=0.0669, end=1.02),
        "cascade": Cost(0.982, scalar=0.0436, end=0.789),
        "prod": Cost(0.026, scalar=0.0353, end=0.816),
        "welford": Cost(3.53, scalar=4.03, end=40.6),
        "max": Cost(1.11, scalar=0.752, end=3.51),
        "min": Cost(1.09, scalar=0.152, end=3.39),
        "any": Cost(3.04, scalar=0.0389, end=19.9),
    },
    step=Cost(68.5, scalar=0.505, end=10.2),
    loads={
        0: Cost(0.154, lane=0.599, scalar=0.0848, part=0.149, half=0.478),
        1: Cost(0.0458, lane=0.00324, scalar=0.0431, part=0.263, half=0.0476),
        2: Cost(0.248, scalar=0.178, part=0.028, half=0.0965),
        4: Cost(0.0241, scalar=0.0344, part=0.0384),
        8: Cost(0.244, lane=0.0877, scalar=0.0166, part=0.769),
    },
    stores={
        0: Cost(0.153, lane=5.38, scalar=0.0712, part=0.415, half=0.797),
        1: Cost(0.0742, lane=0.0132, scalar=0.0509, part=0.253, half=0.075),
        2: Cost(0.736, scalar=0.0353, part=0.0379, half=0.26),
        4: Cost(0.122, scalar=0.023, part=0.209),
        8: Cost(0.0454, lane=0.00306, scalar=0.0412, part=0.184),
    },
    gather=Cost(lane=0.804, scalar=0.0436),
    atomic=Cost(lane=5.21, scalar=4.11),
    atomic_low=Cost(lane=6.08, scalar=5.02),
    atomic_far=Cost(lane=0.777, scalar=0.46),
    atomic_shared=Cost(lane=13.3, scalar=15.2),
    winding=Cost(lane=0.166, scalar=0.0644),
    unforeseen=Cost(lane=0.659),
    remembered=6.0e3,
    rates=(29.7, 223.0, 7.66),
)

#: Atomic additions, lookups and their checks as timed by themselves on that processor.
NARROW: Final = Table(
    name="narrow",
    width=32,
    turn=Cost(0.246, scalar=0.0752),
    start=Cost(0.0733),
    jump=Cost(lane=0.81),
    stay=Cost(0.104, scalar=0.06),
    tile=Cost(2.99),
    tile_low=Cost(2.32),
    tile_part=Cost(0.826),
    tile_far=Cost(1.19),
    overwritten=Cost(6.22),
    border=Cost(10.2),
    operations=_named(
        {
            "arithmetic": Cost(0.204, scalar=0.0783),
            "extremum": Cost(0.0831, scalar=0.0743),
            "rounding": Cost(1.79, scalar=0.41),
            "sign": Cost(1.67, scalar=0.561),
            "division": Cost(0.383, scalar=0.537),
            "root": Cost(0.67, scalar=1.05),
            "inverse root": Cost(1.61, scalar=1.13),
            "remainder": Cost(0.97, scalar=0.544),
            "exp": Cost(5.86, scalar=2.57),
            "log": Cost(14.8, scalar=4.15),
            "tanh": Cost(22.8, scalar=6.75),
            "sigmoid": Cost(8.84, scalar=3.65),
            "erf": Cost(9.28, scalar=6.94),
            "sine": Cost(3.35, scalar=5.92),
            "pow": Cost(11.1, scalar=10),
            "order": Cost(0.0316, scalar=0.0862),
            "equality": Cost(0.0132, scalar=0.0854),
            "logic": Cost(0.0293, scalar=0.0861),
            "where": Cost(0.471, scalar=0.0904),
            "conversion": Cost(0.0215, scalar=0.0449),
            "index": Cost(0.0593, lane=0.0109, scalar=0.077),
            "lookup": Cost(0.135, lane=0.0289, scalar=0.136),
            "bounds": Cost(0.0641, scalar=0.0537),
            "masked": Cost(0.261, lane=0.21, scalar=0.14),
            "random": Cost(lane=10.3, scalar=10),
            "placed": Cost(lane=2.24, scalar=2.4),
            "position": Cost(0.0785, scalar=0.0294),
            "numbered": Cost(5.18, scalar=0.51),
            "alone": Cost(lane=0.217, scalar=0.2),
            "eight bytes": Cost(0.161, scalar=0.0208),
        }
    ),
    other=Cost(0.0957, scalar=0.194),
    steps={
        "sum": Cost(0.113, scalar=0.108, end=0.591),
        "cascade": Cost(0.0814, scalar=0.0778, end=0.499),
        "prod": Cost(0.0508, scalar=0.07, end=0.604),
        "welford": Cost(4.77, scalar=2.31, end=34.8),
        "max": Cost(0.26, scalar=0.38, end=0.956),
        "min": Cost(0.356, scalar=0.3, end=1.07),
        "any": Cost(0.281, scalar=0.0815, end=0.82),
    },
    step=Cost(2.97, scalar=1, end=13.5),
    loads={
        0: Cost(0.207, lane=1.06, scalar=0.111, part=2.53, half=0.387),
        1: Cost(0.167, lane=0.205, scalar=0.0972, part=5.03, half=0.36),
        2: Cost(0.174, lane=0.0119, scalar=0.424, part=0.723, half=4.16),
        4: Cost(0.0281, lane=0.0019, scalar=0.0364, part=0.0982),
        8: Cost(0.355, lane=0.0611, scalar=0.0727, part=1.78),
    },
    stores={
        0: Cost(0.201, lane=8.1, scalar=0.128, part=4.34, half=0.837),
        1: Cost(0.171, lane=0.76, scalar=0.1, part=3.67, half=0.39),
        2: Cost(0.386, lane=0.035, scalar=0.171, part=0.304, half=0.392),
        4: Cost(0.0354, lane=0.0056, scalar=0.147, part=0.211),
        8: Cost(0.104, lane=0.0357, scalar=0.0819, part=1.4),
    },
    gather=Cost(lane=1.36, scalar=0.349),
    atomic=Cost(lane=5.1, scalar=2.28),
    atomic_low=Cost(lane=6.17, scalar=4.33),
    atomic_far=Cost(lane=10.3, scalar=2.64),
    atomic_shared=Cost(lane=11.2, scalar=25),
    winding=Cost(lane=0.683, scalar=0.266),
    unforeseen=Cost(lane=2.54),
    remembered=5.0e4,
    rates=(69.5, 96.0, 1.0),
)
