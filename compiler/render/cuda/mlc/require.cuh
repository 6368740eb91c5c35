// Requirements on a program's data: where one fails, the kernel continues with some value and sets an integer for the
// host. The integer is in host memory, across the bus, which costs nothing as long as no requirement fails.
#pragma once
#include "prelude.cuh"

#ifdef __CUDACC__
MLC_DEVICE void mlc_fail(int* failed) {
    *(volatile int*)failed = 1;
}
#else
// The integer is none of the kernel's buffers, and all threads write the same.
MLC_UNCHECKED __noinline__ static void mlc_fail(int* failed) {
    __atomic_store_n(failed, 1, __ATOMIC_RELAXED);
}
#endif

template <typename T>
MLC_DEVICE T mlc_require(int* failed, bool holds, T x) {
    if (__builtin_expect(!holds, 0)) {
        mlc_fail(failed);
        return T(0);
    }
    return x;
}
