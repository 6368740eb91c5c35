// log, log2, log10, log1p, asinh, acosh, atanh.
//
// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); log(1 + f) = f - f^2 / 2 + f^3 q(f), q a minimax polynomial.
#pragma once
#include "vector.h"

// Splits x into exponent (returned as a float) and 1 + f; x positive and normal.
template <typename V>
MLC_INLINE V mlc_split_exponent(V x, V& mantissa) {
  typedef mlc_bits<V> I;
  I bits = mlc_bitcast<I>(x);
  if constexpr (sizeof(mlc_lane<V>) == 4) {
    I e = (bits - 0x3f3504f3) >> 23;
    mantissa = mlc_bitcast<V>(bits - (e << 23));
    return __builtin_convertvector(e, V);
  } else {
    // The exponent field is made a double by placing it under the exponent of 2^52: no 64-bit conversion needed.
    I offset = bits - 0x3fe6a09e667f3bcd + (1023l << 52);
    V e = mlc_bitcast<V>((I)((mlc_vec<unsigned long, mlc_lanes<V>>)offset >> 52) | 0x4330000000000000) - 0x1p52 - 1023.;
    mantissa = mlc_bitcast<V>(bits - ((offset & (0xfffl << 52)) - (1023l << 52)));
    return e;
  }
}

// f^3 q(f) - f^2 / 2, so that log(1 + f) = f + this
template <typename V>
MLC_INLINE V mlc_log_tail(V f) {
  V z = f * f;
  if constexpr (sizeof(mlc_lane<V>) == 4) {
    V q = f * -0x1.38b46ap-4f + 0x1.056f9ap-3f;
    q = q * f - 0x1.0d8eccp-3f;
    q = q * f + 0x1.22d812p-3f;
    q = q * f - 0x1.547128p-3f;
    q = q * f + 0x1.99a014p-3f;
    q = q * f - 0x1.00022ap-2f;
    q = q * f + 0x1.555554p-2f;
    return q * (z * f) - z * 0.5f;
  } else {
    // log(1 + f) = f - h + s (h + r), s = f / (2 + f), h = f^2 / 2, r even in s
    V s = f / (f + 2.), w = s * s, h = z * 0.5;
    V r = w * 0x1.2f1181102ae9ap-3 + 0x1.39a09532ac027p-3;
    r = r * w + 0x1.746649b40c1d2p-3;
    r = r * w + 0x1.c71c51d7b7f2bp-3;
    r = r * w + 0x1.249249422a5e3p-2;
    r = r * w + 0x1.999999997f9f7p-2;
    r = r * w + 0x1.5555555555593p-1;
    r = r * w;
    return s * (h + r) - h;
  }
}

// The limits of a logarithm: zero gives -inf, negative NaN, +inf and NaN themselves. `x` is the true argument.
template <typename V>
MLC_INLINE V mlc_log_limits(V x, V result) {
  typedef mlc_lane<V> T;
  const V infinity = V{} + T(__builtin_inff());
  const V outside = x == 0 ? -infinity : V{} + T(__builtin_nanf(""));
  result = x < infinity ? result : x;
  return x > 0 ? result : outside;
}

// Scales denormals into the normal range; gives the exponent and f.
template <typename V>
MLC_INLINE V mlc_log_reduce(V x, V& f) {
  typedef mlc_lane<V> T;
  const T smallest = sizeof(T) == 4 ? T(0x1p-126) : T(0x1p-1022), up = sizeof(T) == 4 ? T(0x1p24) : T(0x1p54);
  auto tiny = x < smallest;
  V mantissa, e = mlc_split_exponent(tiny ? x * up : x, mantissa);
  f = mantissa - 1;
  return tiny ? e - T(sizeof(T) == 4 ? 24 : 54) : e;
}

