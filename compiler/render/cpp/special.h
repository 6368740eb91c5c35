// erf, erfc, lgamma.
//
// In float erf is one of sixteen polynomials, whose coefficients fit registers; in double it is x + x p(x^2) near zero,
// else 1 - exp(l(|x|)) with l a minimax polynomial of log(erfc). Both have relative accuracy everywhere. erfc in float is
// computed in double as exp(-x^2) times a polynomial in (x - 2) / (x + 2), and so is lgamma in float.
#pragma once
#include "convert.h"
#include "exponential.h"
#include "logarithm.h"

// erf(k s + d) as a polynomial in d, |d| <= s / 2, s = 65 / 256: its coefficients, lowest first, for k = 0 ... 15.
alignas(64) static constexpr float mlc_erf_pieces[6][16] = {
    {0, 0x1.1f31b2p-2f, 0x1.0dff50p-1f, 0x1.6fef76p-1f, 0x1.b2bb68p-1f, 0x1.dad53ep-1f, 0x1.f00614p-1f, 0x1.f9e15cp-1f,
     0x1.fdea6ep-1f, 0x1.ff5eb6p-1f, 0x1.ffd4cap-1f, 0x1.fff5c0p-1f, 0x1.fffddap-1f, 0x1.ffff9ap-1f, 0x1.fffff0p-1f,
     0x1.fffffep-1f},
    {0x1.20dd76p+0f, 0x1.0ed47cp+0f, 0x1.be6878p-1f, 0x1.436686p-1f, 0x1.9be438p-2f, 0x1.cd22a8p-3f, 0x1.c5d048p-4f,
     0x1.8894ecp-5f, 0x1.2a875ap-6f, 0x1.8f182cp-8f, 0x1.d4fedep-10f, 0x1.e477eap-12f, 0x1.b7e97ep-14f, 0x1.5f21c0p-16f,
     0x1.ecbac0p-19f, 0x1.2fe4b4p-21f},
    {-0x1.e21e3ap-17f, -0x1.130ea0p-2f, -0x1.c560aep-2f, -0x1.ecad74p-2f, -0x1.a253f4p-2f, -0x1.24b720p-2f,
     -0x1.59aebep-3f, -0x1.5ce144p-4f, -0x1.2f316ep-5f, -0x1.c7fc48p-7f, -0x1.29aeccp-8f, -0x1.523b92p-10f,
     -0x1.4f03f4p-12f, -0x1.21a6eap-14f, -0x1.b5a65ep-17f, -0x1.2123e2p-19f},
    {-0x1.809674p-2f, -0x1.3a9100p-2f, -0x1.204edcp-3f, 0x1.14a8f0p-5f, 0x1.23e228p-3f, 0x1.55c33cp-3f, 0x1.1372a6p-3f,
     0x1.5bf51ap-4f, 0x1.68d33ep-5f, 0x1.3a159ep-6f, 0x1.d0d41ap-8f, 0x1.26b8fcp-9f, 0x1.41f1ecp-11f, 0x1.3016dep-13f,
     0x1.f21724p-16f, 0x1.627362p-18f},
    {-0x1.bd6f1ap-8f, 0x1.05602cp-3f, 0x1.75307cp-3f, 0x1.2cf2cap-3f, 0x1.05df7cp-4f, -0x1.4ce9d6p-7f, -0x1.76efb4p-5f,
     -0x1.8067acp-5f, -0x1.096deep-5f, -0x1.1bfa3ap-6f, -0x1.eec7cep-8f, -0x1.678f68p-9f, -0x1.ba0130p-11f,
     -0x1.cf9cb2p-13f, -0x1.a165d0p-15f, -0x1.43f196p-17f},
    {0x1.1bfacap-3f, 0x1.46b784p-4f, 0x1.bf86eap-8f, -0x1.be2156p-5f, -0x1.1788c0p-4f, -0x1.6ce658p-5f, -0x1.95ce78p-7f,
     0x1.009400p-7f, 0x1.aab266p-7f, 0x1.484e46p-7f, 0x1.685e66p-8f, 0x1.36efeep-9f, 0x1.b6be5ep-11f, 0x1.027488p-12f,
     0x1.0163fap-14f, 0x1.b4ee92p-17f},
};
template <typename V>
MLC_INLINE V mlc_erf_float(V x) {
  const V magic = V{} + mlc_magic<V>;
  // From the limit on the last piece is 1. NaN stays NaN.
  V t = mlc_smaller(V{} + 3.93f, mlc_abs_bits(x));
  V place = t * 0x1.f81f82p+1f + magic;
  mlc_bits<V> k = mlc_bitcast<mlc_bits<V>>(place);
  V d = t - (place - magic) * 0x1.04p-2f;
  V p = mlc_lookup(mlc_erf_pieces[5], k) * d + mlc_lookup(mlc_erf_pieces[4], k);
  p = p * d + mlc_lookup(mlc_erf_pieces[3], k);
  p = p * d + mlc_lookup(mlc_erf_pieces[2], k);
  p = p * d + mlc_lookup(mlc_erf_pieces[1], k);
  p = p * d + mlc_lookup(mlc_erf_pieces[0], k);
  return mlc_or_bits(p, mlc_sign_bit(x));
}
template <typename V>
MLC_INLINE V mlc_erf_double(V x) {
  V z = x * x, near, far;
  // From the upper limit on erf is 1; the lower one keeps the far branch, not used there, in range. NaN stays NaN.
  V t = mlc_limit(mlc_abs_bits(x), 0.9, 6.);
  near = z * -0x1.abae3f2b28ff6p-31 + 0x1.d71b0bbe27715p-27;
  near = near * z - 0x1.5c0726720bd5cp-23;
  near = near * z + 0x1.b97fd3c481bbcp-20;
  near = near * z - 0x1.f4ca4d6d09df5p-17;
  near = near * z + 0x1.f9a2baa8d85d9p-14;
  near = near * z - 0x1.c02db03dd563ap-11;
  near = near * z + 0x1.565bccf92b22cp-8;
  near = near * z - 0x1.b82ce311fa936p-6;
  near = near * z + 0x1.ce2f21a040d16p-4;
  near = near * z - 0x1.812746b0379bdp-2;
  near = near * z + 0x1.06eba8214db68p-3;
  far = t * -0x1.5ace31ea8034fp-38 + 0x1.c1ac8c804761bp-33;
  far = far * t - 0x1.0e59c3be03bc1p-28;
  far = far * t + 0x1.8ec1cbeecb200p-25;
  far = far * t - 0x1.90d1d6804241cp-22;
  far = far * t + 0x1.1ea36c601d6acp-19;
  far = far * t - 0x1.22d0782d4e754p-17;
  far = far * t + 0x1.7ee2ef5614799p-16;
  far = far * t - 0x1.53fd679437c70p-16;
  far = far * t - 0x1.1b3a5b19acfe5p-13;
  far = far * t + 0x1.940aa53e7d032p-11;
  far = far * t - 0x1.f6412f531dd95p-10;
  far = far * t + 0x1.ae94a30704ac6p-12;
  far = far * t + 0x1.372290b4f6168p-6;
  far = far * t - 0x1.a4ac5bfed36efp-4;
  far = far * t - 0x1.45f6275b40accp-1;
  far = far * t - 0x1.20dd1fd311f7dp+0;
  far = far * t - 0x1.0dfa374b3cb35p-21;
  // far is within [-40, 0], so that 2^n needs no care.
  V n, head, p = mlc_exp_reduce<true>(far, n, head) + head;
  V scale = mlc_power_of_two<V>(mlc_integer_of(n));
  V tail = 1 - (p * scale + scale);
  return mlc_abs_bits(x) < 1.0 ? near * x + x : mlc_or_bits(tail, mlc_sign_bit(x));
}
template <typename V>
MLC_INLINE V mlc_erf_lanes(V x) {
  if constexpr (sizeof(mlc_lane<V>) == 4)
    return mlc_erf_float(x);
  else
    return mlc_erf_double(x);
}
MLC_UNARY(mlc_erf)

