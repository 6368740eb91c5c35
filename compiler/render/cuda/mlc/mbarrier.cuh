// Barriers in shared memory that count arrivals of threads and bytes of asynchronous copies, and barriers of some
// warps.
//
// A barrier is 8 bytes (an unsigned long). Its phase is complete when all expected arrivals and bytes have come; the
// next begins at once. Phases have alternating parities, 0 first: a wait for parity 1 on a fresh barrier passes.
#pragma once
#include "prelude.cuh"

#ifdef __CUDACC__

MLC_DEVICE unsigned mlc_shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
// By one thread, before the fence and a barrier of the block (or cluster).
MLC_DEVICE void mlc_mbarrier_init(void* barrier, long arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mlc_shared_address(barrier)), "r"((int)arrivals)
                 : "memory");
}
// Makes the initialisations of this thread visible to the copy engine and to the cluster.
MLC_DEVICE void mlc_mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
MLC_DEVICE void mlc_mbarrier_arrive(void* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mlc_shared_address(barrier)) : "memory");
}
// Arrives, and lets the phase wait for so many more bytes of copies.
MLC_DEVICE void mlc_mbarrier_expect(void* barrier, long bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mlc_shared_address(barrier)),
                 "r"((int)bytes)
                 : "memory");
}
// At the barrier of the same place in block `rank` of the cluster.
MLC_DEVICE void mlc_mbarrier_arrive_cluster(void* barrier, long rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}\n" ::"r"(mlc_shared_address(barrier)),
        "r"((int)rank)
        : "memory");
}
// Until the phase of this parity is complete: the latest one, or the one before the running one.
MLC_DEVICE void mlc_mbarrier_wait(void* barrier, long parity) {
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait_%=;\n}\n" ::"r"(mlc_shared_address(barrier)),
        "r"((int)parity)
        : "memory");
}
// The same where other blocks of the cluster arrive or write: their stores before arriving are visible after it.
MLC_DEVICE void mlc_mbarrier_wait_cluster(void* barrier, long parity) {
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra wait_%=;\n}\n" ::"r"(mlc_shared_address(barrier)),
        "r"((int)parity)
        : "memory");
}
// What this thread has written to shared memory is what the copy engine and wgmma read afterwards.
MLC_DEVICE void mlc_fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same for global memory as well.
MLC_DEVICE void mlc_fence_async_all() {
    asm volatile("fence.proxy.async;" ::: "memory");
}
// Barrier `id` (1 to 15; 0 is the block's) of so many threads, whole warps.
MLC_DEVICE void mlc_named_barrier(long id, long threads) {
    asm volatile("bar.sync %0, %1;" ::"r"((int)id), "r"((int)threads) : "memory");
}
// The same without waiting.
MLC_DEVICE void mlc_named_barrier_arrive(long id, long threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"((int)id), "r"((int)threads) : "memory");
}

#else

MLC_DEVICE void mlc_mbarrier_init(void* barrier, long arrivals) {
    mlc::emu::mbarrier_init(barrier, (unsigned)arrivals);
}
MLC_DEVICE void mlc_mbarrier_fence_init() {
    mlc::emu::fence_mbarrier_init();
}
MLC_DEVICE void mlc_mbarrier_arrive(void* barrier) {
    mlc::emu::mbarrier_arrive(barrier);
}
MLC_DEVICE void mlc_mbarrier_expect(void* barrier, long bytes) {
    mlc::emu::mbarrier_arrive_expect_tx(barrier, (unsigned)bytes);
}
MLC_DEVICE void mlc_mbarrier_arrive_cluster(void* barrier, long rank) {
    mlc::emu::mbarrier_arrive(mlc::emu::cluster_map(barrier, (unsigned)rank));
}
MLC_DEVICE void mlc_mbarrier_wait(void* barrier, long parity) {
    mlc::emu::mbarrier_wait(barrier, (unsigned)parity & 1);
}
MLC_DEVICE void mlc_mbarrier_wait_cluster(void* barrier, long parity) {
    mlc::emu::mbarrier_wait(barrier, (unsigned)parity & 1);
}
MLC_DEVICE void mlc_fence_async() {
    mlc::emu::fence_proxy_async();
}
MLC_DEVICE void mlc_fence_async_all() {
    mlc::emu::fence_proxy_async();
}
MLC_DEVICE void mlc_named_barrier(long id, long threads) {
    mlc::emu::named_barrier_sync((unsigned)id, (unsigned)threads);
}
MLC_DEVICE void mlc_named_barrier_arrive(long id, long threads) {
    mlc::emu::named_barrier_arrive((unsigned)id, (unsigned)threads);
}

#endif
