// Whole vectors between memory and a thread's own array: COUNT neighbouring elements by as few accesses as may be.
//
// The memory side must be aligned to the vector's own size, or to 16 bytes where that is less.
#pragma once
#include "prelude.cuh"

template <int BYTES>
struct mlc_piece;
template <>
struct mlc_piece<1> {
    typedef unsigned char type;
};
template <>
struct mlc_piece<2> {
    typedef unsigned short type;
};
template <>
struct mlc_piece<4> {
    typedef unsigned type;
};
template <>
struct mlc_piece<8> {
    typedef uint2 type;
};
template <>
struct mlc_piece<16> {
    typedef uint4 type;
};

template <int COUNT, typename T>
MLC_DEVICE void mlc_load(T* to, const T* from) {
    constexpr int BYTES = COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16;
    typedef typename mlc_piece<BYTES>::type P;
#pragma unroll
    for (int i = 0; i < COUNT * (int)sizeof(T) / BYTES; i++) ((P*)to)[i] = ((const P*)from)[i];
}
template <int COUNT, typename T>
MLC_DEVICE void mlc_store(T* to, const T* from) {
    mlc_load<COUNT>(to, from);
}
