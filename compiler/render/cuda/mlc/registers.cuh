// Registers handed between the warpgroups of a block (setmaxnreg, sm_90a): all warps of a warpgroup call these.
//
// COUNT is per thread, a multiple of 8 from 24 to 256; the kernel says __launch_bounds__(threads, 1), or ptxas ignores
// it.
#pragma once
#include "prelude.cuh"

// Gives back all registers beyond COUNT.
template <int COUNT>
MLC_DEVICE void mlc_registers_decrease(MLC_LINE_ALONE) {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a multiple of 8 from 24 to 256");
#ifdef __CUDACC__
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#else
    mlc::emu::hand_over(COUNT, line);
#endif
}
// Waits until there are COUNT registers to be had, and takes them.
template <int COUNT>
MLC_DEVICE void mlc_registers_increase(MLC_LINE_ALONE) {
    static_assert(COUNT >= 24 && COUNT <= 256 && COUNT % 8 == 0, "a multiple of 8 from 24 to 256");
#ifdef __CUDACC__
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#else
    mlc::emu::hand_over(COUNT, line);
#endif
}
