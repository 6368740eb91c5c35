// Barriers in shared memory that count arrivals of threads and bytes of asynchronous copies, and barriers of some
// warps.
//
// A barrier is 8 bytes (an unsigned long). Its phase is complete when all expected arrivals and bytes have come; the
// next begins at once. Phases have alternating parities, 0 first: a wait for parity 1 on a fresh barrier passes.
#pragma once
#include "prelude.cuh"

// By one thread, before the fence and a barrier of the block (or cluster).
MLC_DEVICE void mlc_mbarrier_init(void* barrier, long arrivals) {
    const unsigned at = mlc_shared_address(barrier);
    const int count = (int)arrivals;
#ifdef __CUDACC__
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
#else
    mlc::emu::mbarrier_init(at, count);
#endif
}
// Makes the initialisations of this thread visible to the copy engine and to the cluster.
MLC_DEVICE void mlc_mbarrier_fence_init() {
#ifdef __CUDACC__
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    mlc::emu::fence_mbarrier_init();
#endif
}
MLC_DEVICE void mlc_mbarrier_arrive(void* barrier) {
    const unsigned at = mlc_shared_address(barrier);
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
#else
    mlc::emu::mbarrier_arrive(at);
#endif
}
// Arrives, and lets the phase wait for so many more bytes of copies.
MLC_DEVICE void mlc_mbarrier_expect(void* barrier, long bytes) {
    const unsigned at = mlc_shared_address(barrier);
    const int more = (int)bytes;
#ifdef __CUDACC__
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(more) : "memory");
#else
    mlc::emu::mbarrier_arrive_expect_tx(at, more);
#endif
}
// At the barrier of the same place in block `rank` of the cluster. ORDERED: after what this thread wrote to that block.
template <bool ORDERED>
MLC_DEVICE void mlc_mbarrier_arrive_in(void* barrier, long rank) {
    const unsigned at = mlc_shared_address(barrier);
    const int block = (int)rank;
#ifdef __CUDACC__
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    if constexpr (ORDERED)
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
    else
        asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
#else
    mlc::emu::mbarrier_arrive_cluster(at, block);
#endif
}
MLC_DEVICE void mlc_mbarrier_arrive_cluster(void* barrier, long rank) { mlc_mbarrier_arrive_in<true>(barrier, rank); }
// For a place that only copies write: an order of writes would take as long as an access to memory.
MLC_DEVICE void mlc_mbarrier_arrive_at(void* barrier, long rank) { mlc_mbarrier_arrive_in<false>(barrier, rank); }
// Until the phase of this parity is complete: the latest one, or the one before the running one.
MLC_DEVICE void mlc_mbarrier_wait(void* barrier, long parity) {
    const unsigned at = mlc_shared_address(barrier);
    const int phase = (int)parity;
#ifdef __CUDACC__
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait_%=;\n}\n" ::"r"(at),
        "r"(phase)
        : "memory");
#else
    mlc::emu::mbarrier_wait(at, phase);
#endif
}
// The same where other blocks of the cluster arrive or write: their stores before arriving are visible after it.
MLC_DEVICE void mlc_mbarrier_wait_cluster(void* barrier, long parity) {
    const unsigned at = mlc_shared_address(barrier);
    const int phase = (int)parity;
#ifdef __CUDACC__
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait_%=;\n}\n" ::"r"(at),
        "r"(phase)
        : "memory");
#else
    mlc::emu::mbarrier_wait(at, phase);
#endif
}
// Makes this thread's writes to shared memory visible to later reads by the copy engine and wgmma.
MLC_DEVICE void mlc_fence_async() {
#ifdef __CUDACC__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    mlc::emu::fence_proxy_async(false);
#endif
}
// The same for global memory as well.
MLC_DEVICE void mlc_fence_async_all() {
#ifdef __CUDACC__
    asm volatile("fence.proxy.async;" ::: "memory");
#else
    mlc::emu::fence_proxy_async(true);
#endif
}
// Barrier `id` (1 to 15; 0 is the block's) of so many threads, whole warps.
MLC_DEVICE void mlc_named_barrier(long id, long threads) {
    const int number = (int)id, count = (int)threads;
#ifdef __CUDACC__
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
#else
    mlc::emu::named_barrier_sync(number, count);
#endif
}
// The same without waiting.
MLC_DEVICE void mlc_named_barrier_arrive(long id, long threads) {
    const int number = (int)id, count = (int)threads;
#ifdef __CUDACC__
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(count) : "memory");
#else
    mlc::emu::named_barrier_arrive(number, count);
#endif
}
