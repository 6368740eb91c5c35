// Requirements on a program's data. If one fails, the entry reports it and the outputs are meaningless. A function with
// an index out of range returns at once. Other failures are collected without branches, in one register per width of
// vectors, and reported at the end; until then the program continues with some value.
#pragma once
#include "gather.h"

struct mlc_failures {
  long one = 0;
  mlc_vec<long, 2> two = {};
  mlc_vec<long, 4> four = {};
  mlc_vec<long, 8> eight = {};
#ifdef MLC_AVX512
  // The unsigned minima, by size in bytes, of numbers that must not be 0.
  mlc_vec<unsigned char, 64> least1 = ~mlc_vec<unsigned char, 64>{};
  mlc_vec<unsigned short, 32> least2 = ~mlc_vec<unsigned short, 32>{};
  mlc_vec<unsigned, 16> least4 = ~mlc_vec<unsigned, 16>{};
  mlc_vec<unsigned long, 8> least8 = ~mlc_vec<unsigned long, 8>{};
#endif
};
// Any bit set in `wrong` is a failure.
template <typename V>
MLC_INLINE void mlc_gather_failures(mlc_failures& all, V wrong) {
  if constexpr (mlc_is_scalar<V>)
    all.one |= wrong;
  else if constexpr (mlc_is_wide<V>)
    mlc_gather_failures(all, mlc_low(wrong) | mlc_high(wrong));
  else if constexpr (sizeof(V) == 64)
    all.eight |= mlc_bitcast<mlc_vec<long, 8>>(wrong);
  else if constexpr (sizeof(V) == 32)
    all.four |= mlc_bitcast<mlc_vec<long, 4>>(wrong);
  else if constexpr (sizeof(V) == 16)
    all.two |= mlc_bitcast<mlc_vec<long, 2>>(wrong);
  else if constexpr (sizeof(V) == 8)
    all.one |= mlc_bitcast<long>(wrong);
  else
    all.one |= mlc_reduce_or(wrong);
}
template <typename M, typename V>
MLC_INLINE V mlc_require(mlc_failures& all, M holds, V x) {
  if constexpr (mlc_is_scalar<M>) {
    if (__builtin_expect(!holds, 0)) return all.one = 1, V(0);
    return x;
  } else {
    mlc_gather_failures(all, ~holds);
    return mlc_where(holds, x, V{});
  }
}
template <typename V, typename... More>
MLC_INLINE bool mlc_all_below(V n, V x, V y, More... more);
// Whether any lane is outside of 0 .. n - 1, for 0 <= n.
template <typename V>
MLC_INLINE bool mlc_any_outside(V x, V n) {
  if constexpr (mlc_is_scalar<V>) return (mlc_unsigned<V>)x >= (mlc_unsigned<V>)n;
  if constexpr (mlc_is_wide<V>)
    return !mlc_all_below(mlc_low(n), mlc_low(x), mlc_high(x));
#ifdef MLC_AVX512
  typedef mlc_vec<long long, 8> L;
  if constexpr (sizeof(V) == 64 && sizeof(mlc_lane<V>) == 8)
    return __builtin_ia32_ucmpq512_mask(mlc_bitcast<L>(x), mlc_bitcast<L>(n), MLC_NOT_LESS, -1) != 0;
#endif
  // x or n - 1 - x is then negative, and AVX tests sign bits.
  const V signs = x | (n - 1 - x);
#ifdef __AVX2__
  if constexpr (sizeof(V) == 32 && sizeof(mlc_lane<V>) == 8)
    return __builtin_ia32_movmskpd256(mlc_bitcast<mlc_vec<double, 4>>(signs)) != 0;
#endif
  return mlc_any(signs < 0);
}
// The maximum of two vectors by unsigned words of at most 32 bits. For a limit of one word, the number made of the word
// maxima is below the limit if and only if both numbers are.
template <typename V>
MLC_INLINE V mlc_larger_words(V a, V b) {
  typedef typename mlc_unsigned_type<(sizeof(mlc_lane<V>) < 4 ? sizeof(mlc_lane<V>) : 4)>::type U;
  typedef mlc_vec<U, sizeof(V) / sizeof(U)> W;
  const W x = mlc_bitcast<W>(a), y = mlc_bitcast<W>(b);
  return mlc_bitcast<V>(x > y ? x : y);
}
// Whether all lanes of some vectors are in 0 .. n - 1; n is equal in every lane.
template <typename V>
MLC_INLINE bool mlc_all_below(V n, V x) {
  return !mlc_any_outside(x, n);
}
template <typename V, typename... More>
MLC_INLINE bool mlc_all_below(V n, V x, V y, More... more) {
#ifdef MLC_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(mlc_lane<V>) == 8) {
    typedef mlc_vec<unsigned long, 8> U;
    const U a = mlc_bitcast<U>(x), b = mlc_bitcast<U>(y);
    return mlc_all_below(n, mlc_bitcast<V>(a > b ? a : b), more...);
  }
