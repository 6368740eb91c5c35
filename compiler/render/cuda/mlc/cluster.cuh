// Blocks of a cluster: their shared memory as one (sm_90), and barriers of all their threads.
//
// A block may not exit before all others are done with its shared memory: end with mlc_cluster_leave.
#pragma once
#include "memory.cuh"

// The cluster size of a kernel, before its name.
#ifdef __CUDACC__
#define MLC_CLUSTER(x, y, z) __cluster_dims__(x, y, z)
#else
#define MLC_CLUSTER(x, y, z)
#endif

// This block's place in its cluster, and how many there are.
MLC_DEVICE long mlc_cluster_rank() {
#ifdef __CUDACC__
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return mlc::emu::cluster_rank();
#endif
}
MLC_DEVICE long mlc_cluster_size() {
#ifdef __CUDACC__
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
#else
    return mlc::emu::cluster_size();
#endif
}
// All threads of all blocks arrive before any goes on; what each wrote before is what the others read after.
MLC_DEVICE void mlc_cluster_arrive() {
#ifdef __CUDACC__
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    mlc::emu::cluster_arrive();
#endif
}
MLC_DEVICE void mlc_cluster_wait() {
#ifdef __CUDACC__
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    mlc::emu::cluster_wait();
#endif
}
// The same without ordering of memory.
MLC_DEVICE void mlc_cluster_arrive_relaxed() {
#ifdef __CUDACC__
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
    mlc::emu::cluster_arrive();
#endif
}
// The same place in the shared memory of block `rank`, to be read and written like any other.
template <typename T>
MLC_DEVICE T* mlc_cluster_map(T* p, long rank) {
    const int block = (int)rank;
#ifdef __CUDACC__
    unsigned long there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(block));
    return (T*)there;
#else
    return (T*)mlc::emu::cluster_map(p, block);
#endif
}
// Four bytes to the shared memory of block `rank`; they count as four bytes of the barrier there, at the same place as
// `barrier` here, and are visible to who waits for it.
template <typename T>
MLC_DEVICE void mlc_cluster_store_async(T* to, T value, void* barrier, long rank) {
    static_assert(sizeof(T) == 4, "st.async stores four bytes");
    const unsigned place = mlc_shared_address(to), signal = mlc_shared_address(barrier);
    const int block = (int)rank;
    unsigned bits;
    memcpy(&bits, &value, 4);
#ifdef __CUDACC__
    asm volatile(
        "{\n.reg .b32 place, signal;\nmapa.shared::cluster.u32 place, %0, %3;\nmapa.shared::cluster.u32 signal, %1, "
        "%3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %2, [signal];\n}\n" ::"r"(place),
        "r"(signal), "r"(bits), "r"(block)
        : "memory");
#else
    mlc::emu::store_async(mlc::emu::cluster_address(place, block), &bits, 4,
                          mlc::emu::cluster_address(signal, block));
#endif
}
// All threads of all blocks arrive before any continues, and then see earlier writes of all to shared memory. Writes to
// global memory are not ordered: waiting for these takes as long as a read from there.
MLC_DEVICE void mlc_cluster_barrier() {
#ifdef __CUDACC__
    asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
#endif
    mlc_cluster_arrive_relaxed();
    mlc_cluster_wait();
#ifdef __CUDACC__
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#endif
}
// The same without ordering of memory, for blocks that have finished reading from each other, before they exit.
MLC_DEVICE void mlc_cluster_leave() {
    mlc_cluster_arrive_relaxed();
    mlc_cluster_wait();
}
// One element of the shared memory of block `rank`.
template <typename T>
MLC_DEVICE T mlc_cluster_load(const T* from, long rank) {
    return *mlc_cluster_map(from, rank);
}
template <typename T>
MLC_DEVICE void mlc_cluster_store(T* to, T value, long rank) {
    *mlc_cluster_map(to, rank) = value;
}
// COUNT neighbouring elements of the shared memory of block `rank` into a thread's own array.
template <int COUNT, typename T>
MLC_DEVICE void mlc_cluster_get(T* to, const T* from, long rank) {
    mlc_load<COUNT>(to, mlc_cluster_map(from, rank));
}
// The same where `wanted`, else zeros.
MLC_PIECES_WHERE(mlc_cluster_piece_where, "ld")
template <int COUNT, typename T>
MLC_DEVICE void mlc_cluster_get_where(T* to, const T* from, long rank, bool wanted) {
    typedef typename mlc_pieces<COUNT, T>::type P;
    static_assert(sizeof(P) >= 4, "partial sums have four bytes or more");
    const P* const there = (const P*)mlc_cluster_map(from, rank);
#pragma unroll
    for (int i = 0; i < mlc_pieces<COUNT, T>::NUMBER; i++) mlc_cluster_piece_where((P*)to + i, there + i, wanted);
}
