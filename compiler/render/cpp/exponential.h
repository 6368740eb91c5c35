// exp, exp2, exp2 without denormals, expm1, sinh, cosh.
//
// exp(x) = 2^n (1 + p): n = round(x / ln 2), p = expm1(x - n ln 2) by a minimax polynomial on [-ln 2 / 2, ln 2 / 2].
// ln 2 is split so that n times its head is exact with or without a fused multiply-add.
#pragma once
#include "vector.h"

// 1.5 * 2^23 (2^52 for double): adding it rounds to an integer that then sits in the low bits.
template <typename V>
constexpr mlc_lane<V> mlc_magic = sizeof(mlc_lane<V>) == 4 ? 12582912.0 : 6755399441055744.0;

// The integer that a float holds.
template <typename V>
MLC_INLINE mlc_bits<V> mlc_integer_of(V n) {
  const V magic = V{} + mlc_magic<V>;
  return mlc_bitcast<mlc_bits<V>>(n + magic) - mlc_bitcast<mlc_bits<V>>(magic);
}

template <typename V>
MLC_INLINE V mlc_power_of_two(mlc_bits<V> n) {
  if constexpr (sizeof(mlc_lane<V>) == 4)
    return mlc_bitcast<V>((n + 127) << 23);
  else
    return mlc_bitcast<V>((n + 1023) << 52);
}

// Whether one instruction multiplies by a power of two.
#ifdef MLC_AVX512
template <typename V>
constexpr bool mlc_has_scale = !mlc_is_scalar<V> && (sizeof(V) == 64 || sizeof(V) == 32 || sizeof(V) == 16);
#else
template <typename V>
constexpr bool mlc_has_scale = false;
#endif

#ifdef MLC_AVX512
// p * 2^f where f is above `zero` or NaN, else 0: a lane that is left out costs nothing, one that underflows a hundred
// cycles on some machines, and exp(-inf) is frequent in masked softmax.
template <typename V>
MLC_INLINE V mlc_scale_above(V p, V f, mlc_lane<V> zero) {
  constexpr int ABOVE = 22;  // not (a <= b), quietly
  constexpr bool FLOAT = sizeof(mlc_lane<V>) == 4;
  const V limit = V{} + zero, none = V{};
  if constexpr (sizeof(V) == 64 && FLOAT)
    return __builtin_ia32_scalefps512_mask(p, f, none, __builtin_ia32_cmpps512_mask(f, limit, ABOVE, -1, 4), 4);
  else if constexpr (sizeof(V) == 64)
    return __builtin_ia32_scalefpd512_mask(p, f, none, __builtin_ia32_cmppd512_mask(f, limit, ABOVE, -1, 4), 4);
  else if constexpr (sizeof(V) == 32 && FLOAT)
    return __builtin_ia32_scalefps256_mask(p, f, none, __builtin_ia32_cmpps256_mask(f, limit, ABOVE, -1));
  else if constexpr (sizeof(V) == 32)
    return __builtin_ia32_scalefpd256_mask(p, f, none, __builtin_ia32_cmppd256_mask(f, limit, ABOVE, -1));
  else if constexpr (FLOAT)
    return __builtin_ia32_scalefps128_mask(p, f, none, __builtin_ia32_cmpps128_mask(f, limit, ABOVE, -1));
  else
    return __builtin_ia32_scalefpd128_mask(p, f, none, __builtin_ia32_cmppd128_mask(f, limit, ABOVE, -1));
}
#endif

// p * 2^n, rounded once, for p in (0, 2) and any n up to twice the exponent range; f is n as a float. With
// mlc_has_scale, n may be less than that, -inf, and p anything then.
// Two factors: the first product is exact, the second rounds to a denormal, zero or infinity as it must.
template <typename V>
MLC_INLINE V mlc_scale(V p, V f) {
#ifdef MLC_AVX512
  if constexpr (mlc_has_scale<V>) return mlc_scale_above(p, f, sizeof(mlc_lane<V>) == 4 ? -151 : -1076);
#endif
  mlc_bits<V> n = mlc_integer_of(f), half = mlc_integer_of(f * mlc_lane<V>(0.5));
  return p * mlc_power_of_two<V>(half) * mlc_power_of_two<V>(n - half);
}
// x limited to where mlc_scale takes its exponent; NaN stays NaN.
template <typename V>
MLC_INLINE V mlc_limit_scale(V x, mlc_lane<V> low, mlc_lane<V> high) {
  return mlc_has_scale<V> ? mlc_smaller(V{} + high, x) : mlc_limit(x, low, high);
}