#endif
#ifdef __AVX2__
  if (sizeof(mlc_lane<V>) < 8 || n[0] <= 1L << 32) return mlc_all_below(n, mlc_larger_words(x, y), more...);
#endif
  return !mlc_any_outside(x, n) & mlc_all_below(n, y, more...);
}
// x, which is required to be in 0 .. n - 1; where it is not, a failure and some number in that range, if there is one.
// n is equal in every lane.
template <typename V>
MLC_INLINE V mlc_require_below(mlc_failures& all, V x, V n) {
  if (__builtin_expect(mlc_any_outside(x, n), 0)) return all.one = 1, V{};
  return x;
}
// The same question of what has just been loaded and is used lane by lane, if no instruction gathers at such indices: g++
// loads each lane by itself then, and makes no vector of them again as long as there is a branch for each.
template <typename V>
MLC_INLINE bool mlc_each_outside(V x, V n) {
  if constexpr (mlc_is_scalar<V> || mlc_has_gather<float, V>)
    return mlc_any_outside(x, n);
  else {
    typedef mlc_unsigned<mlc_lane<V>> U;
    bool outside = false;
    for (int i = 0; i < mlc_lanes<V>; i++) {
      outside |= (U)x[i] >= (U)n[i];
      if (__builtin_expect(outside, 0)) return true;
    }
    return false;
  }
}
// Say that the data is not valid, before leaving.
__attribute__((cold, noinline, unused)) static void mlc_fail(int* failed) {
  __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
}
#ifdef MLC_AVX512
template <typename U, typename V>
MLC_INLINE void mlc_lessen(U& least, V x) {
  const U given = mlc_bitcast<U>(x);
  least = given < least ? given : least;
}
#endif
// x, which must not be 0 and may be used as it is.
template <typename V>
MLC_INLINE V mlc_require_nonzero(mlc_failures& all, V x) {
#ifdef MLC_AVX512
  if constexpr (mlc_is_wide<V>)
    return mlc_join(mlc_require_nonzero(all, mlc_low(x)), mlc_require_nonzero(all, mlc_high(x)));
  else if constexpr (sizeof(V) == 64) {
    if constexpr (sizeof(mlc_lane<V>) == 1) mlc_lessen(all.least1, x);
    if constexpr (sizeof(mlc_lane<V>) == 2) mlc_lessen(all.least2, x);
    if constexpr (sizeof(mlc_lane<V>) == 4) mlc_lessen(all.least4, x);
    if constexpr (sizeof(mlc_lane<V>) == 8) mlc_lessen(all.least8, x);
    return x;
  }
#endif
  if constexpr (mlc_is_scalar<V>)
    all.one |= x == 0;
  else
    mlc_gather_failures(all, x == 0);
  return x;
}
MLC_INLINE void mlc_tell_failures(int* failed, const mlc_failures& all) {
  long any = all.one | mlc_reduce_or(all.two) | mlc_reduce_or(all.four) | mlc_reduce_or(all.eight);
#ifdef MLC_AVX512
  any |= mlc_any(all.least1 == 0) | mlc_any(all.least2 == 0) | mlc_any(all.least4 == 0) | mlc_any(all.least8 == 0);
#endif
  if (__builtin_expect(any != 0, 0)) __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
}
