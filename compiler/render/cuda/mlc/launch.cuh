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