// (expm1(r) - r) / r^2 for |r| <= 0.35, with least error relative to expm1(r) or, for NEAR_ONE, to exp(r).
template <bool NEAR_ONE, typename V>
MLC_INLINE V mlc_expm1_quotient(V r) {
  V q;
  if constexpr (sizeof(mlc_lane<V>) == 4 && NEAR_ONE) {
    q = r * 0x1.6ae8a8p-10f + 0x1.1240dep-7f;
    q = q * r + 0x1.555842p-5f;
    q = q * r + 0x1.555488p-3f;
    q = q * r + 0x1.fffffcp-2f;
  } else if constexpr (sizeof(mlc_lane<V>) == 4) {
    q = r * 0x1.6ac04ep-10f + 0x1.122e28p-7f;
    q = q * r + 0x1.555796p-5f;
    q = q * r + 0x1.5554a8p-3f;
    q = q * r + 0x1.fffffep-2f;
  } else {
    q = r * 0x1.1ee87df119149p-29 + 0x1.af5fe8fdbc45bp-26;
    q = q * r + 0x1.27e536dd31ec3p-22;
    q = q * r + 0x1.71ddf7ba6f235p-19;
    q = q * r + 0x1.a01a017b2271ep-16;
    q = q * r + 0x1.a01a01b01a62bp-13;
    q = q * r + 0x1.6c16c16c1f396p-10;
    q = q * r + 0x1.111111110f63dp-7;
    q = q * r + 0x1.555555555553ep-5;
    q = q * r + 0x1.5555555555559p-3;
    q = q * r + 0.5;
  }
  return q;
}

// x = n ln 2 + head + low, expm1(head + low) = head + tail; returns tail. Head has no error, so it is added last.
template <bool NEAR_ONE, typename V>
MLC_INLINE V mlc_exp_reduce(V x, V& n, V& head) {
  const V magic = V{} + mlc_magic<V>;
  V low;
  if constexpr (sizeof(mlc_lane<V>) == 4) {
    n = (x * 0x1.715476p+0f + magic) - magic;
    head = x - n * 0x1.63p-1f;
    low = n * 0x1.bd0106p-13f;
  } else {
    n = (x * 0x1.71547652b82fep+0 + magic) - magic;
    head = x - n * 0x1.62e42feep-1;
    low = n * -0x1.a39ef35793c76p-33;
  }
  V r = head + low;
  V square = r * r;
  return mlc_expm1_quotient<NEAR_ONE>(r) * square + low;
}

// p * 2^n = exp(x). Floats trade a third of an ulp for a third of the work.
template <typename V>
MLC_INLINE V mlc_exp_parts(V x, V& n) {
  if constexpr (sizeof(mlc_lane<V>) == 4) {
    const V magic = V{} + mlc_magic<V>;
    n = (x * 0x1.715476p+0f + magic) - magic;
    V r = x - n * 0x1.63p-1f + n * 0x1.bd0106p-13f;
    V p = r * 0x1.6a4d5ep-10f + 0x1.12398ep-7f;
    p = p * r + 0x1.5558b0p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1;
    return p * r + 1;
  } else {
    V head, tail = mlc_exp_reduce<true>(x, n, head);
    return tail + head + 1;
  }
}
template <typename V>
MLC_INLINE V mlc_exp_lanes(V x) {
  // The lower limit makes both factors of mlc_scale zero: exp(-inf), frequent in masked softmax, meets no denormal.
  if constexpr (sizeof(mlc_lane<V>) == 4)
    x = mlc_limit_scale(x, -176.f, 89.f);
  else
    x = mlc_limit_scale(x, -1418.2, 710.);
  V n, p = mlc_exp_parts(x, n);
  return mlc_scale(p, n);
}
MLC_UNARY(mlc_exp)

