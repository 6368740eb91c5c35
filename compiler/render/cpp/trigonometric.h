// sin, cos, tan, asin, acos, atan, atan2; in double all but sin and cos are the C library's.
//
// Arguments up to 2^17 are reduced by pi / 2 in three parts with exact multiply-adds; lanes with a larger one take the
// C library's double functions.
#pragma once
#include "vector.h"

// x - n pi / 2. The first difference is exact: a multiple of 2^-23 below 2. What cancellation leaves is then known to the
// last part's error.
template <typename V>
MLC_INLINE V mlc_minus_quarter_turns(V x, V n) {
  V r = mlc_fma(n, V{} - 0x1.921fb4p+0f, x);
  r = mlc_fma(n, V{} - 0x1.4442dp-24f, r);
  return mlc_fma(n, V{} - 0x1.846988p-48f, r);
}
// x = n pi / 2 + r, |r| <= pi / 4 and a little; n is returned as an integer.
template <typename V>
MLC_INLINE mlc_bits<V> mlc_quarter_turns(V x, V& r) {
  const V magic = V{} + 12582912.f;
  V t = x * 0x1.45f306p-1f + magic;
  r = mlc_minus_quarter_turns(x, t - magic);
  return mlc_bitcast<mlc_bits<V>>(t);
}
template <typename V>
MLC_INLINE V mlc_sin_reduced(V r) {
  V z = r * r, q;
  q = z * -0x1.991c26p-13f + 0x1.1106c6p-7f;
  q = q * z - 0x1.555544p-3f;
  return q * (z * r) + r;
}
template <typename V>
MLC_INLINE V mlc_cos_reduced(V r) {
  V z = r * r, q;
  q = z * 0x1.99de6ap-16f - 0x1.6c0c14p-10f;
  q = q * z + 0x1.55554ap-5f;
  return q * (z * z) + (1 - z * 0.5f);
}
// `near` where the argument is within the limit, else the library's function. Only the far lanes are replaced, so that
// the result for one lane does not depend on its neighbours.
#define MLC_FAR_ARGUMENTS(NAME, LIBRARY)                                                \
  template <typename T>                                                                 \
  MLC_SLOW void NAME##_each_far(const T* x, T* result, int count) {                     \
    for (int i = 0; i < count; i++)                                                     \
      if (!(x[i] >= -0x1p17f && x[i] <= 0x1p17f)) result[i] = LIBRARY((double)x[i]);    \
  }                                                                                     \
  template <typename V>                                                                 \
  MLC_INLINE V NAME##_far(V x, V near) {                                                \
    typedef mlc_lane<V> T;                                                              \
    if (__builtin_expect(mlc_any_beyond(x, T(0x1p17)), 0)) {                            \
      V far = x, result = near; /* copies, so that the usual way needs no memory */     \
      NAME##_each_far((const T*)&far, (T*)&result, mlc_lanes<V>);                       \
      near = result;                                                                    \
    }                                                                                   \
    return near;                                                                        \
  }
MLC_FAR_ARGUMENTS(mlc_sin, __builtin_sin)
MLC_FAR_ARGUMENTS(mlc_cos, __builtin_cos)
MLC_FAR_ARGUMENTS(mlc_tan, __builtin_tan)

// Sine, or from a quarter turn on cosine, in double: x = n pi / 2 + r + tail, |r| <= pi / 4 and a little, where the first
// two parts of pi / 2 have so few bits that n times them is exact. Both polynomials are fdlibm's.
template <typename V>
MLC_INLINE V mlc_sin_double(V x, long quarters) {
  const V magic = V{} + 6755399441055744.0;
  V t = x * 0x1.45f306dc9c883p-1 + magic, n = t - magic;
  V first = x - n * 0x1.921fb544p+0, second = first - n * 0x1.0b4611a6p-34;
  V lost = (first - second) - n * 0x1.0b4611a6p-34 - n * 0x1.3198a2e037073p-69;
  V r = second + lost, tail = lost - (r - second), z = r * r, s, c;
  s = z * 0x1.5d93a5acfd57cp-33 - 0x1.ae5e68a2b9cebp-26;
  s = s * z + 0x1.71de357b1fe7dp-19;
  s = s * z - 0x1.a01a019c161d5p-13;
  s = s * z + 0x1.111111110f8a6p-7;
  s = s * z - 0x1.5555555555549p-3;
  s = (s * (z * r) + (tail - z * 0.5 * tail)) + r;
  c = z * -0x1.8fae9be8838d4p-37 + 0x1.1ee9ebdb4b1c4p-29;
  c = c * z - 0x1.27e4f809c52adp-22;
  c = c * z + 0x1.a01a019cb1590p-16;
  c = c * z - 0x1.6c16c16c15177p-10;
  c = c * z + 0x1.555555555554cp-5;
  V half = z * 0.5, rest = 1 - half;
  c = rest + ((1 - rest - half) + (c * (z * z) - r * tail));
  mlc_bits<V> turn = mlc_bitcast<mlc_bits<V>>(t) + quarters;
  V result = (turn & 1) != 0 ? c : s;
  return mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(result) ^ (turn >> 1) << 63);
}

