// pow. In float it is computed in double, exp2(y log2 |x|), and rounded once; in double it is the C library's.
#pragma once
#include "convert.h"

// log2 of a positive normal double, infinity for infinity, to 2^-37 relative to itself.
template <typename V>
MLC_INLINE V mlc_log2_double(V x) {
  typedef mlc_bits<V> I;
  I bits = mlc_bitcast<I>(x), offset = bits - 0x3fe6a09e667f3bcd + (1023l << 52);
  V e = mlc_bitcast<V>((I)((mlc_unsigned<V>)offset >> 52) | 0x4330000000000000) - (0x1p52 + 1023);
  V m = mlc_bitcast<V>(bits - ((offset & (0xfffl << 52)) - (1023l << 52)));
  V s = (m - 1) / (m + 1), w = s * s;
  V q = w * 0x1.21b6900c02fa2p-2 + 0x1.4794f66270df3p-2;
  q = q * w + 0x1.a61a30fbfa841p-2;
  q = q * w + 0x1.2776c290a7b67p-1;
  q = q * w + 0x1.ec709dc53e7f0p-1;
  q = q * w + 0x1.71547652b8250p+1;
  return q * s + e;
}
// 2^x for |x| <= 1000 to 2^-34
template <typename V>
MLC_INLINE V mlc_exp2_double(V x) {
  typedef mlc_bits<V> I;
  const V magic = V{} + 0x1.8p52;
  V t = x + magic, r = x - (t - magic);
  V q = r * 0x1.fe1774101d569p-17 + 0x1.446a1fe3572e7p-13;
  q = q * r + 0x1.5d8a709b94a4ap-10;
  q = q * r + 0x1.3b29dc4109860p-7;
  q = q * r + 0x1.c6b08aaf14d65p-5;
  q = q * r + 0x1.ebfbe0a4bd970p-3;
  q = q * r + 0x1.62e42ff11636ep-1;
  q = q * r + 0x1.ffffffffabbe1p-1;
  return q * mlc_bitcast<V>((mlc_bitcast<I>(t) + 1023) << 52);
}

template <typename V>
MLC_INLINE V mlc_pow_lanes(V x, V y) {
  const V infinity = V{} + __builtin_inff(), a = mlc_abs_bits(x);
  V result = mlc_through_double(
      [](auto b, auto p) {
        auto log = mlc_log2_double(b);
        const auto limit = decltype(log){} + __builtin_inf();
        log = b == 0 ? -limit : (b < limit ? log : b);
        // Far beyond float's range either way, yet a double exponent.
        return mlc_exp2_double(mlc_limit(log * p, -300., 300.));
      },
      a, y);
  auto whole = mlc_round_to<MLC_TO_ZERO>(y) == y;
  V half = y * 0.5f;
  auto odd = whole & (mlc_round_to<MLC_TO_ZERO>(half) != half);
  result = odd ? mlc_or_bits(result, mlc_sign_bit(x)) : result;
  result = (x < 0) & (a < infinity) & ~whole ? V{} + __builtin_nanf("") : result;
  result = (a == 1) & (mlc_abs_bits(y) == infinity) ? V{} + 1 : result;
  return (x == 1) | (y == 0) ? V{} + 1 : result;
}
MLC_BINARY_LIBRARY(mlc_pow, __builtin_pow)
