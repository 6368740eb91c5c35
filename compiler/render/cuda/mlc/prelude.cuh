// What every kernel text relies on, for both readers: nvcc and NVRTC (no host headers), and g++ with the emulator.
#pragma once

#ifdef __CUDACC__

#define MLC_DEVICE static __device__ __forceinline__

// A static shared array; all of a kernel's together may take 48 KB.
#define MLC_SHARED(type, name, count, align) __shared__ __align__(align) type name[count]

// The launch's dynamic shared memory. ptxas begins it at a multiple of the 1024 bytes that tensor copies and wgmma need;
// static arrays before it therefore take whole kilobytes.
#define MLC_DYNAMIC_SHARED(name)                              \
    extern __shared__ __align__(1024) char mlc_dynamic_shared[]; \
    char* const name = mlc_dynamic_shared

struct __align__(64) mlc_tensor_map {
    unsigned long long words[16];
};
#define MLC_TENSOR_MAP(name) const __grid_constant__ mlc_tensor_map name

#else

#include "mlc_emulator.h"

#endif

// A call in the emulator knows its line, by which it tells collectives apart: the last parameter and the last argument.
#ifdef __CUDACC__
#define MLC_LINE_ALONE
#define MLC_LINE_OF_CALL
#define MLC_LINE
#else
#define MLC_LINE_ALONE int line = __builtin_LINE()
#define MLC_LINE_OF_CALL , MLC_LINE_ALONE
#define MLC_LINE , line
#endif

#define mlc_block_barrier() __syncthreads()
// In a device function with the line of its call.
#ifdef __CUDACC__
#define mlc_block_barrier_of_call() __syncthreads()
#else
#define mlc_block_barrier_of_call() ::mlc::emu::block_barrier(line, __COUNTER__)
#endif
#define mlc_warp_barrier() __syncwarp()

// Short floats in memory; arithmetic is in float.
struct mlc_bf16 {
    unsigned short bits;
};
struct mlc_f16 {
    unsigned short bits;
};
struct mlc_f8e4m3 {
    unsigned char bits;
};
struct mlc_f8e5m2 {
    unsigned char bits;
};

// The address of shared memory as instructions have it: in a cluster, the block's rank comes above the offset.
MLC_DEVICE unsigned mlc_shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

template <typename A, typename B>
constexpr bool mlc_same = false;
template <typename A>
constexpr bool mlc_same<A, A> = true;