// sin(r) for |r| <= pi / 2 and a little; never beyond 1.
template <typename V>
MLC_INLINE V mlc_sin_half_turn(V r) {
  V z = r * r, q = z * 0x1.5dc84ap-19f - 0x1.9f70eap-13f;
  q = q * z + 0x1.110edap-7f;
  q = q * z - 0x1.55554cp-3f;
  return mlc_limit(q * (z * r) + r, -1.f, 1.f);
}
// Sine and cosine are read off one polynomial: x is a multiple of pi, or an odd one of pi / 2, and the rest.
template <typename V>
MLC_INLINE V mlc_sin_float(V x) {
  const V magic = V{} + 12582912.f;
  V t = x * 0x1.45f306p-2f + magic, n = t - magic;
  V r = mlc_minus_quarter_turns(x, n + n);
  V result = mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(mlc_sin_half_turn(r)) ^ mlc_bitcast<mlc_bits<V>>(t) << 31);
  return mlc_sin_far(x, x == 0 ? x : result);
}
template <typename V>
MLC_INLINE V mlc_sin_lanes(V x) {
  if constexpr (sizeof(mlc_lane<V>) == 4)
    return mlc_sin_float(x);
  else
    return mlc_sin_far(x, x == 0 ? x : mlc_sin_double(x, 0));
}
MLC_UNARY(mlc_sin)

template <typename V>
MLC_INLINE V mlc_cos_float(V x) {
  const V magic = V{} + 12582912.f;
  V t = (x * 0x1.45f306p-2f - 0.5f) + magic, n = t - magic;
  V r = mlc_minus_quarter_turns(x, n + n + 1);
  return mlc_cos_far(
      x, mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(mlc_sin_half_turn(r)) ^ (mlc_bitcast<mlc_bits<V>>(t) + 1) << 31));
}
template <typename V>
MLC_INLINE V mlc_cos_lanes(V x) {
  if constexpr (sizeof(mlc_lane<V>) == 4)
    return mlc_cos_float(x);
  else
    return mlc_cos_far(x, mlc_sin_double(x, 1));
}
MLC_UNARY(mlc_cos)

template <typename V>
MLC_INLINE V mlc_tan_lanes(V x) {
  V r;
  mlc_bits<V> n = mlc_quarter_turns(x, r);
  V s = mlc_sin_reduced(r), c = mlc_cos_reduced(r);
  V result = (n & 1) != 0 ? -c / s : s / c;
  return mlc_tan_far(x, x == 0 ? x : result);
}
MLC_UNARY_LIBRARY(mlc_tan, __builtin_tan)

// (asin(x) - x) / x for x^2 = z <= 1/4
template <typename V>
MLC_INLINE V mlc_asin_quotient(V z) {
  V q;
  q = z * 0x1.595c92p-5f + 0x1.8c3e28p-6f;
  q = q * z + 0x1.747bbap-5f;
  q = q * z + 0x1.330204p-4f;
  q = q * z + 0x1.5555c8p-3f;
  return q * z;
}
// asin and acos beyond 1/2 through asin(sqrt((1 - |x|) / 2)).
template <typename V>
MLC_INLINE V mlc_asin_lanes(V x) {
  V a = mlc_abs_bits(x);
  auto far = a > 0.5f;
  V z = far ? (1 - a) * 0.5f : x * x, s = far ? mlc_sqrt(z) : a;
  V y = mlc_asin_quotient(z) * s + s;
  V result = far ? 0x1.921fb6p+0f - (y + y) : y;
  return mlc_or_bits(result, mlc_sign_bit(x));
}
MLC_UNARY_LIBRARY(mlc_asin, __builtin_asin)

template <typename V>
MLC_INLINE V mlc_acos_lanes(V x) {
  V a = mlc_abs_bits(x);
  auto far = a > 0.5f;
  V z = far ? (1 - a) * 0.5f : x * x, s = far ? mlc_sqrt(z) : x;
  V y = mlc_asin_quotient(z) * s;  // asin(s) - s
  V up = (y + s) * 2;
  V outer = x < 0 ? 0x1.921fb6p+1f - (up + 0x1.777a5cp-24f) : up;
  return far ? outer : 0x1.921fb6p+0f - (s + (y + 0x1.777a5cp-25f));
}
MLC_UNARY_LIBRARY(mlc_acos, __builtin_acos)

// (atan(x) - x) / x for 0 <= x <= 1
template <typename V>
MLC_INLINE V mlc_atan_quotient(V x) {
  V z = x * x, q;
  q = z * -0x1.db6174p-10f + 0x1.67e972p-7f;
  q = q * z - 0x1.0022b8p-5f;
  q = q * z + 0x1.db2c0ap-5f;
  q = q * z - 0x1.5837bcp-4f;
  q = q * z + 0x1.c0939cp-4f;
  q = q * z - 0x1.2420acp-3f;
  q = q * z + 0x1.9991e4p-3f;
  q = q * z - 0x1.55553ep-2f;
  return q * z;
}
template <typename V>
MLC_INLINE V mlc_atan_lanes(V x) {
  V a = mlc_abs_bits(x);
  auto far = a > 1.f;
  V s = far ? 1 / a : a;
  V y = mlc_atan_quotient(s) * s + s;
  return mlc_or_bits(far ? 0x1.921fb6p+0f - y : y, mlc_sign_bit(x));
}
MLC_UNARY_LIBRARY(mlc_atan, __builtin_atan)

// The angle of the point (x, y); the first argument is y.
template <typename V>
MLC_INLINE V mlc_atan2_lanes(V y, V x) {
  V a = mlc_abs_bits(y), b = mlc_abs_bits(x);
  auto steep = a > b;
  V low = steep ? b : a, high = steep ? a : b;
  V s = low / high;
  s = low == high ? V{} + 1 : s;  // both infinite
  s = high == 0 ? V{} : s;  // both zero
  V angle = mlc_atan_quotient(s) * s + s;
  angle = steep ? 0x1.921fb6p+0f - angle : angle;
  angle = mlc_bitcast<mlc_bits<V>>(x) < 0 ? 0x1.921fb6p+1f - angle : angle;
  angle = mlc_or_bits(angle, mlc_sign_bit(y));
  return (x != x) | (y != y) ? V{} + __builtin_nanf("") : angle;
}
MLC_BINARY_LIBRARY(mlc_atan2, __builtin_atan2)