// erfc of doubles to the accuracy of float
template <typename V>
MLC_INLINE V mlc_erfc_double(V x) {
  V t = mlc_limit(mlc_abs_bits(x), 0., 11.);
  V inverse = 1 / ((t + 2) * (t + t + 1));
  V q = (t - 2) * (t + t + 1) * inverse, p;
  p = q * -0x1.a2d93825fd03bp-12 - 0x1.41e973fc0aad4p-10;
  p = p * q + 0x1.584675ae7a4d2p-10;
  p = p * q + 0x1.1aca7476ed332p-7;
  p = p * q - 0x1.081d5e2ecd1d2p-7;
  p = p * q - 0x1.bc09c78ef4773p-5;
  p = p * q + 0x1.4ffc4a705627ap-3;
  p = p * q - 0x1.54084d7e9b8e9p-3;
  p = p * q - 0x1.7bf6169c92eb0p-4;
  p = p * q + 0x1.46e80e57cbc50p+0;
  p = p * ((t + 2) * inverse) * mlc_exp(-(t * t));
  return x < 0 ? 2 - p : p;
}
template <typename V>
MLC_INLINE V mlc_erfc_lanes(V x) {
  return mlc_through_double([](auto y) { return mlc_erfc_double(y); }, x);
}
MLC_UNARY_LIBRARY(mlc_erfc, __builtin_erfc)

