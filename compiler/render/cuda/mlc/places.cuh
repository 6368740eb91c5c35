// Where a thread is in its warp, and its warp in the block; blocks of threads have one axis.
#pragma once
#include "prelude.cuh"

MLC_DEVICE long mlc_lane_index() {
    return threadIdx.x & 31;
}
// The same register for all threads of the warp, as roles of warps and operands of wgmma ask for.
MLC_DEVICE long mlc_warp_index(MLC_LINE_ALONE) {
#ifdef __CUDACC__
    return __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);
#else
    mlc::emu::converged("__shfl_sync", line);
    return threadIdx.x >> 5;
#endif
}
