// Lane by lane conversion between number types, as C converts one number: mlc_cast.
//
// The compiler widens and narrows vectors piece by piece; where one instruction does it, it is named here.
#pragma once
#include "vector.h"

// The types that instructions take by name.
template <int BYTES>
struct mlc_builtin_type {
  typedef char type;
};
template <>
struct mlc_builtin_type<2> {
  typedef short type;
};
template <>
struct mlc_builtin_type<4> {
  typedef int type;
};
template <>
struct mlc_builtin_type<8> {
  typedef long long type;
};
template <int BYTES, int N>
using mlc_builtin_vec = mlc_vec<typename mlc_builtin_type<BYTES>::type, N>;

// The bits of v as lanes of BYTES bytes, in a register of at least 16.
template <int BYTES, typename V>
MLC_INLINE auto mlc_in_register(V v) {
  if constexpr (sizeof(V) >= 16)
    return mlc_bitcast<mlc_builtin_vec<BYTES, sizeof(V) / BYTES>>(v);
  else
    return mlc_bitcast<mlc_builtin_vec<BYTES, 16 / BYTES>>(
        mlc_only(mlc_bitcast<typename mlc_integer_type<sizeof(V)>::type>(v)));
}
// The first bytes of a register.
template <typename W, typename V>
MLC_INLINE W mlc_from_register(V v) {
  if constexpr (sizeof(V) == sizeof(W))
    return mlc_bitcast<W>(v);
  else
    return mlc_bitcast<W>(mlc_bitcast<mlc_vec<typename mlc_integer_type<sizeof(W)>::type, 16 / sizeof(W)>>(v)[0]);
}

#define MLC_RESIZES(FROM, TO, LANES) (sizeof(S) == FROM && sizeof(T) == TO && N == LANES)
#define MLC_EXTEND_256(LETTERS, FROM, TO)                                        \
  if constexpr (MLC_RESIZES(FROM, TO, 32 / TO)) {                                \
    auto bits = mlc_in_register<FROM>(v);                                        \
    if constexpr (S(-1) < S(0))                                                  \
      return mlc_bitcast<W>(__builtin_ia32_pmovsx##LETTERS##256(bits));          \
    else                                                                         \
      return mlc_bitcast<W>(__builtin_ia32_pmovzx##LETTERS##256(bits));          \
  }
#define MLC_EXTEND_512(LETTERS, FROM, TO)                                                                    \
  if constexpr (MLC_RESIZES(FROM, TO, 64 / TO)) {                                                            \
    auto bits = mlc_in_register<FROM>(v);                                                                    \
    if constexpr (S(-1) < S(0))                                                                              \
      return mlc_bitcast<W>(__builtin_ia32_pmovsx##LETTERS##512_mask(bits, mlc_builtin_vec<TO, N>{}, -1));   \
    else                                                                                                     \
      return mlc_bitcast<W>(__builtin_ia32_pmovzx##LETTERS##512_mask(bits, mlc_builtin_vec<TO, N>{}, -1));   \
  }
#define MLC_NARROW(LETTERS, FROM, TO, WIDTH)                                                                 \
  if constexpr (MLC_RESIZES(FROM, TO, WIDTH / 8 / FROM)) {                                                   \
    typedef mlc_builtin_vec<TO, (N * TO < 16 ? 16 / TO : N)> R;                                              \
    return mlc_from_register<W>(__builtin_ia32_pmov##LETTERS##WIDTH##_mask(mlc_in_register<FROM>(v), R{}, -1)); \
  }

// Integers of machine vectors to integers of another size.
template <typename T, typename V>
MLC_INLINE mlc_vec<T, mlc_lanes<V>> mlc_resize(V v) {
  using S [[maybe_unused]] = mlc_lane<V>;
  constexpr int N = mlc_lanes<V>;
  typedef mlc_vec<T, N> W;
#ifdef MLC_AVX512
  MLC_EXTEND_512(bw, 1, 2)
  MLC_EXTEND_512(bd, 1, 4)
  MLC_EXTEND_512(bq, 1, 8)
  MLC_EXTEND_512(wd, 2, 4)
  MLC_EXTEND_512(wq, 2, 8)
  MLC_EXTEND_512(dq, 4, 8)
  MLC_NARROW(wb, 2, 1, 512)
  MLC_NARROW(db, 4, 1, 512)
  MLC_NARROW(qb, 8, 1, 512)
  MLC_NARROW(dw, 4, 2, 512)
  MLC_NARROW(qw, 8, 2, 512)
  MLC_NARROW(qd, 8, 4, 512)
  MLC_NARROW(wb, 2, 1, 256)
  MLC_NARROW(db, 4, 1, 256)
  MLC_NARROW(qb, 8, 1, 256)
  MLC_NARROW(dw, 4, 2, 256)
  MLC_NARROW(qw, 8, 2, 256)
  MLC_NARROW(qd, 8, 4, 256)
#endif
#ifdef __AVX2__
  MLC_EXTEND_256(bw, 1, 2)
  MLC_EXTEND_256(bd, 1, 4)
  MLC_EXTEND_256(bq, 1, 8)
  MLC_EXTEND_256(wd, 2, 4)
  MLC_EXTEND_256(wq, 2, 8)
  MLC_EXTEND_256(dq, 4, 8)
#endif
  return __builtin_convertvector(v, W);
}

template <typename T, typename V>
MLC_INLINE mlc_vec<T, mlc_lanes<V>> mlc_cast(V v) {
  typedef mlc_lane<V> S;
  constexpr int N = mlc_lanes<V>, LARGER = sizeof(S) > sizeof(T) ? sizeof(S) : sizeof(T);
  typedef mlc_vec<T, N> W;
  if constexpr (mlc_same<S, T>)
    return v;
  else if constexpr (mlc_is_scalar<V>)
    return (T)v;
  else if constexpr (N * LARGER > MLC_VECTOR_BYTES && N > 2)
    return mlc_join(mlc_cast<T>(mlc_low(v)), mlc_cast<T>(mlc_high(v)));
  else if constexpr (sizeof(S) == sizeof(T) || N == 2)
    return __builtin_convertvector(v, W);
  else if constexpr (!mlc_is_float<V> && !mlc_is_float<W>)
    return mlc_resize<T>(v);
  else if constexpr (sizeof(S) < 4)
    return mlc_cast<T>(mlc_cast<int>(v));
#ifdef MLC_AVX512
  else if constexpr (mlc_same<S, float> && mlc_same<T, double> && N == 8)
    return __builtin_ia32_cvtps2pd512_mask(v, W{}, -1, 4);
  else if constexpr (mlc_same<S, int> && mlc_same<T, double> && N == 8)
    return __builtin_ia32_cvtdq2pd512_mask(v, W{}, -1);
#endif
  else
    return __builtin_convertvector(v, W);
}