template <typename V>
MLC_INLINE V mlc_exp2_lanes(V x) {
  const V magic = V{} + mlc_magic<V>;
  V n, r, q;
  if constexpr (sizeof(mlc_lane<V>) == 4) {
    x = mlc_limit_scale(x, -254.f, 128.f);
    n = (x + magic) - magic;
    r = x - n;
    q = r * 0x1.179a44p-13f + 0x1.5ef4dcp-10f;
    q = q * r + 0x1.3b6816p-7f;
    q = q * r + 0x1.c6af9ep-5f;
    q = q * r + 0x1.ebfb94p-3f;
    q = q * r + 0x1.62e430p-1f;
  } else {
    x = mlc_limit_scale(x, -2046., 1024.);
    n = (x + magic) - magic;
    r = x - n;
    q = r * 0x1.c2ce99b59bd1ep-36 + 0x1.ea014f7a8176bp-32;
    q = q * r + 0x1.e4d06c753709bp-28;
    q = q * r + 0x1.b524dd54e0576p-24;
    q = q * r + 0x1.62c021e26dce3p-20;
    q = q * r + 0x1.ffcbfc74d644ep-17;
    q = q * r + 0x1.430912f883cfbp-13;
    q = q * r + 0x1.5d87fe78a26c8p-10;
    q = q * r + 0x1.3b2ab6fba4e22p-7;
    q = q * r + 0x1.c6b08d704a0cfp-5;
    q = q * r + 0x1.ebfbdff82c58fp-3;
    q = q * r + 0x1.62e42fefa39efp-1;
  }
  return mlc_scale(q * r + 1, n);
}
MLC_UNARY(mlc_exp2)

template <typename V>
MLC_INLINE V mlc_exp2_ftz_lanes(V x) {
  const mlc_lane<V> least = sizeof(mlc_lane<V>) == 4 ? -126 : -1022;
  return x < least ? V{} : mlc_exp2_lanes(x);
}
MLC_UNARY(mlc_exp2_ftz)

template <typename V>
MLC_INLINE V mlc_expm1_lanes(V x) {
  typedef mlc_lane<V> T;
  V n, head, y = sizeof(T) == 4 ? mlc_limit(x, T(-30), T(89)) : mlc_limit(x, T(-60), T(710));
  V tail = mlc_exp_reduce<false>(y, n, head);
  // Half of 2^n, which exists also for the largest n; the final doubling is exact or overflows as it must.
  V half = mlc_power_of_two<V>(mlc_integer_of(n) - 1);
  V result = (tail * half + (head * half + (half - T(0.5)))) * T(2);
  // Halving would round a denormal and lose the sign of zero.
  return mlc_abs_bits(x) < T(0x1p-60) ? x : result;
}
MLC_UNARY(mlc_expm1)

// exp(|x|) / 2
template <typename V>
MLC_INLINE V mlc_half_exp(V x) {
  V n, head, tail = mlc_exp_reduce<true>(mlc_limit(mlc_abs_bits(x), 0.f, 90.f), n, head);
  return mlc_scale(tail + head + 1, n - 1);
}

template <typename V>
MLC_INLINE V mlc_cosh_lanes(V x) {
  V e = mlc_half_exp(x);
  return e + 0.25f / e;
}
MLC_UNARY_LIBRARY(mlc_cosh, __builtin_cosh)

template <typename V>
MLC_INLINE V mlc_sinh_lanes(V x) {
  V e = mlc_half_exp(x), z = x * x;
  V q = z * 0x1.756c1ep-19f + 0x1.a022bcp-13f;
  q = q * z + 0x1.1110e0p-7f;
  q = q * z + 0x1.555556p-3f;
  V small = q * (z * x) + x;
  return mlc_abs_bits(x) < 1.f ? small : mlc_or_bits(e - 0.25f / e, mlc_sign_bit(x));
}
MLC_UNARY_LIBRARY(mlc_sinh, __builtin_sinh)
