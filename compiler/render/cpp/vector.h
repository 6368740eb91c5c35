// Fixed-width SIMD vectors: types, lanes, masks, selection, exact multiply-add, rounding and reductions.
//
// mlc_vec<T, N> is N lanes of T; mlc_vec<T, 1> is T itself, so text written for N lanes is also the scalar tail.
// A comparison of vectors gives a mask: signed integers as wide as the lanes, 0 or -1; of scalars it gives bool.
// Vectors wider than the machine work everywhere: they are computed in halves.
#pragma once
#pragma GCC diagnostic ignored "-Wpsabi"

#define MLC_INLINE static inline __attribute__((always_inline))
// Rarely taken per-lane paths stay out of the loop that calls them.
#define MLC_SLOW static __attribute__((noinline, cold, unused))

#ifndef MLC_VECTOR_BYTES
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define MLC_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MLC_VECTOR_BYTES 32
#else
#define MLC_VECTOR_BYTES 16
#endif
#endif
// The widest vectors whose instructions exist; MLC_VECTOR_BYTES may be set lower.
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define MLC_AVX512 1
#endif

template <typename T, int N>
struct mlc_vector_type {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
  typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(1), may_alias));
};
template <typename T>
struct mlc_vector_type<T, 1> {
  typedef T type;
  typedef T unaligned __attribute__((aligned(1), may_alias));
};
// A sum so far, which GCC 12 must not make of vectors: where it unrolls short rows that are read in any order but the
// ascending one, it adds up other elements than it should (its bug 110381). At no cost, for it is an addition anyway.
template <typename T>
MLC_INLINE T mlc_in_order(T x) {
#if defined(__x86_64__)
  asm("" : "+x"(x));
#endif
  return x;
}

template <typename T, int N>
using mlc_vec = typename mlc_vector_type<T, N>::type;

// The signed integer as wide as the type.
template <int BYTES>
struct mlc_integer_type;
template <>
struct mlc_integer_type<1> {
  typedef signed char type;
};
template <>
struct mlc_integer_type<2> {
  typedef short type;
};
template <>
struct mlc_integer_type<4> {
  typedef int type;
};
template <>
struct mlc_integer_type<8> {
  typedef long type;
};
template <int BYTES>
struct mlc_unsigned_type;
template <>
struct mlc_unsigned_type<1> {
  typedef unsigned char type;
};
template <>
struct mlc_unsigned_type<2> {
  typedef unsigned short type;
};
template <>
struct mlc_unsigned_type<4> {
  typedef unsigned type;
};
template <>
struct mlc_unsigned_type<8> {
  typedef unsigned long type;
};
template <typename T, int N>
struct mlc_mask_type {
  typedef mlc_vec<typename mlc_integer_type<sizeof(T)>::type, N> type;
};
template <typename T>
struct mlc_mask_type<T, 1> {
  typedef bool type;
};
template <typename T, int N>
using mlc_mask = typename mlc_mask_type<T, N>::type;

template <typename A, typename B>
constexpr bool mlc_same = false;
template <typename A>
constexpr bool mlc_same<A, A> = true;
template <typename V>
constexpr bool mlc_is_scalar = __is_same(V, float) || __is_same(V, double) || __is_same(V, int) || __is_same(V, long) ||
    __is_same(V, short) || __is_same(V, signed char) || __is_same(V, unsigned char) || __is_same(V, bool) ||
    __is_same(V, unsigned short) || __is_same(V, unsigned) || __is_same(V, unsigned long);

template <typename T>
struct mlc_plain {
  typedef T type;
};
template <typename T>
struct mlc_plain<T&> {
  typedef T type;
};
template <typename V, bool SCALAR>
struct mlc_lane_type {
  typedef V type;
};
template <typename V>
struct mlc_lane_type<V, false> {
  typedef typename mlc_plain<decltype((*(V*)0)[0])>::type type;
};
template <typename V>
using mlc_lane = typename mlc_lane_type<V, mlc_is_scalar<V>>::type;
template <typename V>
constexpr int mlc_lanes = sizeof(V) / sizeof(mlc_lane<V>);
template <typename V>
constexpr bool mlc_is_float = mlc_same<mlc_lane<V>, float> || mlc_same<mlc_lane<V>, double>;
// Integer vector (or integer) with the lanes of V.
template <typename V>
using mlc_bits = mlc_vec<typename mlc_integer_type<sizeof(mlc_lane<V>)>::type, mlc_lanes<V>>;
// Unsigned ones, whose arithmetic wraps.
template <typename V>
using mlc_unsigned = mlc_vec<typename mlc_unsigned_type<sizeof(mlc_lane<V>)>::type, mlc_lanes<V>>;
template <typename V>
constexpr bool mlc_is_wide = sizeof(V) > MLC_VECTOR_BYTES && !mlc_is_scalar<V>;

