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
struct mlc_pieces {
    static constexpr int BYTES = COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16;
    static constexpr int NUMBER = COUNT * sizeof(T) / BYTES;
    typedef typename mlc_piece<BYTES>::type type;
};

// Any memory.
template <int COUNT, typename T>
MLC_DEVICE void mlc_load(T* to, const T* from) {
    typedef typename mlc_pieces<COUNT, T>::type P;
#pragma unroll
    for (int i = 0; i < mlc_pieces<COUNT, T>::NUMBER; i++) ((P*)to)[i] = ((const P*)from)[i];
}
template <int COUNT, typename T>
MLC_DEVICE void mlc_store(T* to, const T* from) {
    mlc_load<COUNT>(to, from);
}

// Global memory. Spelled out, since a vector that was put together from elements may be taken apart again.
template <typename P>
MLC_DEVICE void mlc_put_global(P* to, P x) {
#ifndef __CUDACC__
    mlc::emu::global(to);
#endif
    *to = x;
}
#ifdef __CUDACC__
MLC_DEVICE void mlc_put_global(uint2* to, uint2 x) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
}
MLC_DEVICE void mlc_put_global(uint4* to, uint4 x) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
#endif
template <int COUNT, typename T>
MLC_DEVICE void mlc_store_global(T* to, const T* from) {
    typedef typename mlc_pieces<COUNT, T>::type P;
#pragma unroll
    for (int i = 0; i < mlc_pieces<COUNT, T>::NUMBER; i++) mlc_put_global((P*)to + i, ((const P*)from)[i]);
}
