// Kernels that overlap with the one before them in the stream (programmatic dependent launch, sm_90).
#pragma once
#include "prelude.cuh"

// Lets the next kernel start its blocks: called by all blocks, or when they end. Call it after the wait, so that what
// the next kernel reads before its own wait was written by kernels that have ended.
MLC_DEVICE void mlc_launch_dependents() {
#ifdef __CUDACC__
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#else
    mlc::emu::launch_dependents();
#endif
}
// Waits until the preceding kernels have ended and their writes are visible: call it before accesses to their buffers.
MLC_DEVICE void mlc_wait_dependencies() {
#ifdef __CUDACC__
    asm volatile("griddepcontrol.wait;" ::: "memory");
#else
    mlc::emu::wait_dependencies();
#endif
}
// Asks for `bytes` from `start` on to be brought to the L2 cache; the threads of the grid take a line each in turn.
MLC_DEVICE void mlc_prefetch_l2(const void* start, long bytes) {
#ifdef __CUDACC__
    const long block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const long threads = (long)gridDim.x * gridDim.y * gridDim.z * blockDim.x;
    for (long at = (block * blockDim.x + threadIdx.x) * 128; at < bytes; at += threads * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)start + at));
#else
    mlc::emu::global(start);
#endif
}
