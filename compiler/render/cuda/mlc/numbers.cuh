// Infinity and NaN of a floating type.
#pragma once
#include "prelude.cuh"

template <typename T>
struct mlc_special;
#ifdef __CUDACC__
template <>
struct mlc_special<float> {
    MLC_DEVICE float infinity() { return __int_as_float(0x7f800000); }
    MLC_DEVICE float nan() { return __int_as_float(0x7fc00000); }
};
template <>
struct mlc_special<double> {
    MLC_DEVICE double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
    MLC_DEVICE double nan() { return __longlong_as_double(0x7ff8000000000000ll); }
};
#else
template <>
struct mlc_special<float> {
    MLC_DEVICE float infinity() { return __builtin_inff(); }
    MLC_DEVICE float nan() { return __builtin_nanf(""); }
};
template <>
struct mlc_special<double> {
    MLC_DEVICE double infinity() { return __builtin_inf(); }
    MLC_DEVICE double nan() { return __builtin_nan(""); }
};
#endif

template <typename T>
MLC_DEVICE T mlc_infinity() {
    return mlc_special<T>::infinity();
}
template <typename T>
MLC_DEVICE T mlc_nan() {
    return mlc_special<T>::nan();
}