// ---- lanes

template <int... I>
struct mlc_indices {};
template <int N>
using mlc_count = mlc_indices<__integer_pack(N)...>;

template <typename V, typename T, int... I>
MLC_INLINE V mlc_fill(T x, mlc_indices<I...>) {
  return V{((void)I, x)...};
}
template <typename T, int N>
MLC_INLINE mlc_vec<T, N> mlc_broadcast(T x) {
  return mlc_fill<mlc_vec<T, N>>(x, mlc_count<N>());
}
template <typename V, typename T, int... I>
MLC_INLINE V mlc_count_up(mlc_indices<I...>) {
  return V{T(I)...};
}
// 0, 1, 2, ...
template <typename T, int N>
MLC_INLINE mlc_vec<T, N> mlc_iota() {
  return mlc_count_up<mlc_vec<T, N>, T>(mlc_count<N>());
}
// The scalar as lane 0 of a 16-byte vector of zeros: scalar functions run the vector code, so both agree to the bit.
template <typename T>
MLC_INLINE mlc_vec<T, 16 / sizeof(T)> mlc_only(T x) {
  return mlc_vec<T, 16 / sizeof(T)>{x};
}
template <int FROM, typename V, int... I>
MLC_INLINE mlc_vec<mlc_lane<V>, sizeof...(I)> mlc_slice(V v, mlc_indices<I...>) {
  if constexpr (sizeof...(I) == 1)
    return v[FROM];
  else
    return __builtin_shufflevector(v, v, (FROM + I)...);
}
template <typename V>
MLC_INLINE auto mlc_low(V v) {
  return mlc_slice<0>(v, mlc_count<mlc_lanes<V> / 2>());
}
template <typename V>
MLC_INLINE auto mlc_high(V v) {
  return mlc_slice<mlc_lanes<V> / 2>(v, mlc_count<mlc_lanes<V> / 2>());
}
template <typename V, int... I>
MLC_INLINE auto mlc_join_lanes(V low, V high, mlc_indices<I...>) {
  return __builtin_shufflevector(low, high, I...);
}
template <typename V>
MLC_INLINE mlc_vec<mlc_lane<V>, 2 * mlc_lanes<V>> mlc_join(V low, V high) {
  if constexpr (mlc_is_scalar<V>)
    return mlc_vec<V, 2>{low, high};
  else
    return mlc_join_lanes(low, high, mlc_count<2 * mlc_lanes<V>>());
}

// ---- masks and selection

template <typename M, typename V>
MLC_INLINE V mlc_where(M mask, V a, V b) {
  if constexpr (mlc_is_wide<V>)
    return mlc_join(mlc_where(mlc_low(mask), mlc_low(a), mlc_low(b)), mlc_where(mlc_high(mask), mlc_high(a), mlc_high(b)));
  else
    return mask ? a : b;
}
// Reinterpret the bits of a vector or scalar of the same size.
template <typename W, typename V>
MLC_INLINE W mlc_bitcast(V v) {
  static_assert(sizeof(W) == sizeof(V), "a bit cast keeps the size");
  return __builtin_bit_cast(W, v);
}
// The sign bit alone, everything but the sign bit, and both put together again.
template <typename V>
MLC_INLINE V mlc_sign_bit(V x) {
  const V zero = -V{};
  return mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(x) & mlc_bitcast<mlc_bits<V>>(zero));
}
template <typename V>
MLC_INLINE V mlc_abs_bits(V x) {
  const V zero = -V{};
  return mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(x) & ~mlc_bitcast<mlc_bits<V>>(zero));
}
template <typename V>
MLC_INLINE V mlc_or_bits(V a, V b) {
  return mlc_bitcast<V>(mlc_bitcast<mlc_bits<V>>(a) | mlc_bitcast<mlc_bits<V>>(b));
}
template <typename V>
MLC_INLINE auto mlc_isnan(V x) {
  return x != x;
}
// Of NaN and zero as well.
template <typename V>
MLC_INLINE auto mlc_signbit(V x) {
  return mlc_bitcast<mlc_bits<V>>(x) < 0;
}

// ---- minimum and maximum

