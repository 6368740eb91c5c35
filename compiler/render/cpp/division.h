// Division with a defined answer for every operand: fmod (C's), remainder (sign of the divisor), floordiv, truncdiv.
//
// Integers wrap (INT_MIN / -1 is INT_MIN) and anything divided by zero, or modulo zero, is 0: the process never traps.
#pragma once
#include "convert.h"

MLC_SLOW void mlc_fmod_slow(float* x, const float* y, int n) {
  for (int i = 0; i < n; i++) x[i] = __builtin_fmodf(x[i], y[i]);
}
MLC_SLOW void mlc_fmod_slow(double* x, const double* y, int n) {
  for (int i = 0; i < n; i++) x[i] = __builtin_fmod(x[i], y[i]);
}
// The remainder of truncating division, exact, with the sign of x.
template <typename V>
MLC_INLINE V mlc_fmod_float(V x, V y) {
  typedef mlc_lane<V> T;
  const T exact = sizeof(T) == 4 ? T(0x1p23) : T(0x1p52), infinity = __builtin_inff();
  // Below that quotient, x - q y is representable for the true q and for q + 1, to which rounding may take it.
  V q = mlc_round_to<MLC_TO_ZERO>(x / y), b = mlc_abs_bits(y);
  if (__builtin_expect(!mlc_all((mlc_abs_bits(q) < exact) & (b < infinity)), 0)) {
    V result = x, divisor = y;  // copies, so that the usual way needs no memory
    mlc_fmod_slow((T*)&result, (const T*)&divisor, mlc_lanes<V>);
    return result;
  }
  V sign = mlc_sign_bit(x), r = mlc_fma(mlc_abs_bits(q), -b, mlc_abs_bits(x));
  return mlc_or_bits(r < 0 ? r + b : mlc_abs_bits(r), sign);
}

// The remainder of flooring division, with the sign of y (Python's and PyTorch's %).
template <typename V>
MLC_INLINE V mlc_remainder_float(V x, V y) {
  V r = mlc_fmod_float(x, y);
  return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}

// floor(x / y) consistent with mlc_remainder: x is close to y * floordiv + remainder even where x / y rounds up.
template <typename T>
MLC_SLOW void mlc_floordiv_slow(T* x, const T* y, int n) {
  for (int i = 0; i < n; i++) {
    T r = x[i], quotient = x[i] / y[i];
    mlc_fmod_slow(&r, y + i, 1);
    T d = (x[i] - r) / y[i];
    if (r != 0 && (r < 0) != (y[i] < 0)) d--;
    T f = mlc_round_to<MLC_DOWN>(d);
    if (d - f > T(0.5)) f++;
    x[i] = y[i] == 0 ? quotient : d != 0 ? f : mlc_sign_bit(quotient);
  }
}
template <typename V>
MLC_INLINE V mlc_floordiv_float(V x, V y) {
  typedef mlc_lane<V> T;
  const T exact = sizeof(T) == 4 ? T(0x1p21) : T(0x1p50), infinity = __builtin_inff();
  // From that quotient on, what PyTorch computes by rounding more often may be off by one.
  V quotient = x / y, q = mlc_abs_bits(mlc_round_to<MLC_TO_ZERO>(quotient)), b = mlc_abs_bits(y);
  if (__builtin_expect(!mlc_all((q < exact) & (b < infinity)), 0)) {
    V result = x, divisor = y;  // copies, so that the usual way needs no memory
    mlc_floordiv_slow((T*)&result, (const T*)&divisor, mlc_lanes<V>);
    return result;
  }
  // Below zero q is one too large; where signs differ, what remains takes it one further from zero.
  V r = mlc_fma(q, -b, mlc_abs_bits(x));
  q = r < 0 ? q - 1 : q;
  q = (r != 0) & ((x < 0) != (y < 0)) ? q + 1 : q;
  return mlc_or_bits(q, mlc_sign_bit(quotient));
}

// ---- integers

