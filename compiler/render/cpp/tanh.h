// tanh.
//
// In general (e - 1) / (e + 1) with e = exp(2 |x|). Where an instruction looks up sixteen floats in a table of 32, they are
// coefficients of a polynomial instead, which saves the division: it is what takes longest.
#pragma once
#include "exponential.h"

#ifdef MLC_AVX512
// tanh(y) / y = the sum of MLC_TANH[k][n] (y - 0.29 n)^k within 0.29 / 2 of the n-th point: least relative error at
// Chebyshev's points, then rounded to float. The first is that of an even function, and exact at zero.
alignas(64) static const float MLC_TANH[6][32] = {
    {0x1p+0f, 0x1.f21d26p-1f, 0x1.cd632ep-1f, 0x1.9cc342p-1f, 0x1.6a63d8p-1f, 0x1.3c45b2p-1f, 0x1.14aa16p-1f,
    0x1.e7539ep-2f, 0x1.b0ef7ap-2f, 0x1.841df4p-2f, 0x1.5ef8cap-2f, 0x1.3feaaep-2f, 0x1.25b1e2p-2f, 0x1.0f545cp-2f,
    0x1.f82228p-3f, 0x1.d6a5d4p-3f, 0x1.b94c08p-3f, 0x1.9f5f58p-3f, 0x1.885072p-3f, 0x1.73acfap-3f, 0x1.6118d4p-3f,
    0x1.50491ap-3f, 0x1.410056p-3f, 0x1.330ba6p-3f, 0x1.26409ap-3f, 0x1.1a7b84p-3f, 0x1.0f9e2ep-3f, 0x1.058edcp-3f,
    0x1.f86ef4p-4f, 0x1.e70a0ap-4f, 0x1.d6cdfap-4f, 0x1.c79e0ap-4f},
    {0, -0x1.729bb6p-3f, -0x1.33c6bcp-2f, -0x1.5eded6p-2f, -0x1.512004p-2f, -0x1.2898a6p-2f, -0x1.f381eep-3f,
    -0x1.9cdb84p-3f, -0x1.53c49p-3f, -0x1.189e26p-3f, -0x1.d318fap-4f, -0x1.887902p-4f, -0x1.4d1ed2p-4f,
    -0x1.1d936ap-4f, -0x1.ee4886p-5f, -0x1.af866ep-5f, -0x1.7bc518p-5f, -0x1.50ab4cp-5f, -0x1.2c70bep-5f,
    -0x1.0db8bep-5f, -0x1.e6ed4p-6f, -0x1.b9b3p-6f, -0x1.927adep-6f, -0x1.704132p-6f, -0x1.52366ep-6f,
    -0x1.37b344p-6f, -0x1.202fb2p-6f, -0x1.0b3c4ap-6f, -0x1.f0fa32p-7f, -0x1.cf4b68p-7f, -0x1.b0ec6p-7f,
    -0x1.957188p-7f},
    {-0x1.5551d4p-2f, -0x1.15f1cep-2f, -0x1.181998p-3f, -0x1.02246ap-6f, 0x1.b36298p-5f, 0x1.3de592p-4f,
    0x1.3d7682p-4f, 0x1.14c92ep-4f, 0x1.c68efap-5f, 0x1.6ba106p-5f, 0x1.2056bp-5f, 0x1.c98a02p-6f, 0x1.6d175p-6f,
    0x1.25c7bap-6f, 0x1.dd627p-7f, 0x1.87c9d8p-7f, 0x1.44c104p-7f, 0x1.0fc576p-7f, 0x1.cafa0ep-8f, 0x1.86d4dep-8f,
    0x1.4f65b2p-8f, 0x1.21e4bcp-8f, 0x1.f870dep-9f, 0x1.b98eeap-9f, 0x1.84aea8p-9f, 0x1.57e89cp-9f, 0x1.31bf9p-9f,
    0x1.1106e6p-9f, 0x1.e99f14p-10f, 0x1.b8b3bcp-10f, 0x1.8e164cp-10f, 0x1.68cb14p-10f},
    {0, 0x1.0b9d08p-3f, 0x1.488402p-3f, 0x1.c58514p-4f, 0x1.98f5e6p-5f, 0x1.55902ep-7f, -0x1.00d836p-7f,
    -0x1.bd050ep-7f, -0x1.bf2d76p-7f, -0x1.7ff11p-7f, -0x1.34abccp-7f, -0x1.e21a58p-8f, -0x1.7457dcp-8f,
    -0x1.1f2ca2p-8f, -0x1.bcc6ccp-9f, -0x1.5ae5ep-9f, -0x1.10f08ep-9f, -0x1.b19b4ap-10f, -0x1.5bcaacp-10f,
    -0x1.19a60ap-10f, -0x1.cc685ap-11f, -0x1.7ba266p-11f, -0x1.3ba25ep-11f, -0x1.087722p-11f, -0x1.be663cp-12f,
    -0x1.7b4a78p-12f, -0x1.444bf4p-12f, -0x1.16e5f6p-12f, -0x1.e2531ep-13f, -0x1.a32f2cp-13f, -0x1.6e0a0ep-13f,
    -0x1.410d5ep-13f},
    {0x1.0d997ep-3f, 0x1.31a066p-4f, -0x1.26ed8ep-6f, -0x1.c32f12p-5f, -0x1.6dcc36p-5f, -0x1.86af34p-6f,
    -0x1.2dcfa8p-7f, -0x1.dea41ep-10f, 0x1.268034p-10f, 0x1.ff0a6ap-10f, 0x1.f73602p-10f, 0x1.a7b232p-10f,
    0x1.4e40cep-10f, 0x1.000cfcp-10f, 0x1.83977p-11f, 0x1.24964ap-11f, 0x1.bafae4p-12f, 0x1.515a24p-12f,
    0x1.02ed9ap-12f, 0x1.90fc3ep-13f, 0x1.395ee6p-13f, 0x1.ee60eap-14f, 0x1.898d2cp-14f, 0x1.3c114ep-14f,
    0x1.fffb24p-15f, 0x1.a1ff38p-15f, 0x1.57d9fcp-15f, 0x1.1cdf9ep-15f, 0x1.db2dfcp-16f, 0x1.8ecb5ap-16f,
    0x1.50a82cp-16f, 0x1.1dc53p-16f},
    {0, -0x1.12d7eap-4f, -0x1.90920ap-5f, -0x1.1beb28p-8f, 0x1.cee1e2p-7f, 0x1.a6106ap-7f, 0x1.de5a06p-8f,
    0x1.a63d8ap-9f, 0x1.1f5f56p-10f, 0x1.6fc61cp-13f, -0x1.48ccaep-13f, -0x1.f26cccp-13f, -0x1.d78ca8p-13f,
    -0x1.83c508p-13f, -0x1.2c5694p-13f, -0x1.c47ea8p-14f, -0x1.50d34p-14f, -0x1.f3dba2p-15f, -0x1.73a2f8p-15f,
    -0x1.15b85p-15f, -0x1.a1fcdep-16f, -0x1.3d1b3ap-16f, -0x1.e5554ep-17f, -0x1.76b77ep-17f, -0x1.23e2f6p-17f,
    -0x1.cab1aap-18f, -0x1.6b735cp-18f, -0x1.224ef6p-18f, -0x1.d3564p-19f, -0x1.7ae6a8p-19f, -0x1.3551a6p-19f,
    -0x1.fc51d8p-20f}};
