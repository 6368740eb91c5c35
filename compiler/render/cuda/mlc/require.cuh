// What a program's data must fulfil: the kernel goes on with some value where it does not, and the host finds out. The
// integer lies in the host's memory, over the bus, which costs nothing as long as nothing is wrong.
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
