// The copy engine: boxes of a tensor that a map describes, or runs of bytes, between global and shared memory.
//
// One thread issues a copy. A load says on an mbarrier when it has landed: expect all bytes of the box there, also
// where it hangs over the tensor's edge; what lies outside reads as zero and is not written. Coordinates are elements,
// innermost first, where the first is a multiple of 16 bytes, and of stores none is negative: else a GPU finds the
// instruction illegal. Shared memory is at a multiple of 128 bytes, with a swizzle of 8 times its span.
#pragma once
#include "emulated_copies.cuh"
#include "mbarrier.cuh"

MLC_DEVICE void mlc_tma_prefetch(const mlc_tensor_map& map) {
#ifdef __CUDACC__
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#else
    (void)map;
#endif
}

// The state space of the block's own shared memory. Assemblers for Hopper require shared::cluster; without clusters, that
// costs a test of every address, and a call if it fails.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 && __CUDACC_VER_MAJOR__ >= 13
#define MLC_OWN_BLOCK "shared::cta"
#else
#define MLC_OWN_BLOCK "shared::cluster"
#endif

// The box at these 1 to 5 coordinates into `to`.
template <typename... At>
MLC_DEVICE void mlc_tma_load(void* to, const mlc_tensor_map& map, void* barrier, At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned target = mlc_shared_address(to), signal = mlc_shared_address(barrier);
#ifdef __CUDACC__
    if constexpr (RANK == 1)
        asm volatile(
            "cp.async.bulk.tensor.1d." MLC_OWN_BLOCK ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], "
            "[%2];" ::"r"(target),
            "l"(&map), "r"(signal), "r"(at[0])
            : "memory");
    else if constexpr (RANK == 2)
        asm volatile(
            "cp.async.bulk.tensor.2d." MLC_OWN_BLOCK ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
            "[%2];" ::"r"(target),
            "l"(&map), "r"(signal), "r"(at[0]), "r"(at[1])
            : "memory");
    else if constexpr (RANK == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d." MLC_OWN_BLOCK ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
            "%5}], [%2];" ::"r"(target),
            "l"(&map), "r"(signal), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else if constexpr (RANK == 4)
        asm volatile(
            "cp.async.bulk.tensor.4d." MLC_OWN_BLOCK ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
            "%6}], [%2];" ::"r"(target),
            "l"(&map), "r"(signal), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
    else if constexpr (RANK == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d." MLC_OWN_BLOCK ".global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
            "%6, %7}], [%2];" ::"r"(target),
            "l"(&map), "r"(signal), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
            : "memory");
#else
    mlc::emu::load_own_box(target, map, signal, at, RANK);
#endif
}

// The same into the shared memory of every block of the cluster whose bit is set, each with its own barrier.
template <typename... At>
MLC_DEVICE void mlc_tma_load_multicast(void* to, const mlc_tensor_map& map, void* barrier, long blocks,
                                       At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned target = mlc_shared_address(to), signal = mlc_shared_address(barrier);
    const unsigned short block_mask = (unsigned short)blocks;
#ifdef __CUDACC__
    if constexpr (RANK == 1)
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"(block_mask), "r"(at[0])
            : "memory");
    else if constexpr (RANK == 2)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"(block_mask), "r"(at[0]), "r"(at[1])
            : "memory");
    else if constexpr (RANK == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"(block_mask), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else if constexpr (RANK == 4)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"(block_mask), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
    else if constexpr (RANK == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"(block_mask), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
            "r"(at[4])
            : "memory");
#else
    for (unsigned rank = 0; rank < 16; rank++)
        if (block_mask >> rank & 1)
            mlc::emu::load_box(mlc::emu::cluster_address(target, rank), map, mlc::emu::cluster_address(signal, rank), at,
                               RANK);
#endif
}

// The box at `from` to these coordinates, as part of the thread's current group of copies out of shared memory.
template <typename... At>
MLC_DEVICE void mlc_tma_store(const mlc_tensor_map& map, const void* from, At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned source = mlc_shared_address(from);
#ifdef __CUDACC__
    if constexpr (RANK == 1)
        asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map),
                     "r"(source), "r"(at[0])
                     : "memory");
    else if constexpr (RANK == 2)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
                     "r"(source), "r"(at[0]), "r"(at[1])
                     : "memory");
    else if constexpr (RANK == 3)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
                     "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2])
                     : "memory");
    else if constexpr (RANK == 4)
        asm volatile(
            "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
            "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
    else if constexpr (RANK == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
            "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
            : "memory");
#else
    mlc::emu::store_box(map, source, at, RANK, nullptr);
#endif
}

// The same, added to what is there; T is the element type of the map: float, int, mlc_f16 or mlc_bf16.
template <typename T, typename... At>
MLC_DEVICE void mlc_tma_add(const mlc_tensor_map& map, const void* from, At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned source = mlc_shared_address(from);
#ifdef __CUDACC__
    if constexpr (RANK == 1)
        asm volatile(
            "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map),
            "r"(source), "r"(at[0])
            : "memory");
    else if constexpr (RANK == 2)
        asm volatile(
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
            "r"(source), "r"(at[0]), "r"(at[1])
            : "memory");
    else if constexpr (RANK == 3)
        asm volatile(
            "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                &map),
            "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else if constexpr (RANK == 4)
        asm volatile(
            "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                &map),
            "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
    else if constexpr (RANK == 5)
        asm volatile(
            "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::
                "l"(&map),
            "r"(source), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
            : "memory");
#else
    mlc::emu::store_box(map, source, at, RANK, &mlc::emu::add_elements<T>);
#endif
}

// So many bytes, a multiple of 16, between addresses at multiples of 16.
MLC_DEVICE void mlc_bulk_load(void* to, const void* from, long bytes, void* barrier) {
    const unsigned target = mlc_shared_address(to), signal = mlc_shared_address(barrier);
    const int count = (int)bytes;
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
                 "l"(from), "r"(count), "r"(signal)
                 : "memory");
#else
    mlc::emu::load_bytes(target, from, count, signal);
#endif
}
MLC_DEVICE void mlc_bulk_store(void* to, const void* from, long bytes) {
    const unsigned source = mlc_shared_address(from);
    const int count = (int)bytes;
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(source), "r"(count)
                 : "memory");
#else
    mlc::emu::store_bytes(to, source, count);
#endif
}

// Ends the group of this thread's copies out of shared memory.
MLC_DEVICE void mlc_bulk_commit() {
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
    mlc::emu::bulk_commit();
#endif
}
// Until all but the latest PENDING groups have read their sources, which may then be overwritten.
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait_read() {
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
#else
    mlc::emu::bulk_wait(PENDING, true);
#endif
}
// Until all but the latest PENDING groups are written.
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait() {
#ifdef __CUDACC__
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
#else
    mlc::emu::bulk_wait(PENDING, false);
#endif
}