// The C library's lgamma writes a global; this one does not.
MLC_INLINE double mlc_lgamma_library(double x) {
  int sign;
  return __builtin_lgamma_r(x, &sign);
}
// log(gamma(a)) = near(a) - log(over / times) for 0 <= a < 3.5, near a polynomial of the distance to 0, 1, 2 or 3, which
// vanishes at 1 and 2 as it must: log(gamma(2 + u)) = u (u + 1) p(u).
template <typename V>
MLC_INLINE V mlc_lgamma_near(V a, V& over, V& times) {
  const V one = V{} + 1.;
  V u = a - (a < 0.5 ? V{} : a < 1.5 ? one : a < 2.5 ? one + one : V{} + 3.), p;
  over = a < 0.5 ? a * (a + 1.) : a < 1.5 ? a : one;
  times = a < 2.5 ? one : a - 1.;
  p = u * 0x1.15190f28cb281p-21 - 0x1.245388b4e0c0bp-20;
  p = p * u + 0x1.d7867f70c1588p-20;
  p = p * u - 0x1.f5dbaf57c6e4cp-19;
  p = p * u + 0x1.144d306e09055p-17;
  p = p * u - 0x1.28bea7fbc0f20p-16;
  p = p * u + 0x1.402b8bbb93778p-15;
  p = p * u - 0x1.5c8304a0e4011p-14;
  p = p * u + 0x1.7ed744b2ffe59p-13;
  p = p * u - 0x1.a96a51f0b1f54p-12;
  p = p * u + 0x1.dfebcf62f0610p-11;
  p = p * u - 0x1.145121e2c02b7p-9;
  p = p * u + 0x1.47974853c311ep-8;
  p = p * u - 0x1.95ce223ab6f0bp-7;
  p = p * u + 0x1.0e0c9df2934efp-5;
  p = p * u - 0x1.9ae6509ea1059p-4;
  p = p * u + 0x1.b0ee6072093cep-2;
  return u * (u + 1.) * p;
}
// The same for larger a by Stirling's series, which takes arguments from 8 on.
template <typename V>
MLC_INLINE V mlc_lgamma_far(V a, V& over) {
  V more = a * (a + 1.) * ((a + 2.) * (a + 3.)) * ((a + 4.) * (a + 5.));
  over = a < 8. ? more : V{} + 1.;
  V z = a < 8. ? a + 6. : a, w = 1. / z, s = w * w, p;
  p = s * 0x1.a41a41a41a41ap-8 - 0x1.f6ab0d9993c7dp-10;
  p = p * s + 0x1.b951e2b18ff23p-11;
  p = p * s - 0x1.3813813813814p-11;
  p = p * s + 0x1.a01a01a01a01ap-11;
  p = p * s - 0x1.6c16c16c16c17p-9;
  p = p * s + 0x1.5555555555555p-4;
  return (z - 0.5) * mlc_log(z) - z + 0x1.d67f1c864beb5p-1 + w * p;
}
// |sin(pi a)|
template <typename V>
MLC_INLINE V mlc_lgamma_sine(V a) {
  const V magic = V{} + mlc_magic<V>;
  V t = mlc_smaller(V{} + 0x1p40, a), f = t - ((t + magic) - magic), s = f * f, p;
  p = s * 0x1.9d462020fcc78p-21 - 0x1.6f7acdb8f6580p-16;
  p = p * s + 0x1.e8f3675ee37ddp-12;
  p = p * s - 0x1.e3074dfaf87afp-8;
  p = p * s + 0x1.5078348551854p-4;
  p = p * s - 0x1.32d2cce627c86p-1;
  p = p * s + 0x1.466bc6775aa7dp+1;
  p = p * s - 0x1.4abbce625be52p+2;
  p = p * s + 0x1.921fb54442d18p+1;
  return mlc_abs_bits(f) * p;
}
// lgamma of doubles to the accuracy of float, near its zeros too; of negative ones by reflection
template <typename V>
MLC_INLINE V mlc_lgamma_double(V x) {
  const V one = V{} + 1.;
  V a = mlc_smaller(V{} + 1e40, mlc_abs_bits(x)), over, times = one, log_of = a;  // a float of 1e40 is infinite
  auto near = a < 3.5, negative = x < 0.;
  if (mlc_all(near))
    log_of = mlc_lgamma_near(a, over, times);
  else {
    log_of = mlc_lgamma_far(a, over);
    if (mlc_any(near)) {
      V over_near, close = mlc_lgamma_near(a, over_near, times);
      log_of = near ? close : log_of;
      over = near ? over_near : over;
      times = near ? times : one;
    }
  }
  if (!mlc_any(negative)) return log_of + mlc_log(times / over);
  V up = over * 0x1.921fb54442d18p+1, down = a * mlc_lgamma_sine(a) * times;
  V rest = mlc_log((negative ? up : times) / (negative ? down : over));
  return negative ? rest - log_of : rest + log_of;
}
template <typename V>
MLC_INLINE V mlc_lgamma_lanes(V x) {
  return mlc_through_double([](auto y) { return mlc_lgamma_double(y); }, x);
}
MLC_UNARY_LIBRARY(mlc_lgamma, mlc_lgamma_library)
