// erf, erfc, lgamma.
//
// erf(x) = x + x p(x^2) near zero, else 1 - exp(l(|x|)) with l a minimax polynomial of log(erfc): relative accuracy
// everywhere. erfc in float is computed in double as exp(-x^2) times a polynomial in (x - 2) / (x + 2).
#pragma once
#include "convert.h"
#include "exponential.h"

template <typename V>
MLC_INLINE V mlc_erf_lanes(V x) {
  typedef mlc_lane<V> T;
  V z = x * x, near, far;
  // From the upper limit on erf is 1; the lower one keeps the far branch, not used there, in range. NaN stays NaN.
  V t = mlc_limit(mlc_abs_bits(x), T(0.9), T(sizeof(T) == 4 ? 4 : 6));
  if constexpr (sizeof(T) == 4) {
    near = z * -0x1.3a48e2p-11f + 0x1.474a0ep-8f;
    near = near * z - 0x1.b68e66p-6f;
    near = near * z + 0x1.ce1ab4p-4f;
    near = near * z - 0x1.8126e8p-2f;
    near = near * z + 0x1.06eba6p-3f;
    far = t * 0x1.9a75f2p-13f - 0x1.8e9a8ap-9f;
    far = far * t + 0x1.6c070cp-6f;
    far = far * t - 0x1.a9a1c8p-4f;
    far = far * t - 0x1.463f60p-1f;
    far = far * t - 0x1.20ae92p+0f;
    far = far * t - 0x1.a0661ep-13f;
  } else {
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
  }
  // far is within [-40, 0], so that 2^n needs no care.
  V n, head, p = mlc_exp_reduce<true>(far, n, head) + head;
  V scale = mlc_power_of_two<V>(mlc_integer_of(n));
  V tail = 1 - (p * scale + scale);
  return mlc_abs_bits(x) < T(sizeof(T) == 4 ? 0.921875 : 1.0) ? near * x + x : mlc_or_bits(tail, mlc_sign_bit(x));
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
template <typename V>
MLC_INLINE V mlc_lgamma_lanes(V x) {
  return mlc_each_lane<V>([](float y) { return (float)mlc_lgamma_library(y); }, x, mlc_count<mlc_lanes<V>>());
}
MLC_UNARY_LIBRARY(mlc_lgamma, mlc_lgamma_library)
