// Weights of 4 bits: halves of bytes as bf16, two at a time.
#pragma once
#include "convert.cuh"

// to[n] = ((from[n] * lift & 240) - 128) * scale, rounded once: the half of a byte that `lift` brings to its high bits,
// sixteen times what it is above 8. Both arrays are aligned to words, N is a multiple of 4.
template <int N>
MLC_DEVICE void mlc_scaled_halves(mlc_bf16* to, const unsigned char* from, unsigned char lift, unsigned short scale) {
#ifdef __CUDACC__
    const unsigned scales = scale | (unsigned)scale << 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const unsigned word = *(const unsigned*)(from + n / 4 * 4);
        // Bytes 16 bits apart; as the leading bits of a fraction of bf16 their halves are 256 + 16 times the half.
        const unsigned apart = __byte_perm(word, 0, n % 4 ? 0x4342 : 0x4140);
        const unsigned raised = (apart * lift >> 1 & 0x00780078u) | 0x43804380u;
        unsigned made;
        asm("{ .reg .b32 whole; fma.rn.bf16x2 whole, %1, %2, %3; fma.rn.bf16x2 %0, whole, %4, %5; }"
            : "=r"(made)
            : "r"(raised), "r"(0x3f803f80u), "r"(0xc3c0c3c0u), "r"(scales), "r"(0x80008000u));
        *(unsigned*)(to + n) = made;
    }
#else
    for (int n = 0; n < N; n++)
        to[n].bits = mlc_to_bf16((float)((from[n] * lift & 240) - 128) * mlc_from_bf16(scale));
#endif
}
