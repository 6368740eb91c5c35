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

// An element of a buffer that the kernel also writes. NVCC 13.0 merges a select between loads of such memory and of
// read-only memory to one load through the read-only cache, which misses stores; it does not for a volatile load.
template <typename T>
MLC_DEVICE T mlc_reread(const T* from) {
#ifdef __CUDACC__
    return *(const volatile T*)from;
#else
    return *from;
#endif
}

// Global memory that will soon be asked for.
template <typename T>
MLC_DEVICE void mlc_prefetch(const T* from) {
#ifdef __CUDACC__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
    (void)from;
#endif
}

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

// Defines loads, by the instruction `load`, of pieces of memory where `wanted`, else zeros. Without a branch, so that the
// loads of many iterations are under way at once.
#ifdef __CUDACC__
#define MLC_PIECE_WHERE(name, load, T, kind, constraint)                                                            \
    MLC_DEVICE void name(T* to, const T* from, bool wanted) {                                                       \
        T x = 0;                                                                                                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p " load "." kind " %0, [%1];\n}\n"                 \
                     : "+" constraint(x)                                                                            \
                     : "l"(from), "r"((unsigned)wanted));                                                           \
        *to = x;                                                                                                    \
    }
#define MLC_PIECES_WHERE(name, load)                                                                                \
    MLC_PIECE_WHERE(name, load, unsigned, "u32", "r")                                                               \
    MLC_DEVICE void name(uint2* to, const uint2* from, bool wanted) {                                               \
        uint2 x = make_uint2(0, 0);                                                                                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p " load ".v2.u32 {%0, %1}, [%2];\n}\n"             \
                     : "+r"(x.x), "+r"(x.y)                                                                         \
                     : "l"(from), "r"((unsigned)wanted));                                                           \
        *to = x;                                                                                                    \
    }                                                                                                               \
    MLC_DEVICE void name(uint4* to, const uint4* from, bool wanted) {                                               \
        uint4 x = make_uint4(0, 0, 0, 0);                                                                           \
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p " load ".v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"     \
                     : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)                                                   \
                     : "l"(from), "r"((unsigned)wanted));                                                           \
        *to = x;                                                                                                    \
    }
#else
#define MLC_PIECES_WHERE(name, load)                                                                                \
    template <typename P>                                                                                           \
    MLC_DEVICE void name(P* to, const P* from, bool wanted) {                                                       \
        *to = wanted ? *from : P{};                                                                                 \
    }
#endif

// Memory that nobody writes while the kernel runs, and other memory.
MLC_PIECES_WHERE(mlc_get_where, "ld.global.nc")
MLC_PIECES_WHERE(mlc_get_changed_where, "ld.global")
#ifdef __CUDACC__
#define MLC_SHORT_PIECES_WHERE(name, load)                                                                          \
    MLC_PIECE_WHERE(name, load, unsigned short, "u16", "h")                                                         \
    MLC_DEVICE void name(unsigned char* to, const unsigned char* from, bool wanted) {                               \
        unsigned short x = 0;                                                                                       \
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p " load ".u8 %0, [%1];\n}\n"                      \
                     : "+h"(x)                                                                                      \
                     : "l"(from), "r"((unsigned)wanted));                                                           \
        *to = (unsigned char)x;                                                                                     \
    }
MLC_SHORT_PIECES_WHERE(mlc_get_where, "ld.global.nc")
MLC_SHORT_PIECES_WHERE(mlc_get_changed_where, "ld.global")
#endif
template <int COUNT, bool CONSTANT = true, typename T>
MLC_DEVICE void mlc_load_where(T* to, const T* from, bool wanted) {
    typedef typename mlc_pieces<COUNT, T>::type P;
#pragma unroll
    for (int i = 0; i < mlc_pieces<COUNT, T>::NUMBER; i++) {
        if constexpr (CONSTANT)
            mlc_get_where((P*)to + i, (const P*)from + i, wanted);
        else
            mlc_get_changed_where((P*)to + i, (const P*)from + i, wanted);
    }
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
