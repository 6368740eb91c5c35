// Reductions over the threads of a warp and of a block; every thread gets the result, which is the same in each run.
#pragma once
#include "combine.cuh"

// What a shuffle can carry: at least 32 bits.
template <typename T>
struct mlc_carried {
    typedef T type;
};
template <>
struct mlc_carried<bool> {
    typedef int type;
};
template <>
struct mlc_carried<signed char> {
    typedef int type;
};
template <>
struct mlc_carried<unsigned char> {
    typedef int type;
};
template <>
struct mlc_carried<short> {
    typedef int type;
};

// Over LANES neighbouring lanes, a power of two; all lanes of the warp take part.
template <typename OP, int LANES, typename T>
MLC_DEVICE T mlc_lanes_reduce(T x) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        x = OP::of(x, (T)__shfl_xor_sync(0xffffffffu, (typename mlc_carried<T>::type)x, distance));
    return x;
}
template <typename OP, typename T>
MLC_DEVICE T mlc_warp_reduce(T x) {
#ifdef __CUDACC__
    if constexpr (mlc_same<OP, mlc_any> && mlc_same<T, int>) return (T)__reduce_or_sync(0xffffffffu, x);
#endif
    return mlc_lanes_reduce<OP, 32>(x);
}
// `scratch` is shared, with an element for each warp; after the next barrier it may be used again.
template <typename OP, int THREADS, typename T, typename S>
MLC_DEVICE T mlc_block_reduce(T x, S* scratch MLC_LINE_OF_CALL) {
    constexpr int WARPS = THREADS / 32;
    static_assert((WARPS & (WARPS - 1)) == 0, "a block has a power of two warps");
    x = mlc_warp_reduce<OP>(x);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = (S)x;
    mlc_block_barrier_of_call();
    T total = (T)scratch[threadIdx.x % 32 % WARPS];
#pragma unroll
    for (int distance = WARPS / 2; distance > 0; distance /= 2)
        total = OP::of(total, (T)__shfl_xor_sync(0xffffffffu, (typename mlc_carried<T>::type)total, distance));
    return total;
}
// Over the lanes of one number in all WARPS of a block; `scratch` has an element for each thread.
template <typename OP, int WARPS, typename T, typename S>
MLC_DEVICE T mlc_columns_reduce(T x, S* scratch MLC_LINE_OF_CALL) {
    scratch[threadIdx.x] = (S)x;
    mlc_block_barrier_of_call();
    T total = (T)scratch[threadIdx.x % 32];
#pragma unroll
    for (int warp = 1; warp < WARPS; warp++) total = OP::of(total, (T)scratch[32 * warp + threadIdx.x % 32]);
    return total;
}
