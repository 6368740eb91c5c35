// For the C++ bodies of tensor instructions: elements as the hardware reads them, and the product itself.
#pragma once
#include "float8.cuh"

#ifndef __CUDACC__

namespace mlc::emu {

MLC_DEVICE float element(mlc_bf16 x) {
    return mlc_from_bf16(x.bits);
}
MLC_DEVICE float element(mlc_f16 x) {
    return mlc_from_f16(x.bits);
}
MLC_DEVICE float element(mlc_f8e4m3 x) {
    return mlc_from_f8e4m3(x.bits);
}
MLC_DEVICE float element(mlc_f8e5m2 x) {
    return mlc_from_f8e5m2(x.bits);
}
// As tf32: the last 13 bits of the fraction are not read.
MLC_DEVICE float element(float x) {
    return mlc_from_bits(mlc_to_bits(x) & 0xffffe000u);
}
MLC_DEVICE double element(double x) {
    return x;
}
MLC_DEVICE int element(signed char x) {
    return x;
}

// c[rows][columns] += a[rows][depth] * b[depth][columns], rows and columns multiples of 8: in strips of 8 columns and 4
// rows, whose sums stay in registers.
template <typename T>
MLC_UNCHECKED __noinline__ static void product(T* c, const T* a, const T* b, int rows, int columns, int depth) {
    typedef T Strip __attribute__((vector_size(8 * sizeof(T)), aligned(alignof(T))));
    for (int i = 0; i < rows; i += 4)
        for (int j = 0; j < columns; j += 8) {
            Strip sum[4];
            for (int r = 0; r < 4; r++) sum[r] = *(const Strip*)(c + (i + r) * columns + j);
            for (int l = 0; l < depth; l++) {
                const Strip right = *(const Strip*)(b + l * columns + j);
                for (int r = 0; r < 4; r++) sum[r] += a[(i + r) * depth + l] * right;
            }
            for (int r = 0; r < 4; r++) *(Strip*)(c + (i + r) * columns + j) = sum[r];
        }
}

// Between the 16 rows of a warp's left operand and its fragments: neighbours that fill 32 bits, the row 8 below, then
// the next columns. `M` is 16, or 8 where there is no second row.
template <int M, int K, typename T, typename Acc>
MLC_DEVICE void gather_left(Acc* to, const T* fragment, unsigned lane) {
    constexpr int PACK = sizeof(T) < 4 ? 4 / sizeof(T) : 1, COUNT = M * K / 32;
    Acc values[COUNT];
    for (int i = 0; i < COUNT; i++) values[i] = element(fragment[i]);
    const Acc* next = values;
    to += lane / 4 * K + lane % 4 * PACK;
    for (int j = 0; j < K / (4 * PACK); j++)
        for (int h = 0; h < M / 8; h++, next += PACK)
            __builtin_memcpy(to + 8 * h * K + j * 4 * PACK, next, PACK * sizeof(Acc));
}

}  // namespace mlc::emu

#endif
