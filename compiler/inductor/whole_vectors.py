"""What Inductor's vectorised C++ does lane by lane, done for whole vectors, bit for bit the same.

A vector of flags (elements of type bool) is read by a branch for each lane and written from a
buffer of bytes, and each random number goes through ten rounds of multiplications by itself, a
normal one through libm's cosine: nanoseconds or tens of them for an element, where arithmetic takes
hundredths. The code of a finished
kernel is rewritten to call the functions here, where this is wanted in its context. Nothing here
decides where that is worth it.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from contextvars import ContextVar

from fusewise.compiler.inductor.added_source import rewrite_kernels
from fusewise.compiler.inductor.replacing import once, switched

_SPACE = "whole_vectors"
#: Inductor has compilers vectorise no loops; straight code of a vector's length they do. Random
#: numbers are those of ATen's philox_engine (Philox 4x32-10, Salmon et al. 2011): first words, of
#: a key and a counter of 32 bits. Normal ones are made of two by Box and Muller (1958), in fp64 but
#: for the logarithm. Only the cosine is of another library than libm, and within a unit in the last
#: place; where that could round to another fp32, some six in 10^8 times, libm's is taken.
_SOURCE = r"""
namespace whole_vectors {
template <typename T>
constexpr bool has_lanes = (sizeof(T) == 4 || sizeof(T) == 8);

template <typename T, int N, typename U>
inline at::vec::VecMask<T, N> from(const U& given) {
    return at::vec::VecMask<T, N>::from(given);
}

template <typename T, int N, typename U>
inline at::vec::VecMask<T, N> from(U* given, int64_t count) {
    if constexpr (!std::is_same_v<std::remove_cv_t<U>, bool> || !has_lanes<T>) {
        return at::vec::VecMask<T, N>::from(given, count);
    } else {
        constexpr int each = at::vec::Vectorized<T>::size();
        using I = at::vec::int_same_size_t<T>;
        uint8_t some[N * each];
        const void* flags = given;
        if (count != N * each) {
            std::memset(some, 0, N * each);
            std::memcpy(some, given, count);
            flags = some;
        }
        at::vec::VectorizedN<T, N> mask;
        for (int n = 0; n < N; ++n) {
            __at_align__ I lanes[each];
            for (int i = 0; i < each; ++i) {
                lanes[i] = -static_cast<I>(static_cast<const uint8_t*>(flags)[n * each + i] != 0);
            }
            mask[n] = at::vec::Vectorized<T>::loadu(lanes);
        }
        return mask;
    }
}

template <typename V, typename... A>
inline void store(const V& value, A... place) {
    V(value).store(place...);
}

template <typename T, int N>
inline void store(const at::vec::VecMask<T, N>& mask, bool* place, int64_t count) {
    if constexpr (!has_lanes<T>) {
        at::vec::VecMask<T, N>(mask).store(place, count);
    } else {
        constexpr int each = at::vec::Vectorized<T>::size();
        using I = at::vec::int_same_size_t<T>;
        const at::vec::VectorizedN<T, N> values(mask);
        uint8_t flags[N * each];
        for (int n = 0; n < N; ++n) {
            __at_align__ I lanes[each];
            values[n].store(lanes);
            for (int i = 0; i < each; ++i) {
                flags[n * each + i] = static_cast<uint8_t>(lanes[i] & 1);
            }
        }
        // A number that the compiler knows is one instruction.
        std::memcpy(place, flags, count == N * each ? N * each : count);
    }
}

template <int size, typename O>
inline void words(uint32_t seed, const O* offset, uint32_t* one, uint32_t* other) {
    constexpr int part = 8;
    static_assert(size % part == 0);
    typedef uint64_t U __attribute__((vector_size(8 * part)));
    for (int start = 0; start < size; start += part) {
        U a, b{}, c{}, d{};
        for (int i = 0; i < part; ++i) {
            a[i] = static_cast<uint32_t>(offset[start + i]);
        }
        uint32_t first = seed, second = 0;
        for (int round = 0; round < 10; ++round) {
            U p = a * uint64_t{0xD2511F53}, q = c * uint64_t{0xCD9E8D57};
            a = (q >> 32) ^ b ^ static_cast<uint64_t>(first);
            b = q & uint64_t{0xFFFFFFFF};
            c = (p >> 32) ^ d ^ static_cast<uint64_t>(second);
            d = p & uint64_t{0xFFFFFFFF};
            first += 0x9E3779B9;
            second += 0xBB67AE85;
        }
        for (int i = 0; i < part; ++i) {
            one[start + i] = static_cast<uint32_t>(a[i]);
            other[start + i] = static_cast<uint32_t>(b[i]);
        }
    }
}

template <int size, typename O>
inline void uniform(uint32_t seed, const O* offset, float* result) {
    uint32_t one[size], other[size];
    words<size>(seed, offset, one, other);
    for (int i = 0; i < size; ++i) {
        result[i] = uint32_to_uniform_float(one[i]);
    }
}

template <int size, typename O>
inline void normal(uint32_t seed, const O* offset, float* result) {
    using D = at::vec::Vectorized<double>;
    constexpr int64_t tie = 1 << 28, near = 16;
    uint32_t one[size], other[size];
    words<size>(seed, offset, one, other);
    for (int start = 0; start < size; start += D::size()) {
        __at_align__ double squares[D::size()], angles[D::size()], products[D::size()];
        for (int i = 0; i < D::size(); ++i) {
            const float u1 = 1 - uint32_to_uniform_float(one[start + i]);
            const float u2 = 1 - uint32_to_uniform_float(other[start + i]);
            squares[i] = -2.0 * std::log(u1);
            angles[i] = 2.0 * M_PI * u2;
        }
        (D::loadu(squares).sqrt() * D::loadu(angles).cos()).store(products);
        for (int i = 0; i < D::size(); ++i) {
            int64_t bits;
            std::memcpy(&bits, &products[i], sizeof(bits));
            const int64_t apart = (bits & (2 * tie - 1)) - tie;
            if (C10_UNLIKELY(-near < apart && apart < near)) {
                products[i] = std::sqrt(squares[i]) * std::cos(angles[i]);
            }
            result[start + i] = static_cast<float>(products[i]);
        }
    }
}
}  // namespace whole_vectors
"""
#: A mask that is made of what stands at a place.
_READ = re.compile(r"\bat::vec::VecMask<(\w+),(\d+)>::from\(")
#: An argument of a kernel that flags are written to, and a vector that is stored at one of several.
_FLAGS = re.compile(r"\bbool\* (\w+)")
_WRITTEN = r"\b(\w+)\.store\((?=(?:{})\b)"
#: Random numbers of a vector, one after the other; as many at once as go into the widest register.
_DRAWN = re.compile(
    r"for\( \w+ offset_idx = 0; offset_idx < (\d+); offset_idx\+\+ \)\s*\{\s*"
    r"result\[offset_idx\] = (normalized_rand|randn)_cpu\((\w+), offset\[offset_idx\]\);\s*\}"
)
_DRAWS = {"normalized_rand": "uniform", "randn": "normal"}
_AT_ONCE = 8
_active: ContextVar[bool] = ContextVar("fusewise_whole_vectors", default=False)


def whole_vectors(wanted: bool) -> AbstractContextManager[None]:
    """Have kernels read, write and draw whole vectors in this context, if that is wanted."""
    return switched(_active, wanted, _install)


@once
def _install() -> None:
    rewrite_kernels(lambda code: by_vectors(code) if _active.get() else code, _SPACE, _SOURCE)


def by_vectors(code: str) -> str:
    """The code of a kernel that calls the functions here for what Inductor does lane by lane."""
    code = _READ.sub(rf"{_SPACE}::from<\1,\2>(", code)
    flags = "|".join(_FLAGS.findall(code))
    if flags:
        code = re.sub(_WRITTEN.format(flags), rf"{_SPACE}::store(\1, ", code)
    return _DRAWN.sub(_drawn, code)


def _drawn(found: re.Match[str]) -> str:
    if int(found[1]) % _AT_ONCE:
        return found[0]
    return f"{_SPACE}::{_DRAWS[found[2]]}<{found[1]}>({found[3]}, offset, result);"