// a > b ? a : b and a < b ? a : b, which is what the instructions compute: of NaN and equals they take b.
#define MLC_CHOOSE(NAME, COMPARE, LETTERS)                                       \
  template <typename V>                                                          \
  MLC_INLINE V NAME(V a, V b) {                                                  \
    if constexpr (mlc_is_wide<V>)                                                \
      return mlc_join(NAME(mlc_low(a), mlc_low(b)), NAME(mlc_high(a), mlc_high(b))); \
    MLC_CHOOSE_512(LETTERS)                                                      \
    MLC_CHOOSE_256(LETTERS)                                                      \
    else                                                                         \
      return a COMPARE b ? a : b;                                                \
  }
#ifdef MLC_AVX512
#define MLC_CHOOSE_512(LETTERS)                                                  \
  else if constexpr (sizeof(V) == 64 && mlc_same<mlc_lane<V>, float>)            \
    return __builtin_ia32_##LETTERS##ps512_mask(a, b, a, -1, 4);                 \
  else if constexpr (sizeof(V) == 64 && mlc_same<mlc_lane<V>, double>)           \
    return __builtin_ia32_##LETTERS##pd512_mask(a, b, a, -1, 4);
#else
#define MLC_CHOOSE_512(LETTERS)
#endif
#ifdef __AVX__
#define MLC_CHOOSE_256(LETTERS)                                                  \
  else if constexpr (sizeof(V) == 32 && mlc_same<mlc_lane<V>, float>)            \
    return __builtin_ia32_##LETTERS##ps256(a, b);                                \
  else if constexpr (sizeof(V) == 32 && mlc_same<mlc_lane<V>, double>)           \
    return __builtin_ia32_##LETTERS##pd256(a, b);
#else
#define MLC_CHOOSE_256(LETTERS)
#endif
MLC_CHOOSE(mlc_larger, >, max)
MLC_CHOOSE(mlc_smaller, <, min)

// NaN in either operand gives NaN. That of b is looked for: a sum of many has its running value in a, and need not wait.
template <typename V>
MLC_INLINE V mlc_max(V a, V b) {
  if constexpr (mlc_is_float<V>)
    return mlc_where(b != b, b, mlc_larger(b, a));
  else
    return mlc_larger(a, b);
}
template <typename V>
MLC_INLINE V mlc_min(V a, V b) {
  if constexpr (mlc_is_float<V>)
    return mlc_where(b != b, b, mlc_smaller(b, a));
  else
    return mlc_smaller(a, b);
}
// x limited to [low, high]; NaN stays NaN.
template <typename V, typename T>
MLC_INLINE V mlc_limit(V x, T low, T high) {
  return mlc_smaller(V{} + high, mlc_larger(V{} + low, x));
}

// ---- what needs its own instruction: exact multiply-add, square root, rounding to an integer

template <typename W, typename F, typename V, int... I>
MLC_INLINE W mlc_each_lane(F f, V a, mlc_indices<I...>) {
  return W{f(a[I])...};
}
template <typename W, typename F, typename V, int... I>
MLC_INLINE W mlc_each_lane(F f, V a, V b, mlc_indices<I...>) {
  return W{f(a[I], b[I])...};
}
template <typename W, typename F, typename V, int... I>
MLC_INLINE W mlc_each_lane(F f, V a, V b, V c, mlc_indices<I...>) {
  return W{f(a[I], b[I], c[I])...};
}
// table[index], where only the low four bits of the index count.
template <typename I>
MLC_INLINE mlc_vec<float, mlc_lanes<I>> mlc_lookup(const float (&table)[16], I index) {
  constexpr int N = mlc_lanes<I>;
#ifdef MLC_AVX512
  typedef mlc_vec<float, 16> V;
  if constexpr (N == 16)
    return __builtin_ia32_permvarsf512_mask(*(const V*)table, index, V{}, -1);
  else
    return mlc_low(mlc_lookup(table, mlc_join(index, index)));
#else
#ifdef __AVX2__
  typedef mlc_vec<float, 8> V;
  if constexpr (N == 8) {
    V low = __builtin_ia32_permvarsf256(*(const V*)table, index);
    V high = __builtin_ia32_permvarsf256(*(const V*)(table + 8), index);
    return __builtin_ia32_blendvps256(low, high, mlc_bitcast<V>(index << 28));
  }
  if constexpr (N == 4) return mlc_low(mlc_lookup(table, mlc_join(index, index)));
#endif
  return mlc_each_lane<mlc_vec<float, N>>([&](int i) { return table[i & 15]; }, index, mlc_count<N>());
#endif
}