template <typename V>
MLC_INLINE V mlc_log_sum(V e, V f) {
  V t = mlc_log_tail(f);
  if constexpr (sizeof(mlc_lane<V>) == 4)
    return e * 0x1.63p-1f + (f + (t - e * 0x1.bd0106p-13f));
  else
    return e * 0x1.62e42feep-1 + (f + (t + e * 0x1.a39ef35793c76p-33));
}

template <typename V>
MLC_INLINE V mlc_log_lanes(V x) {
  V f, e = mlc_log_reduce(x, f);
  return mlc_log_limits(x, mlc_log_sum(e, f));
}
MLC_UNARY(mlc_log)

template <typename V>
MLC_INLINE V mlc_log2_lanes(V x) {
  V f, e = mlc_log_reduce(x, f);
  V t = mlc_log_tail(f);
  // log2(1 + f) = (f + t) (1 + c), c = log2(e) - 1, added from the smallest term up
  V sum = t * 0x1.c551d94p-2f + f * 0x1.c551d94p-2f + t + f + e;
  return mlc_log_limits(x, sum);
}
MLC_UNARY_LIBRARY(mlc_log2, __builtin_log2)

template <typename V>
MLC_INLINE V mlc_log10_lanes(V x) {
  V f, e = mlc_log_reduce(x, f);
  V t = mlc_log_tail(f);
  // The heads of log10(e) and log10(2) have few bits, so their products with f and e are nearly exact.
  V sum = t * 0x1.6f62a4p-11f + f * 0x1.6f62a4p-11f + e * 0x1.04d428p-12f;
  sum = sum + t * 0x1.bcp-2f + f * 0x1.bcp-2f + e * 0x1.34p-2f;
  return mlc_log_limits(x, sum);
}
MLC_UNARY_LIBRARY(mlc_log10, __builtin_log10)

template <typename V>
MLC_INLINE V mlc_log1p_lanes(V x) {
  typedef mlc_bits<V> I;
  V u = x + 1, mantissa, e = mlc_split_exponent(u, mantissa);
  // What rounding 1 + x lost, scaled like the mantissa; from 2^60 on it does not matter and the scale is not normal.
  V lost = x > 1.f ? 1 - (u - x) : x - (u - 1);
  V scale = mlc_bitcast<V>(mlc_bitcast<I>(mantissa) - mlc_bitcast<I>(u) + 0x3f800000);
  V f = mantissa - 1 + (u < 0x1p60f ? lost * scale : V{});
  V result = mlc_log_limits(u, mlc_log_sum(e, f));
  return mlc_abs_bits(x) < 0x1p-60f ? x : result;
}
MLC_UNARY_LIBRARY(mlc_log1p, __builtin_log1p)

template <typename V>
MLC_INLINE V mlc_asinh_lanes(V x) {
  V a = mlc_abs_bits(x);
  auto huge = a > 0x1p60f;  // where the square overflows and asinh(x) = log(2 x)
  V z = a * a / (mlc_sqrt(a * a + 1) + 1) + a;
  V result = mlc_log1p_lanes(huge ? a : z);
  return mlc_or_bits(huge ? result + 0x1.62e43p-1f : result, mlc_sign_bit(x));
}
MLC_UNARY_LIBRARY(mlc_asinh, __builtin_asinh)

template <typename V>
MLC_INLINE V mlc_acosh_lanes(V x) {
  V t = x - 1;
  auto huge = x > 0x1p60f;
  V result = mlc_log1p_lanes(huge ? x : t + mlc_sqrt(t * t + t * 2));
  result = huge ? result + 0x1.62e43p-1f : result;
  return x < 1.f ? V{} + __builtin_nanf("") : result;
}
MLC_UNARY_LIBRARY(mlc_acosh, __builtin_acosh)

template <typename V>
MLC_INLINE V mlc_atanh_lanes(V x) {
  V a = mlc_abs_bits(x);
  return mlc_or_bits(mlc_log1p_lanes((a + a) / (1 - a)) * 0.5f, mlc_sign_bit(x));
}
MLC_UNARY_LIBRARY(mlc_atanh, __builtin_atanh)
