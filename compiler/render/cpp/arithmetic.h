// Arithmetic beyond + - * /: neg abs sign floor ceil round tf32 trunc rsqrt, shl and shr; add sub mul of scalars that wrap.
// (mlc_min, mlc_max, mlc_where, mlc_isnan, mlc_signbit, mlc_sqrt and mlc_fma are in vector.h, divisions in division.h.)
#pragma once
#include "vector.h"

template <typename V>
MLC_INLINE V mlc_neg(V x) {
  if constexpr (mlc_is_float<V>)
    return -x;
  else
    return (V)(0 - (mlc_unsigned<V>)x);
}
#define MLC_WRAPPING(NAME, SYMBOL)                            \
  template <typename T>                                       \
  MLC_INLINE T NAME(T x, T y) {                               \
    return (T)((mlc_unsigned<T>)x SYMBOL (mlc_unsigned<T>)y); \
  }
MLC_WRAPPING(mlc_add, +)
MLC_WRAPPING(mlc_sub, -)
MLC_WRAPPING(mlc_mul, *)
#undef MLC_WRAPPING
template <typename V>
MLC_INLINE V mlc_abs(V x) {
  if constexpr (mlc_is_float<V>)
    return mlc_abs_bits(x);
  else
    return mlc_where(x < 0, mlc_neg(x), x);
}
// -1, 0 or 1; NaN gives 0 as in PyTorch.
template <typename V>
MLC_INLINE V mlc_sign_lanes(V x) {
  const V one = V{} + 1;
  return (x > 0 ? one : V{}) - (x < 0 ? one : V{});
}
MLC_UNARY(mlc_sign)
template <typename V>
MLC_INLINE V mlc_floor(V x) {
  return mlc_round_to<MLC_DOWN>(x);
}
template <typename V>
MLC_INLINE V mlc_ceil(V x) {
  return mlc_round_to<MLC_UP>(x);
}
template <typename V>
MLC_INLINE V mlc_trunc(V x) {
  return mlc_round_to<MLC_TO_ZERO>(x);
}
// Halves go to the even neighbour.
template <typename V>
MLC_INLINE V mlc_round(V x) {
  return mlc_round_to<MLC_TO_EVEN>(x);
}
// To 10 bits of fraction, halves away from zero; NaN stays.
template <typename V>
MLC_INLINE V mlc_tf32(V x) {
  typedef mlc_bits<V> I;
  const mlc_lane<I> unit = (mlc_lane<I>)1 << (sizeof(mlc_lane<V>) == 4 ? 13 : 42);
  return mlc_where(x != x, x, mlc_bitcast<V>((mlc_bitcast<I>(x) + unit / 2) & -unit));
}
template <typename V>
MLC_INLINE V mlc_rsqrt(V x) {
  return 1 / mlc_sqrt(x);
}

// Shifts as PyTorch defines them: by a negative count or by the width and more, all bits (but a sign) fall out.
template <typename V>
MLC_INLINE V mlc_shl_lanes(V x, V count) {
  const mlc_lane<V> width = 8 * sizeof(mlc_lane<V>);
  return (count >= 0) & (count < width) ? (V)((mlc_unsigned<V>)x << (count & (mlc_lane<V>)(width - 1))) : V{};
}
MLC_BINARY(mlc_shl)
template <typename V>
MLC_INLINE V mlc_shr_lanes(V x, V count) {
  const mlc_lane<V> width = 8 * sizeof(mlc_lane<V>);
  const V sign = x < 0 ? ~V{} : V{};
  return (count >= 0) & (count < width) ? x >> (count & (mlc_lane<V>)(width - 1)) : sign;
}
MLC_BINARY(mlc_shr)
