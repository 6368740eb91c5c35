// Index arithmetic: division and remainder by a known positive number, rounded to minus infinity.
#pragma once
#include "vector.h"

constexpr int mlc_log2_of(long d) { return d > 1 ? 1 + mlc_log2_of(d / 2) : 0; }

// floor(x / D)
template <long D, typename V>
MLC_INLINE V mlc_floordiv_by(V x) {
  static_assert(D > 0, "the divisor is positive");
  if constexpr ((D & (D - 1)) == 0)
    return x >> (mlc_lane<V>)mlc_log2_of(D);
  else if constexpr (mlc_is_scalar<V>)
    return x / (V)D - (x % (V)D < 0);
  else
    return x / (mlc_lane<V>)D + (x % (mlc_lane<V>)D < 0);
}
// x - D floor(x / D), which is never negative.
template <long D, typename V>
MLC_INLINE V mlc_mod_by(V x) {
  static_assert(D > 0, "the divisor is positive");
  if constexpr ((D & (D - 1)) == 0)
    return x & (mlc_lane<V>)(D - 1);
  else {
    const V r = x % (mlc_lane<V>)D;
    return r < 0 ? (V)(r + (mlc_lane<V>)D) : r;
  }
}
