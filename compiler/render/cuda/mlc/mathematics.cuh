// The mathematical functions by one name for float and double. How exact they are on a GPU, the CUDA C++ Programming
// Guide's tables of maximum errors say (ir/functions.py holds those figures).
#pragma once
#include "prelude.cuh"

#define MLC_MATH_1(NAME)                                                \
    MLC_DEVICE float mlc_##NAME(float x) { return NAME##f(x); }         \
    MLC_DEVICE double mlc_##NAME(double x) { return NAME(x); }
#define MLC_MATH_2(NAME)                                                \
    MLC_DEVICE float mlc_##NAME(float x, float y) { return NAME##f(x, y); } \
    MLC_DEVICE double mlc_##NAME(double x, double y) { return NAME(x, y); }
MLC_MATH_1(sqrt)
MLC_MATH_1(floor)
MLC_MATH_1(ceil)
MLC_MATH_1(trunc)
MLC_MATH_1(exp)
MLC_MATH_1(exp2)
MLC_MATH_1(expm1)
MLC_MATH_1(sinh)
MLC_MATH_1(cosh)
MLC_MATH_1(tanh)
MLC_MATH_1(log)
MLC_MATH_1(log2)
MLC_MATH_1(log10)
MLC_MATH_1(log1p)
MLC_MATH_1(asinh)
MLC_MATH_1(acosh)
MLC_MATH_1(atanh)
MLC_MATH_1(erfc)
MLC_MATH_1(sin)
MLC_MATH_1(cos)
MLC_MATH_1(tan)
MLC_MATH_1(asin)
MLC_MATH_1(acos)
MLC_MATH_1(atan)
MLC_MATH_2(pow)
MLC_MATH_2(atan2)
#undef MLC_MATH_1
#undef MLC_MATH_2

// 2^x to 2^-22.5 of it; below the normal range 0.
MLC_DEVICE float mlc_exp2_approximate(float x) {
#ifdef __CUDACC__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return mlc::emu::approximate(exp2f(mlc::emu::flushed(x)));
#endif
}
// To 2 ulp, as CUDA's own, which selects each coefficient of a polynomial, at half the rate of other arithmetic: here
// are both, of erf near 0 and of log2(1 - erf) beyond. (erff of N. Juffa, with powers of 2.)
MLC_DEVICE float mlc_erf(float x) {
    const float t = fabsf(x), s = x * x;
    float exponent = fmaf(-2.49374843e-05f, t, 5.52836573e-04f);
    exponent = fmaf(exponent, s, fmaf(-5.60337631e-03f, t, 3.49920243e-02f));
    exponent = fmaf(exponent, t, -0.154047906f);
    exponent = fmaf(exponent, t, -0.915890157f);
    exponent = fmaf(exponent, t, -1.6283952f) * t;
    const float far = copysignf(1.0f - mlc_exp2_approximate(exponent), x);
    float near = fmaf(-5.96761703e-04f, s, 4.99119423e-03f);
    near = fmaf(near, s, -2.67681349e-02f);
    near = fmaf(near, s, 1.12819925e-01f);
    near = fmaf(near, s, -3.76125336e-01f);
    near = fmaf(near, s, 1.28379166e-01f);
    return t > 0.921875f ? far : fmaf(near, x, x);
}
MLC_DEVICE double mlc_erf(double x) {
    return erf(x);
}
// CUDA's function of float is not near its zeros left of -2.
MLC_DEVICE float mlc_lgamma(float x) {
    return (float)lgamma((double)x);
}
MLC_DEVICE double mlc_lgamma(double x) {
    return lgamma(x);
}
MLC_DEVICE float mlc_fma(float x, float y, float z) {
    return fmaf(x, y, z);
}
MLC_DEVICE double mlc_fma(double x, double y, double z) {
    return fma(x, y, z);
}
// exp2, but zero where that is less than the least normal number: one instruction for float.
MLC_DEVICE float mlc_exp2_ftz(float x) {
    return mlc_exp2_approximate(x);
}
MLC_DEVICE double mlc_exp2_ftz(double x) {
    return x < -1022.0 ? 0.0 : exp2(x);
}

#ifdef __CUDACC__
MLC_DEVICE float mlc_rsqrt(float x) {
    return rsqrtf(x);
}
MLC_DEVICE double mlc_rsqrt(double x) {
    return rsqrt(x);
}
#else
MLC_DEVICE float mlc_rsqrt(float x) {
    return 1.0f / sqrtf(x);
}
MLC_DEVICE double mlc_rsqrt(double x) {
    return 1.0 / sqrt(x);
}
#endif
