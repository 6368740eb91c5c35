// Index arithmetic: division and remainder by a known positive number, rounded to minus infinity.
#pragma once
#include "vector.h"

constexpr int mlc_log2_of(long d) { return d > 1 ? 1 + mlc_log2_of(d / 2) : 0; }

// floor(x / D)
//
// Of signed numbers -x / D is -(x / D) to g++ where it knows x / D, which is wrong of the least one even with -fwrapv: what
// is divided is unsigned, x if that is not negative and else ~x, whose quotient is the complement of that of x.
template <long D, typename V>
MLC_INLINE V mlc_floordiv_by(V x) {
  typedef mlc_lane<V> T;
  static_assert(D > 0, "the divisor is positive");
  if constexpr ((D & (D - 1)) == 0)
    return x >> (T)mlc_log2_of(D);
  else if constexpr (!mlc_is_scalar<V> && sizeof(T) == 1)  // for which there is no instruction
    return __builtin_convertvector(mlc_floordiv_by<D>(__builtin_convertvector(x, mlc_vec<short, mlc_lanes<V>>)), V);
  else if constexpr (T(-1) > T(0))
    return x / (V)D;
  else {
    typedef mlc_unsigned<V> U;
    const V negative = x >> (T)(8 * sizeof(T) - 1);
    return (V)((U)(x ^ negative) / (mlc_lane<U>)D) ^ negative;
  }
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
