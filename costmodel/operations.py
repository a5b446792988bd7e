"""Which class of arithmetic each operation of a loop body belongs to.

The names are those that the loop bodies of a problem carry (``Node.ops``). The classes are the
ones whose cost differs by enough to matter; nothing here knows a rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: In the order of the feature columns.
CLASSES: Final = (
    "arithmetic",
    "division",
    "transcendental",
    "selection",
    "indexing",
    "conversion",
    "random",
    "reducing",
)

_FREE: Final = (
    "load store store_reduction constant output placeholder identity load_seed getvalue "
    "value_expr ir_to_string to_dtype_bitcast get_index"
)

_MEMBERS: Final = {
    "arithmetic": "abs add sub mul neg fma square relu maximum minimum floor ceil round trunc "
    "floor_to_int ceil_to_int round_to_int trunc_to_int copysign sign mul_rn halide_clamp "
    "lshift rshift bitwise_left_shift bitwise_right_shift frexp ldexp nextafter",
    "division": "truediv div_rn reciprocal sqrt rsqrt fmod mod remainder floordiv truncdiv "
    "int_truediv hypot",
    "transcendental": "exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 "
    "sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfcx erfinv gammainc gammaincc igamma "
    "igammac i0 i0e i1 i1e ndtr ndtri log_ndtr lgamma digamma polygamma zeta airy_ai bessel_j0 "
    "bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0",
    "selection": "eq ne lt le gt ge where masked and_ or_ xor logical_and logical_or logical_not "
    "logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isinf isnan signbit",
    "indexing": "index_expr indirect_indexing check_bounds bucketize set_indirect "
    "device_assert_async",
    "conversion": "to_dtype",
    "random": "rand randn randint64 rand_eager",
    "reducing": "reduction scan sort partial_accumulate dot",
}

#: What takes another time than an addition, a division or an exponential, which stand for their
#: classes, and how many times as long: chains of it on a GPU of compute capability 9.0.
_WEIGHTS: Final[dict[str, float]] = {
    name: weight
    for weight, names in (
        (0.75, "rsqrt"),
        (0.9, "reciprocal"),
        (1.9, "sqrt div_rn"),
        (2.2, "sigmoid"),
        (2.7, "asin acos"),
        (3.0, "floordiv truncdiv int_truediv"),
        (3.2, "tanh"),
        (3.8, "sinh cosh"),
        (4.2, "expm1"),
        (4.5, "log log2 log10 log1p"),
        (4.8, "fmod mod remainder"),
        (5.1, "erfinv"),
        (5.4, "maximum minimum relu halide_clamp"),
        (5.5, "erf"),
        (5.7, "sin cos tan"),
        (7.5, "atan floor ceil round trunc floor_to_int ceil_to_int round_to_int trunc_to_int"),
        # Of two numbers that nobody knows it is 18, but one is nearly always written down.
        (8.0, "pow"),
        (8.1, "erfc"),
        (10.0, "asinh acosh atanh"),
        (12.0, "atan2"),
    )
    for name in names.split()
}

_CLASS: Final[dict[str, int]] = {
    name: CLASSES.index(kind) for kind, names in _MEMBERS.items() for name in names.split()
} | dict.fromkeys(_FREE.split(), -1)

#: Operations that are told by themselves, by column: what most bodies are made of, and beside each
#: what takes much the same.
SORTS: Final[dict[str, tuple[str, ...]]] = {
    f"op_{names.split()[0]}": tuple(names.split())
    for names in (
        "constant",
        "add",
        "sub",
        "mul mul_rn",
        "fma",
        "square",
        "neg",
        "abs",
        "sign copysign",
        "relu",
        "maximum",
        "minimum",
        "truediv div_rn",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "exp exp2 expm1",
        "log log2 log10 log1p",
        "erf erfc erfinv",
        "tanh",
        "sigmoid",
        "sin cos tan",
        "pow",
        "round floor ceil trunc floor_to_int ceil_to_int round_to_int trunc_to_int",
        "remainder mod fmod floordiv truncdiv",
        "where",
        "masked",
        "lt le gt ge",
        "eq ne isnan isinf",
        "and_ or_ xor logical_and logical_or logical_xor logical_not",
        "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift",
        "index_expr",
        "indirect_indexing",
        "check_bounds",
        "to_dtype to_dtype_bitcast",
        "rand randn randint64 load_seed",
        "reduction",
        "scan sort",
    )
}

#: Families of special functions whose members share a prefix.
_TRANSCENDENTAL_PREFIXES: Final = (
    "libdevice_",
    "special_",
    "chebyshev_",
    "hermite_",
    "laguerre_",
    "legendre_",
    "modified_bessel_",
    "scaled_modified_bessel_",
    "shifted_chebyshev_",
)


def operation_class(name: str) -> int:
    """Position in :data:`CLASSES` of the operation ``name``, or -1 where it costs nothing.

    A name that is not listed counts as plain arithmetic: most operations are, and new ones appear
    with each release of the compiler.
    """
    found = _CLASS.get(name)
    if found is not None:
        return found
    if name.startswith(_TRANSCENDENTAL_PREFIXES):
        return CLASSES.index("transcendental")
    return CLASSES.index("arithmetic")


#: Reduction types that are one comparison or addition a step.
PLAIN_REDUCTIONS: Final = frozenset({"sum", "prod", "max", "min", "any", "all", "xor_sum"})
#: Reduction types that carry an index along.
INDEX_REDUCTIONS: Final = frozenset({"argmax", "argmin"})
#: What it takes to bring an angle into range, in exponentials; its sine and cosine need it once.
_INTO_RANGE: Final = 3.5


def operation_weight(name: str) -> float:
    """How many of the cheapest operations of its class one of ``name`` takes the time of."""
    return _WEIGHTS.get(name, 1.0)


def shared_by_angles(counts: Mapping[str, float]) -> float:
    """Exponentials that a body of so many operations is spared, as it has sines with cosines."""
    return _INTO_RANGE * min(counts.get("sin", 0.0), counts.get("cos", 0.0))