// Column n of a row of the table, by the low bits of `n`.
MLC_INLINE mlc_vec<float, 16> mlc_look_up(const float* row, mlc_vec<int, 16> n) {
  typedef mlc_vec<float, 16> V;
  return __builtin_ia32_vpermi2varps512_mask(*(const V*)row, n, *(const V*)(row + 16), -1);
}
MLC_INLINE mlc_vec<float, 16> mlc_tanh_by_table(mlc_vec<float, 16> x) {
  typedef mlc_vec<float, 16> V;
  constexpr float STEP = 0.29f, END = 9.02f;  // tanh rounds to 1 from there
  V y = mlc_smaller(V{} + END, mlc_abs_bits(x));
  const V magic = V{} + mlc_magic<V>, shifted = y * (1 / STEP) + magic;
  const mlc_vec<int, 16> n = mlc_bitcast<mlc_vec<int, 16>>(shifted);
  V r = mlc_fma(shifted - magic, V{} - STEP, y), q = mlc_look_up(MLC_TANH[5], n);
#pragma GCC unroll 8
  for (int k = 4; k >= 0; k--) q = q * r + mlc_look_up(MLC_TANH[k], n);
  return mlc_or_bits(mlc_smaller(V{} + 1, q * y), mlc_sign_bit(x));
}
// Fewer lanes, or one, give the same numbers.
template <typename V>
MLC_INLINE V mlc_tanh_of_few(V x) {
  mlc_vec<float, 16> wide = {};
  if constexpr (mlc_is_scalar<V>) {
    wide[0] = x;
    return mlc_tanh_by_table(wide)[0];
  } else {
    for (int i = 0; i < mlc_lanes<V>; i++) wide[i] = x[i];
    wide = mlc_tanh_by_table(wide);
    for (int i = 0; i < mlc_lanes<V>; i++) x[i] = wide[i];
    return x;
  }
}
#endif

template <typename V>
MLC_INLINE V mlc_tanh_lanes(V x) {
  typedef mlc_lane<V> T;
#ifdef MLC_AVX512
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) return mlc_tanh_by_table(x);
  if constexpr (sizeof(V) < 64 && sizeof(T) == 4) return mlc_tanh_of_few(x);
#endif
  V y = mlc_abs_bits(x);
  y = mlc_limit(y + y, T(0), T(sizeof(T) == 4 ? 20 : 40));
  // tanh(|x|) = t / (t + 2), t = expm1(2 |x|): accurate near zero as well
  V n, head, tail = mlc_exp_reduce<false>(y, n, head);
  V scale = mlc_power_of_two<V>(mlc_integer_of(n));
  V t = tail * scale + (head * scale + (scale - 1));
  return mlc_or_bits(t / (t + 2), mlc_sign_bit(x));
}
MLC_UNARY(mlc_tanh)
