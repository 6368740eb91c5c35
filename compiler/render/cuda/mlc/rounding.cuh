// Splitting a float for tensor cores that read fewer bits of it.
#pragma once
#include "convert.cuh"

// To 10 bits of fraction, halves away from zero. Of a NaN it may make a number, but what is left, x - mlc_tf32(x), is
// NaN: to tell them apart as cvt.rna.tf32 does would take twice as many instructions.
MLC_DEVICE float mlc_tf32(float x) {
    return mlc_from_bits((mlc_to_bits(x) + 0x1000u) & 0xffffe000u);
}
MLC_DEVICE double mlc_tf32(double x) {
#ifdef __CUDACC__
    const unsigned long long bits = (unsigned long long)__double_as_longlong(x) + (1ull << 41);
    return x != x ? x : __longlong_as_double((long long)(bits >> 42 << 42));
#else
    unsigned long bits;
    __builtin_memcpy(&bits, &x, 8);
    bits = (bits + (1ul << 41)) >> 42 << 42;
    double y;
    __builtin_memcpy(&y, &bits, 8);
    return x != x ? x : y;
#endif
}