// One lane, of magnitudes: none traps, and g++ does not know of signed quotients what is wrong of the least integer.
template <typename T>
MLC_INLINE T mlc_divide_lane(T x, T y) {
  typedef mlc_unsigned<T> U;
  const U a = x < 0 ? 0 - (U)x : (U)x, b = y < 0 ? 0 - (U)y : (U)y, quotient = a / (b == 0 ? 1 : b);
  return y == 0 ? T(0) : (T)((x < 0) != (y < 0) ? 0 - quotient : quotient);
}
// A loop of its own: written out for each lane wherever an index is divided, a kernel took a minute to compile.
template <typename T>
static __attribute__((noinline)) void mlc_divide_each(T* x, const T* y, int n) {
  for (int i = 0; i < n; i++) x[i] = mlc_divide_lane(x[i], y[i]);
}
// The truncated quotient. Up to 32 bits the correctly rounded floating-point quotient, truncated, is exact:
// for integers of half as many bits as the mantissa the error is less than the distance to the next integer.
template <typename V>
MLC_INLINE V mlc_truncdiv_integer(V x, V y) {
  typedef mlc_lane<V> T;
  if constexpr (sizeof(T) == 8 && mlc_lanes<V> == 1)
    return V{mlc_divide_lane(x[0], y[0])};
  else if constexpr (sizeof(T) == 8) {
    V quotients = x, divisors = y;
    mlc_divide_each((T*)&quotients, (const T*)&divisors, mlc_lanes<V>);
    return quotients;
  } else if constexpr (sizeof(T) == 4) {
    if constexpr (2 * sizeof(V) > MLC_VECTOR_BYTES && mlc_lanes<V> > 2)
      return mlc_join(mlc_truncdiv_integer(mlc_low(x), mlc_low(y)), mlc_truncdiv_integer(mlc_high(x), mlc_high(y)));
    else
      return y != 0 ? mlc_truncate<T>(mlc_cast<double>(x) / mlc_cast<double>(y)) : V{};
  } else {
    if constexpr (4 / sizeof(T) * sizeof(V) > MLC_VECTOR_BYTES)
      return mlc_join(mlc_truncdiv_integer(mlc_low(x), mlc_low(y)), mlc_truncdiv_integer(mlc_high(x), mlc_high(y)));
    else
      return y != 0 ? mlc_cast<T>(mlc_truncate<int>(mlc_cast<float>(x) / mlc_cast<float>(y))) : V{};
  }
}
template <typename V>
MLC_INLINE V mlc_fmod_integer(V x, V y) {
  typedef mlc_unsigned<V> U;
  V r = (V)((U)x - (U)mlc_truncdiv_integer(x, y) * (U)y);
  return y != 0 ? r : V{};
}
template <typename V>
MLC_INLINE V mlc_remainder_integer(V x, V y) {
  V r = mlc_fmod_integer(x, y);
  return (r != 0) & ((r < 0) != (y < 0)) ? r + y : r;
}
template <typename V>
MLC_INLINE V mlc_floordiv_integer(V x, V y) {
  typedef mlc_unsigned<V> U;
  V q = mlc_truncdiv_integer(x, y), r = (V)((U)x - (U)q * (U)y);
  return (r != 0) & (y != 0) & ((r < 0) != (y < 0)) ? q - 1 : q;
}

// The greatest common divisor of the magnitudes, by Euclid.
template <typename T>
MLC_INLINE T mlc_gcd_lane(T x, T y) {
  typedef mlc_unsigned<T> U;
  U a = x < 0 ? (U)0 - (U)x : (U)x, b = y < 0 ? (U)0 - (U)y : (U)y;
  while (a != 0) {
    const U rest = b % a;
    b = a;
    a = rest;
  }
  return (T)b;
}
template <typename V>
MLC_INLINE V mlc_gcd_lanes(V x, V y) {
  typedef mlc_lane<V> T;
  return mlc_each_lane<V>([](T a, T b) { return mlc_gcd_lane(a, b); }, x, y, mlc_count<mlc_lanes<V>>());
}
MLC_BINARY(mlc_gcd)

// ---- both

template <typename V>
MLC_INLINE V mlc_truncdiv_float(V x, V y) {
  return mlc_round_to<MLC_TO_ZERO>(x / y);
}
#define MLC_DIVISION(NAME)                   \
  template <typename V>                      \
  MLC_INLINE V NAME##_lanes(V x, V y) {      \
    if constexpr (mlc_is_float<V>)           \
      return NAME##_float(x, y);             \
    else                                     \
      return NAME##_integer(x, y);           \
  }                                          \
  MLC_BINARY(NAME)
MLC_DIVISION(mlc_truncdiv)
MLC_DIVISION(mlc_floordiv)
MLC_DIVISION(mlc_fmod)
MLC_DIVISION(mlc_remainder)
