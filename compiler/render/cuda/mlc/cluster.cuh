// Blocks of a cluster: their shared memory as one (sm_90), and barriers of all their threads.
//
// A block leaves no earlier than all others have done with its shared memory: end with mlc_cluster_barrier.
#pragma once
#include "memory.cuh"

#ifdef __CUDACC__

// Stands before the name of a kernel whose blocks come in clusters of so many.
#define MLC_CLUSTER(x, y, z) __cluster_dims__(x, y, z)

// This block's place in its cluster, and how many there are.
MLC_DEVICE long mlc_cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
MLC_DEVICE long mlc_cluster_size() {
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
// All threads of all blocks arrive before any goes on; what each wrote before is what the others read after.
MLC_DEVICE void mlc_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
MLC_DEVICE void mlc_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same place in the shared memory of block `rank`, to be read and written like any other.
template <typename T>
MLC_DEVICE T* mlc_cluster_map(T* p, long rank) {
    unsigned long there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"((int)rank));
    return (T*)there;
}
// Four bytes to the shared memory of block `rank`; they count as four bytes of the barrier there, at the same place as
// `barrier` here, and are visible to who waits for it.
template <typename T>
MLC_DEVICE void mlc_cluster_store_async(T* to, T value, void* barrier, long rank) {
    static_assert(sizeof(T) == 4, "st.async stores four bytes");
    unsigned bits;
    memcpy(&bits, &value, 4);
    asm volatile(
        "{\n.reg .b32 place, signal;\nmapa.shared::cluster.u32 place, %0, %3;\nmapa.shared::cluster.u32 signal, %1, "
        "%3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %2, [signal];\n}\n" ::"r"(
            (unsigned)__cvta_generic_to_shared(to)),
        "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(bits), "r"((int)rank)
        : "memory");
}

#else

#define MLC_CLUSTER(x, y, z)

MLC_DEVICE long mlc_cluster_rank() {
    return mlc::emu::cluster_rank();
}
MLC_DEVICE long mlc_cluster_size() {
    return mlc::emu::cluster_size();
}
MLC_DEVICE void mlc_cluster_arrive() {
    mlc::emu::cluster_arrive();
}
MLC_DEVICE void mlc_cluster_wait() {
    mlc::emu::cluster_wait();
}
template <typename T>
MLC_DEVICE T* mlc_cluster_map(T* p, long rank) {
    return (T*)mlc::emu::cluster_map(p, (unsigned)rank);
}
template <typename T>
MLC_DEVICE void mlc_cluster_store_async(T* to, T value, void* barrier, long rank) {
    static_assert(sizeof(T) == 4, "st.async stores four bytes");
    mlc::emu::store_async(mlc_cluster_map(to, rank), &value, 4, mlc_cluster_map((char*)barrier, rank));
}

#endif

MLC_DEVICE void mlc_cluster_barrier() {
    mlc_cluster_arrive();
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
