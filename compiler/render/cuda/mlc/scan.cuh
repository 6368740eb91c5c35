// Running totals over the threads of a warp and of a block, in the order of the threads.
#pragma once
#include "reduce.cuh"

// Of this lane and those before it.
template <typename OP, typename T>
MLC_DEVICE T mlc_warp_scan(T x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T before = __shfl_up_sync(0xffffffffu, x, distance);
        if (lane >= distance) x = OP::of(before, x);
    }
    return x;
}
template <typename T>
struct mlc_itself {
    typedef T type;
};
// out[0]: the total of the threads before this one, `none` for the first; out[1]: that of all. THREADS is 32 for each
// warp by itself, which needs no `scratch`: a shared array with an element for each warp, which may be used again.
template <typename OP, int THREADS, typename T>
MLC_DEVICE void mlc_scan_before(
    T* out, typename mlc_itself<T>::type x, typename mlc_itself<T>::type none,
    typename mlc_itself<T>::type* scratch MLC_LINE_OF_CALL) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T mine = mlc_warp_scan<OP>((T)x);
    const T up = __shfl_up_sync(0xffffffffu, mine, 1);
    out[0] = lane > 0 ? up : none;
    if (THREADS == 32) {
        out[1] = __shfl_sync(0xffffffffu, mine, 31);
        return;
    }
    constexpr int WARPS = THREADS / 32;
    if (lane == 31) scratch[warp] = mine;
    mlc_block_barrier_of_call();
    const T totals = mlc_warp_scan<OP>((T)(lane < WARPS ? scratch[lane] : none));
    const T warps = __shfl_sync(0xffffffffu, totals, warp > 0 ? warp - 1 : 0);
    out[1] = __shfl_sync(0xffffffffu, totals, WARPS - 1);
    if (warp > 0) out[0] = OP::of(warps, out[0]);
    mlc_block_barrier_of_call();
}