MLC_INLINE float mlc_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MLC_INLINE double mlc_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

// a * b + c rounded once. Elsewhere a * b + c may or may not be fused; use this where correctness rests on it.
template <typename V>
MLC_INLINE V mlc_fma(V a, V b, V c) {
  typedef mlc_lane<V> T;
  if constexpr (mlc_is_wide<V>)
    return mlc_join(
        mlc_fma(mlc_low(a), mlc_low(b), mlc_low(c)), mlc_fma(mlc_high(a), mlc_high(b), mlc_high(c)));
#ifdef MLC_AVX512
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 4)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 8)
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#endif
#ifdef __FMA__
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 4)
    return __builtin_ia32_vfmaddps256(a, b, c);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 8)
    return __builtin_ia32_vfmaddpd256(a, b, c);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 4)
    return __builtin_ia32_vfmaddps(a, b, c);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 8)
    return __builtin_ia32_vfmaddpd(a, b, c);
#endif
  else
    return mlc_each_lane<V>([](T x, T y, T z) { return mlc_fma(x, y, z); }, a, b, c, mlc_count<mlc_lanes<V>>());
}

MLC_INLINE float mlc_sqrt(float x) { return __builtin_sqrtf(x); }
MLC_INLINE double mlc_sqrt(double x) { return __builtin_sqrt(x); }
template <typename V>
MLC_INLINE V mlc_sqrt(V x) {
  typedef mlc_lane<V> T;
  if constexpr (mlc_is_wide<V>)
    return mlc_join(mlc_sqrt(mlc_low(x)), mlc_sqrt(mlc_high(x)));
#ifdef MLC_AVX512
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 4)
    return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 8)
    return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#endif
#ifdef __AVX__
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 4)
    return __builtin_ia32_sqrtps256(x);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 8)
    return __builtin_ia32_sqrtpd256(x);
#endif
#ifdef __SSE2__
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 4)
    return __builtin_ia32_sqrtps(x);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 8)
    return __builtin_ia32_sqrtpd(x);
#endif
  else
    return mlc_each_lane<V>([](T y) { return mlc_sqrt(y); }, x, mlc_count<mlc_lanes<V>>());
}

// Comparisons of the AVX-512 instructions (of floats: false for NaN; of integers), and the rounding modes of theirs and of SSE4.1.
enum { MLC_GREATER = 30, MLC_NOT_LESS = 5 };
enum { MLC_TO_EVEN = 8, MLC_DOWN = 9, MLC_UP = 10, MLC_TO_ZERO = 11 };
template <int MODE>
MLC_INLINE float mlc_round_lane(float x) {
  return MODE == MLC_TO_EVEN ? __builtin_rintf(x)
      : MODE == MLC_DOWN     ? __builtin_floorf(x)
      : MODE == MLC_UP       ? __builtin_ceilf(x)
                             : __builtin_truncf(x);
}
template <int MODE>
MLC_INLINE double mlc_round_lane(double x) {
  return MODE == MLC_TO_EVEN ? __builtin_rint(x)
      : MODE == MLC_DOWN     ? __builtin_floor(x)
      : MODE == MLC_UP       ? __builtin_ceil(x)
                             : __builtin_trunc(x);
}
template <int MODE, typename V>
MLC_INLINE V mlc_round_to(V x) {
  typedef mlc_lane<V> T;
  if constexpr (mlc_is_scalar<V>)
    return mlc_round_lane<MODE>(x);
  else if constexpr (mlc_is_wide<V>)
    return mlc_join(mlc_round_to<MODE>(mlc_low(x)), mlc_round_to<MODE>(mlc_high(x)));
#ifdef MLC_AVX512
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 4)
    return __builtin_ia32_rndscaleps_mask(x, MODE, x, -1, 4);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 8)
    return __builtin_ia32_rndscalepd_mask(x, MODE, x, -1, 4);
#endif
#ifdef __AVX__
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 4)
    return __builtin_ia32_roundps256(x, MODE);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 8)
    return __builtin_ia32_roundpd256(x, MODE);
#endif
#ifdef __SSE4_1__
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 4)
    return __builtin_ia32_roundps(x, MODE);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 8)
    return __builtin_ia32_roundpd(x, MODE);
#endif
  else
    return mlc_each_lane<V>([](T y) { return mlc_round_lane<MODE>(y); }, x, mlc_count<mlc_lanes<V>>());
}

#include "reduce.h"
