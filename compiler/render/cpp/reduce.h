// Reductions over the lanes, always by halves, so that the order of additions is a property of N alone.
// Part of vector.h, which includes it.
#pragma once
#define MLC_REDUCTION(NAME, COMBINE)                       \
  template <typename V>                                    \
  MLC_INLINE mlc_lane<V> NAME(V v) {                       \
    if constexpr (mlc_is_scalar<V>)                        \
      return v;                                            \
    else {                                                 \
      auto a = mlc_low(v), b = mlc_high(v);                \
      return NAME((decltype(a))(COMBINE));                 \
    }                                                      \
  }
MLC_REDUCTION(mlc_reduce_add, a + b)
MLC_REDUCTION(mlc_reduce_mul, a* b)
MLC_REDUCTION(mlc_reduce_max, mlc_max(a, b))
MLC_REDUCTION(mlc_reduce_min, mlc_min(a, b))
MLC_REDUCTION(mlc_reduce_and, a& b)
MLC_REDUCTION(mlc_reduce_or, a | b)
// Whether any lane, or every lane, of a mask is set.
template <typename M>
MLC_INLINE bool mlc_any(M mask) {
  if constexpr (mlc_is_scalar<M>) return mask;
  if constexpr (mlc_is_wide<M>) return mlc_any(mlc_low(mask) | mlc_high(mask));
#ifdef MLC_AVX512
  if constexpr (sizeof(M) == 64) return __builtin_ia32_cvtb2mask512(mlc_bitcast<mlc_vec<char, 64>>(mask)) != 0;
#endif
#ifdef __AVX2__
  if constexpr (sizeof(M) == 32) return __builtin_ia32_pmovmskb256(mlc_bitcast<mlc_vec<char, 32>>(mask)) != 0;
#endif
#ifdef __SSE2__
  if constexpr (sizeof(M) == 16) return __builtin_ia32_pmovmskb128(mlc_bitcast<mlc_vec<char, 16>>(mask)) != 0;
#endif
  return mlc_reduce_or(mask) != 0;
}
template <typename M>
MLC_INLINE bool mlc_all(M mask) {
  if constexpr (mlc_is_scalar<M>)
    return mask;
  else
    return !mlc_any(~mask);
}
// Whether any lane is larger than the limit, whatever its sign; NaN is not.
template <typename V, typename T>
MLC_INLINE bool mlc_any_beyond(V x, T limit) {
#ifdef MLC_AVX512
  if constexpr (sizeof(V) == 64 && mlc_same<T, float>)
    return __builtin_ia32_cmpps512_mask(mlc_abs_bits(x), V{} + limit, MLC_GREATER, -1, 4) != 0;
#endif
  return mlc_any(mlc_abs_bits(x) > limit);
}

// How every function below is overloaded: NAME_lanes computes one machine vector; scalars use lane 0, wide vectors halves.
#define MLC_UNARY(NAME)                                            \
  template <typename V>                                            \
  MLC_INLINE V NAME(V x) {                                         \
    if constexpr (mlc_is_scalar<V>)                                \
      return NAME##_lanes(mlc_only(x))[0];                         \
    else if constexpr (mlc_is_wide<V>)                             \
      return mlc_join(NAME(mlc_low(x)), NAME(mlc_high(x)));        \
    else                                                           \
      return NAME##_lanes(x);                                      \
  }
// Functions whose double version is the C library's, called lane by lane.
#define MLC_UNARY_LIBRARY(NAME, LIBRARY)                                                                          \
  template <typename V>                                                                                           \
  MLC_INLINE V NAME(V x) {                                                                                        \
    if constexpr (mlc_same<V, double>)                                                                            \
      return LIBRARY(x);                                                                                          \
    else if constexpr (mlc_same<mlc_lane<V>, double>)                                                             \
      return mlc_each_lane<V>([](double y) { return LIBRARY(y); }, x, mlc_count<mlc_lanes<V>>()); \
    else if constexpr (mlc_is_scalar<V>)                                                                          \
      return NAME##_lanes(mlc_only(x))[0];                                                                        \
    else if constexpr (mlc_is_wide<V>)                                                                            \
      return mlc_join(NAME(mlc_low(x)), NAME(mlc_high(x)));                                                       \
    else                                                                                                          \
      return NAME##_lanes(x);                                                                                     \
  }
#define MLC_BINARY(NAME)                                                                      \
  template <typename V>                                                                       \
  MLC_INLINE V NAME(V x, V y) {                                                               \
    if constexpr (mlc_is_scalar<V>)                                                           \
      return NAME##_lanes(mlc_only(x), mlc_only(y))[0];                                       \
    else if constexpr (mlc_is_wide<V>)                                                        \
      return mlc_join(NAME(mlc_low(x), mlc_low(y)), NAME(mlc_high(x), mlc_high(y)));          \
    else                                                                                      \
      return NAME##_lanes(x, y);                                                              \
  }
#define MLC_BINARY_LIBRARY(NAME, LIBRARY)                                                                         \
  template <typename V>                                                                                           \
  MLC_INLINE V NAME(V x, V y) {                                                                                   \
    if constexpr (mlc_same<V, double>)                                                                            \
      return LIBRARY(x, y);                                                                                       \
    else if constexpr (mlc_same<mlc_lane<V>, double>)                                                             \
      return mlc_each_lane<V>([](double a, double b) { return LIBRARY(a, b); }, x, y, mlc_count<mlc_lanes<V>>());    \
    else if constexpr (mlc_is_scalar<V>)                                                                          \
      return NAME##_lanes(mlc_only(x), mlc_only(y))[0];                                                           \
    else if constexpr (mlc_is_wide<V>)                                                                            \
      return mlc_join(NAME(mlc_low(x), mlc_low(y)), NAME(mlc_high(x), mlc_high(y)));                              \
    else                                                                                                          \
      return NAME##_lanes(x, y);                                                                                  \
  }
