// Conversions of floats of 8 bits, as their bits: to nearest even; what is too large for f8e4m3 becomes the greatest
// number, for f8e5m2 an infinity.
#pragma once
#include "convert.cuh"

// GPUs have instructions for it from sm_89 on.
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
#define MLC_EIGHT
#endif

// SHIFT bits of a float's fraction go, and REBIAS of its exponent; LEAST is that of the least normal number, OVER are the
// bits of what is too large.
template <int SHIFT, unsigned REBIAS, unsigned LEAST, unsigned OVER>
MLC_DEVICE unsigned char mlc_to_eight(float x) {
    constexpr unsigned LARGE = (LEAST + SHIFT) << 23;  // of a sum whose last bit is the least number
    const unsigned bits = mlc_to_bits(x), a = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    if (a > 0x7f800000u) return 0x7f;
    if (a < LEAST << 23) return (unsigned char)((mlc_to_bits(mlc_from_bits(a) + mlc_from_bits(LARGE)) - LARGE) | sign);
    const unsigned normal = (a + ((1u << (SHIFT - 1)) - 1) + (a >> SHIFT & 1u) - (REBIAS << 23)) >> SHIFT;
    return (unsigned char)((normal < OVER ? normal : OVER) | sign);
}

MLC_DEVICE unsigned char mlc_to_f8e4m3(float x) {
#ifdef MLC_EIGHT
    unsigned short both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return (unsigned char)both;
#else
    return mlc_to_eight<20, 120, 121, 0x7e>(x);
#endif
}
MLC_DEVICE unsigned char mlc_to_f8e5m2(float x) {
#ifdef MLC_EIGHT
    unsigned short both;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    // The instruction knows of no infinities: half-way from the greatest number to the next power of two they begin.
    return fabsf(x) >= 61440.0f ? (unsigned char)(x < 0 ? 0xfc : 0x7c) : (unsigned char)both;
#else
    return mlc_to_eight<21, 112, 113, 0x7c>(x);
#endif
}
MLC_DEVICE float mlc_from_f8e4m3(unsigned char raw) {
#ifdef MLC_EIGHT
    unsigned both;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"((unsigned short)raw));
    return mlc_from_f16((unsigned short)both);
#else
    const unsigned magnitude = raw & 0x7fu, sign = (raw & 0x80u) << 24;
    if (magnitude == 0x7fu) return mlc_from_bits(sign | 0x7fc00000u);
    return mlc_from_bits(sign | mlc_to_bits(mlc_from_bits(magnitude << 20) * 0x1p120f));
#endif
}
MLC_DEVICE float mlc_from_f8e5m2(unsigned char raw) {
    return mlc_from_f16((unsigned short)(raw << 8));
}
