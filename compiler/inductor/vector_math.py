"""Elementary functions written into the kernels that need them, in the place of library calls.

Inductor's vectorised C++ calls a library for exp, log and tanh of each vector. A call can neither
overlap with its neighbours nor keep a value in a register, and the library's tanh and log are exact
to a last digit that few need. The functions here are as exact as the default is allowed to err (see
``search/gate.py``: some units in the last place of fp32) and are written out. The methods in which
Inductor writes such calls are wrapped once a process by dispatchers that ask a context variable:
where nothing is wanted in this context, it writes what it always does. Nothing here decides where
that is worth it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from torch._inductor.codegen import cpp

from fusewise.compiler.inductor.added_source import rewrite_kernels
from fusewise.compiler.inductor.replacing import once, switched

_SPACE = "vector_math"
#: Each takes and gives vectors of fp32. Polynomials and the splitting of ln 2 are those of Cephes
#: (Moshier, single precision: expf, logf, tanhf), that of erf is Abramowitz and Stegun 7.1.26, as
#: in ATen.
_SOURCE = r"""
namespace vector_math {
using F = at::vec::Vectorized<float>;
using I = at::vec::Vectorized<int32_t>;

inline F power_of_two(const I& n) {
    return at::vec::cast<float>((n + I(127)) << I(23));
}

inline F exp_one(const F& given) {
    // What ends below the smallest number takes a processor up to a hundred times as long, by
    // multiplications or by scaling in one step: what would end there, such as what a mask has
    // taken out of a softmax, is left out.
#if defined(CPU_CAPABILITY_AVX512)
    const F& bounded = given;
#else
    F none = given < F(-104.0f);
    F bounded = F::blendv(given, F(0.0f), none);
#endif
    // What is no number passes through: it is the second argument of both.
    F x = at::vec::clamp(bounded, F(-104.0f), F(89.0f));
    F n = (x * F(1.44269504088896341f)).round();
    F r = at::vec::fnmadd(n, F(0.693359375f), x);
    r = at::vec::fnmadd(n, F(-2.12194440e-4f), r);
    F p = at::vec::fmadd(F(1.9875691500e-4f), r, F(1.3981999507e-3f));
    p = at::vec::fmadd(p, r, F(8.3334519073e-3f));
    p = at::vec::fmadd(p, r, F(4.1665795894e-2f));
    p = at::vec::fmadd(p, r, F(1.6666665459e-1f));
    p = at::vec::fmadd(p, r, F(5.0000001201e-1f));
    p = at::vec::fmadd(p, r * r, r) + F(1.0f);
#if defined(CPU_CAPABILITY_AVX512)
    // What is no number is not less, and stays.
    __mmask16 some = _mm512_cmp_ps_mask(given, F(-104.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(some, p, n);
#else
    // In two steps, each a number that there is: results may be too small for a full mantissa.
    I whole = at::vec::convert_to_int_of_same_size(n);
    I half = whole >> I(1);
    p = p * power_of_two(half) * power_of_two(whole - half);
    return F::blendv(p, F(0.0f), none);
#endif
}

inline F log_one(const F& given) {
#if defined(CPU_CAPABILITY_AVX512)
    F m = _mm512_getmant_ps(given, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    F n = _mm512_getexp_ps(given);
    __mmask16 above = _mm512_cmp_ps_mask(m, F(1.41421356f), _CMP_GT_OQ);
    m = F(_mm512_mask_mul_ps(m, above, m, F(0.5f))) - F(1.0f);
    n = _mm512_mask_add_ps(n, above, n, F(1.0f));
#else
    F tiny = given < F(1.17549435e-38f);
    F x = F::blendv(given, given * F(8388608.0f), tiny);
    I bits = at::vec::cast<int32_t>(x);
    I above = bits - I(0x3f3504f3);
    I whole = above >> I(23);
    F m = at::vec::cast<float>(bits - (whole << I(23))) - F(1.0f);
    F n = at::vec::convert_to_fp_of_same_size<float>(whole) - (F(23.0f) & tiny);
#endif
    F z = m * m;
    F p = at::vec::fmadd(F(7.0376836292e-2f), m, F(-1.1514610310e-1f));
    p = at::vec::fmadd(p, m, F(1.1676998740e-1f));
    p = at::vec::fmadd(p, m, F(-1.2420140846e-1f));
    p = at::vec::fmadd(p, m, F(1.4249322787e-1f));
    p = at::vec::fmadd(p, m, F(-1.6668057665e-1f));
    p = at::vec::fmadd(p, m, F(2.0000714765e-1f));
    p = at::vec::fmadd(p, m, F(-2.4999993993e-1f));
    p = at::vec::fmadd(p, m, F(3.3333331174e-1f));
    F y = at::vec::fmadd(p * m, z, n * F(-2.12194440e-4f));
    y = at::vec::fnmadd(F(0.5f), z, y);
    F result = at::vec::fmadd(n, F(0.693359375f), m + y);
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr float none = std::numeric_limits<float>::quiet_NaN();
    result = F::blendv(F(none), result, given > F(0.0f));
    result = F::blendv(result, F(-inf), given == F(0.0f));
    return F::blendv(result, given, given == F(inf));
}

inline F log1p_one(const F& x) {
    F u = x + F(1.0f);
    // What the sum lost, from whichever side was the smaller one.
    F lost = F::blendv(x - (u - F(1.0f)), F(1.0f) - (u - x), x > F(1.0f));
    constexpr float inf = std::numeric_limits<float>::infinity();
    F finite = (u > F(0.0f)) & (u < F(inf));
    F result = log_one(u) + ((lost / u) & finite);
    return result | (x & F(-0.0f));
}

inline F tanh_one(const F& x) {
    F size = x.abs();
    F far = F(1.0f) - F(2.0f) / (exp_one(size + size) + F(1.0f));
    F z = x * x;
    F p = at::vec::fmadd(F(-5.70498872745e-3f), z, F(2.06390887954e-2f));
    p = at::vec::fmadd(p, z, F(-5.37397155531e-2f));
    p = at::vec::fmadd(p, z, F(1.33314422036e-1f));
    p = at::vec::fmadd(p, z, F(-3.33332819422e-1f));
    F near = at::vec::fmadd(p * z, size, size);
    // Zeros keep their signs, too.
    return F::blendv(far, near, size < F(0.625f)) | (x & F(-0.0f));
}

inline F erf_one(const F& x) {
    F sign = x & F(-0.0f);
    F size = x ^ sign;
    F t = F(1.0f) / at::vec::fmadd(F(0.3275911f), size, F(1.0f));
    F r = at::vec::fmadd(F(1.061405429f), t, F(-1.453152027f));
    r = at::vec::fmadd(r, t, F(1.421413741f));
    r = at::vec::fmadd(r, t, F(-0.284496736f));
    r = at::vec::fmadd(r, t, F(0.254829592f));
    F e = exp_one(F(0.0f) - x * x);
    return at::vec::fnmadd(e * t, r, F(1.0f)) ^ sign;
}
"""
_NAMES = ("exp", "log", "log1p", "tanh", "erf")
#: What is no vector of fp32 is the library's, and so is all on other processors.
_FUNCTION = r"""
template <typename V> inline V NAME(const V& x) {
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
    if constexpr (std::is_same_v<V, F>) {
        return NAME_one(x);
    } else if constexpr (std::is_same_v<typename V::value_type, float>) {
        return x.unary_op([](const F& one) { return NAME_one(one); });
    }
#endif
    return x.NAME();
}
"""
#: A call as Inductor writes it: of a value, or of one negated.
_CALL = re.compile(rf"\b(\w+(?:\.neg\(\))?)\.({'|'.join(_NAMES)})\(\)")
#: Methods in which it writes them.
_METHODS = (*_NAMES, "expm1", "sigmoid", "atanh")
_active: ContextVar[bool] = ContextVar("fusewise_vector_math", default=False)


def written_out(wanted: bool) -> AbstractContextManager[None]:
    """Have elementary functions written into kernels in this context, if that is wanted."""
    return switched(_active, wanted, _install)


@once
def _install() -> None:
    overrides: Any = cpp.CppVecOverrides
    for name in _METHODS:
        setattr(overrides, name, staticmethod(_dispatcher(getattr(overrides, name))))
    functions = "".join(_FUNCTION.replace("NAME", name) for name in _NAMES)
    source = f"{_SOURCE}{functions}}}  // namespace {_SPACE}\n"
    rewrite_kernels(lambda code: code, _SPACE, source)


def _dispatcher(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def method(x: Any) -> Any:
        code = original(x)
        if not _active.get() or not isinstance(code, str):
            return code
        return _CALL.sub(rf"{_SPACE}::\2(\1)", code)

    return method
