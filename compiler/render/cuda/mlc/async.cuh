// Copies from global to shared memory that run while the thread goes on (cp.async), in groups that are waited for.
// A thread's own groups complete in order; other threads see the bytes after a wait and a barrier.
#pragma once
#include "prelude.cuh"

// L2 is how much of the line is fetched into the second-level cache besides: 0 (no hint), 64, 128 or 256 bytes.
// 16 bytes bypass the first-level cache (.cg), which only knows that size.
template <int BYTES, int L2>
MLC_DEVICE void mlc_cp_async_sized(void* to, const void* from, int bytes) {
    const unsigned at = mlc_shared_address(to);
    static_assert(BYTES == 16 || ((BYTES == 4 || BYTES == 8) && L2 == 0),
                  "cp.async moves 4, 8 or 16 bytes; the hint is for 16");
#ifdef __CUDACC__
    if constexpr (BYTES == 16) {
        if constexpr (L2 == 256)
            asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                         : "memory");
        else if constexpr (L2 == 128)
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                         : "memory");
        else if constexpr (L2 == 64)
            asm volatile("cp.async.cg.shared.global.L2::64B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                         : "memory");
        else
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(bytes)
                     : "memory");
    }
#else
    mlc::emu::cp_async(at, from, BYTES, (unsigned)bytes);
#endif
}

// BYTES (4, 8 or 16) from global to shared memory, both at multiples of BYTES.
template <int BYTES, int L2 = 0>
MLC_DEVICE void mlc_cp_async(void* to, const void* from) {
    mlc_cp_async_sized<BYTES, L2>(to, from, BYTES);
}

// The same, of which only the first `bytes` (0 to BYTES) are read; the others become zero. With 0, `from` is not read.
template <int BYTES, int L2 = 0>
MLC_DEVICE void mlc_cp_async_zero(void* to, const void* from, long bytes) {
    mlc_cp_async_sized<BYTES, L2>(to, from, (int)bytes);
}

// Ends the group of all copies since the last one; a group may be empty.
MLC_DEVICE void mlc_cp_async_commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    mlc::emu::cp_async_commit();
#endif
}

// Until at most PENDING of this thread's groups, the latest, are under way.
template <int PENDING>
MLC_DEVICE void mlc_cp_async_wait() {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#else
    mlc::emu::cp_async_wait(PENDING);
#endif
}
// Arrives at an mbarrier, of whose arrivals this is one, once all copies of this thread so far have landed.
MLC_DEVICE void mlc_cp_async_arrive(void* barrier) {
    const unsigned at = mlc_shared_address(barrier);
#ifdef __CUDACC__
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
#else
    mlc::emu::cp_async_mbarrier_arrive(at);
#endif
}
