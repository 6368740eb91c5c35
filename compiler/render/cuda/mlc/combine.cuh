// What makes one of two elements, in reductions, scans and atomics.
#pragma once
#include "arithmetic.cuh"

struct mlc_sum {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return mlc_add(a, b);
    }
};
struct mlc_prod {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return mlc_mul(a, b);
    }
};
struct mlc_maximum {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return mlc_max(a, b);
    }
};
struct mlc_minimum {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return mlc_min(a, b);
    }
};
struct mlc_all {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return (T)(a & b);
    }
};
struct mlc_any {
    template <typename T>
    MLC_DEVICE T of(T a, T b) {
        return (T)(a | b);
    }
};
