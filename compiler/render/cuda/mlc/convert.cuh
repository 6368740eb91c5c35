// Conversions: bf16 and f16 as their bits, and floats to integers with a defined answer for every value.
#pragma once
#include "prelude.cuh"

#ifdef __CUDACC__
MLC_DEVICE float mlc_from_bits(unsigned bits) {
    return __uint_as_float(bits);
}
MLC_DEVICE unsigned mlc_to_bits(float x) {
    return __float_as_uint(x);
}
#else
MLC_DEVICE float mlc_from_bits(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
MLC_DEVICE unsigned mlc_to_bits(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
#endif

MLC_DEVICE float mlc_from_bf16(unsigned short raw) {
#ifdef __CUDACC__
    // Either half of a word by one instruction; a shift would follow another that takes the half out.
    float x;
    asm("mov.b32 %0, {%1, %2};" : "=f"(x) : "h"((unsigned short)0), "h"(raw));
    return x;
#else
    return mlc_from_bits((unsigned)raw << 16);
#endif
}
// To nearest even; NaN stays NaN.
MLC_DEVICE unsigned short mlc_to_bf16(float x) {
#ifdef __CUDACC__
    unsigned short raw;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(raw) : "f"(x));
    return raw;
#else
    const unsigned bits = mlc_to_bits(x);
    return x != x ? (unsigned short)0x7fff : (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}
MLC_DEVICE float mlc_from_f16(unsigned short raw) {
#ifdef __CUDACC__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(raw));
    return x;
#else
    const unsigned magnitude = (raw & 0x7fffu) << 13;
    const unsigned finite = mlc_to_bits(mlc_from_bits(magnitude) * 0x1p112f);
    const unsigned special = (raw & 0x3ffu) << 13 | 0x7f800000u;
    return mlc_from_bits((raw & 0x8000u) << 16 | (magnitude >= 0x7c00u << 13 ? special : finite));
#endif
}
// To nearest even; what is too large becomes infinite.
MLC_DEVICE unsigned short mlc_to_f16(float x) {
#ifdef __CUDACC__
    unsigned short raw;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(x));
    return raw;
#else
    const unsigned bits = mlc_to_bits(x), a = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
    if (a > 0x7f800000u) return 0x7fff;
    // Adding 0.5 shifts a denormal result into the low bits, rounded to nearest even by the addition itself.
    if (a < 0x38800000u) return (unsigned short)((mlc_to_bits(mlc_from_bits(a) + 0.5f) - 0x3f000000u) | sign);
    const unsigned normal = (a + 0xfffu + (a >> 13 & 1u) - (112u << 23)) >> 13;
    return (unsigned short)((a < 0x47800000u ? normal : 0x7c00u) | sign);
#endif
}

// Two neighbours in one word, the first in its low half.
MLC_DEVICE unsigned mlc_pack_bf16(float first, float second) {
#ifdef __CUDACC__
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return mlc_to_bf16(first) | (unsigned)mlc_to_bf16(second) << 16;
#endif
}
MLC_DEVICE unsigned mlc_pack_f16(float first, float second) {
#ifdef __CUDACC__
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return mlc_to_f16(first) | (unsigned)mlc_to_f16(second) << 16;
#endif
}

// A number of which g++, which runs this text on CPUs, knows nothing: it takes (float)(int)x for the truncated x, which
// may be a negative zero.
template <typename T>
MLC_DEVICE T mlc_truncated(T x) {
#ifndef __CUDACC__
    asm("" : "+r"(x));
#endif
    return x;
}
// What int or long cannot hold becomes the least value; narrower results are the low bits of an int, for unsigned char
// from double those of a long: as PyTorch does it on x86.
template <typename T, typename Via = int>
struct mlc_conversion {
    template <typename F>
    MLC_DEVICE T from(F x) {
        return (T)mlc_conversion<Via>::from(x);
    }
};
template <>
struct mlc_conversion<int> {
    template <typename F>
    MLC_DEVICE int from(F x) {
        return x >= (F)-2147483648.0 && x < (F)2147483648.0 ? mlc_truncated((int)x) : -2147483647 - 1;
    }
};
template <>
struct mlc_conversion<long> {
    template <typename F>
    MLC_DEVICE long from(F x) {
        const bool held = x >= (F)-9223372036854775808.0 && x < (F)9223372036854775808.0;
        return held ? mlc_truncated((long)x) : -9223372036854775807l - 1;
    }
};
template <>
struct mlc_conversion<unsigned char> {
    MLC_DEVICE unsigned char from(float x) { return (unsigned char)mlc_conversion<int>::from(x); }
    MLC_DEVICE unsigned char from(double x) { return (unsigned char)mlc_conversion<long>::from(x); }
};
template <typename T, typename F>
MLC_DEVICE T mlc_convert(F x) {
    return mlc_conversion<T>::from(x);
}
