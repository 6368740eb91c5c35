// Exchange between the lanes of a warp: votes, shuffles, election of one lane.
// All 32 lanes must call these.
#pragma once
#include "prelude.cuh"

MLC_DEVICE bool mlc_vote_any(bool mine) {
    return __any_sync(0xffffffffu, mine);
}
MLC_DEVICE bool mlc_vote_all(bool mine) {
    return __all_sync(0xffffffffu, mine);
}
// Bit l is lane l's.
MLC_DEVICE unsigned mlc_ballot(bool mine) {
    return __ballot_sync(0xffffffffu, mine);
}
// The value of a lane; of types narrower than 32 bits, convert before.
template <typename T>
MLC_DEVICE T mlc_shuffle(T value, long lane) {
    return __shfl_sync(0xffffffffu, value, (int)lane);
}
template <typename T>
MLC_DEVICE T mlc_shuffle_xor(T value, long lanes) {
    return __shfl_xor_sync(0xffffffffu, value, (int)lanes);
}
// The value of the lane `distance` below (above); lanes without such a lane keep their own.
template <typename T>
MLC_DEVICE T mlc_shuffle_up(T value, long distance) {
    return __shfl_up_sync(0xffffffffu, value, (unsigned)distance);
}
template <typename T>
MLC_DEVICE T mlc_shuffle_down(T value, long distance) {
    return __shfl_down_sync(0xffffffffu, value, (unsigned)distance);
}
// Makes a value that is equal in all lanes known as uniform to the compiler, such as the number of a warp's role.
MLC_DEVICE long mlc_warp_uniform(long value) {
    return __shfl_sync(0xffffffffu, (int)value, 0);
}
// True in one lane.
MLC_DEVICE bool mlc_elect() {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 900
    unsigned chosen;
    asm volatile("{\n.reg .pred mine;\nelect.sync _|mine, 0xffffffff;\nselp.u32 %0, 1, 0, mine;\n}\n" : "=r"(chosen));
    return chosen;
#else
    __syncwarp();
    return threadIdx.x % 32 == 0;
#endif
}
