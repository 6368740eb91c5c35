// The mathematical functions by one name for float and double. How exact they are on a GPU, the CUDA C++ Programming
// Guide's tables of maximum errors say (targets/accuracy.py holds those figures).
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
MLC_MATH_1(erf)
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

MLC_DEVICE float mlc_fma(float x, float y, float z) {
    return fmaf(x, y, z);
}
MLC_DEVICE double mlc_fma(double x, double y, double z) {
    return fma(x, y, z);
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
