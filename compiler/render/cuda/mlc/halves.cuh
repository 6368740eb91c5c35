// Weights of 4 or 8 bits as bf16, two at a time: pairs of them lie APART elements apart.
#pragma once
#include "convert.cuh"

#ifdef __CUDACC__
// Two bytes of a word, from `FIRST` on, each in a bf16 with the exponent of 128: 128 + byte, if below 128. As an
// instruction takes one literal, ptxas would move the exponents to a register before each. A bit that is always 0 (lane
// 31 is below no lane) hides from it that they are constant.
template <int FIRST>
MLC_DEVICE unsigned mlc_raised_bytes(unsigned word) {
    unsigned below;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    return __byte_perm(word, 0x43434343u | below >> 31 << 2, FIRST ? 0x4342 : 0x4140);
}
MLC_DEVICE unsigned mlc_fma_pair(unsigned a, unsigned b, unsigned c) {
    unsigned made;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(c));
    return made;
}
// The low halves of the bytes of `word * lift >> 4`, by shifts where `lift` is 16 or 1.
MLC_DEVICE unsigned mlc_low_halves(unsigned word, unsigned char lift) {
    if (lift == 16) return word & 0x0f0f0f0fu;
    if (lift == 1) return word >> 4 & 0x0f0f0f0fu;
    const unsigned even = (word & 0x00ff00ffu) * lift, odd = (word >> 8 & 0x00ff00ffu) * lift;
    return (even >> 4 & 0x000f000fu) | (odd << 4 & 0x0f000f00u);
}
#endif

// to[n] = from[n]. Both arrays are aligned to words, N is a multiple of 4.
template <int N, int APART = 2>
MLC_DEVICE void mlc_widened(mlc_bf16* to, const signed char* from) {
#ifdef __CUDACC__
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const unsigned word = *(const unsigned*)(from + n / 4 * 4);
        const unsigned raised = n % 4 ? mlc_raised_bytes<2>(word) : mlc_raised_bytes<0>(word);
        // 128 plus the low seven bits, less 128, or 256 where the eighth bit is set.
        *(unsigned*)(to + n / 2 * APART) = mlc_fma_pair(raised & 0xff80ff80u, 0xbf80bf80u, raised & 0xff7fff7fu);
    }
#else
    for (int n = 0; n < N; n++) to[n / 2 * APART + n % 2].bits = mlc_to_bf16((float)from[n]);
#endif
}

// to[n] = ((from[n] * lift & 240) - 128) * scale, rounded once: the half of a byte that `lift` brings to its high bits,
// sixteen times what it is above 8. Both arrays are aligned to words, N is a multiple of 4.
template <int N, int APART = 2>
MLC_DEVICE void mlc_scaled_halves(mlc_bf16* to, const unsigned char* from, unsigned char lift, unsigned short scale) {
#ifdef __CUDACC__
    const unsigned scales = scale | (unsigned)scale << 16;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        const unsigned word = mlc_low_halves(*(const unsigned*)(from + n / 4 * 4), lift);
        const unsigned raised = n % 4 ? mlc_raised_bytes<2>(word) : mlc_raised_bytes<0>(word);
        // (128 + half) * 16 - 17 * 128, which is exact.
        const unsigned whole = mlc_fma_pair(raised, 0x41804180u, 0xc508c508u);
        *(unsigned*)(to + n / 2 * APART) = mlc_fma_pair(whole, scales, 0x80008000u);
    }
#else
    for (int n = 0; n < N; n++)
        to[n / 2 * APART + n % 2].bits = mlc_to_bf16((float)((from[n] * lift & 240) - 128) * mlc_from_bf16(scale));
#endif
}
