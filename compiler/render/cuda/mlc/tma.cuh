// The copy engine: boxes of a tensor that a map describes, or runs of bytes, between global and shared memory.
//
// One thread issues a copy. A load says on an mbarrier when it has landed: expect all bytes of the box there, also
// where it hangs over the tensor's edge; what lies outside reads as zero and is not written. Coordinates are elements,
// innermost first, where the first is a multiple of 16 bytes, and of stores none is negative: else a GPU finds the
// instruction illegal. Shared memory is at a multiple of 128 bytes, with a swizzle of 8 times its span.
#pragma once
#include "convert.cuh"
#include "mbarrier.cuh"

#ifdef __CUDACC__

MLC_DEVICE void mlc_tma_prefetch(const mlc_tensor_map& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The shared memory of the block itself. Hopper's assemblers want the cluster's spelling; without clusters that costs a
// test of every address, and a call where it fails.
#if __CUDA_ARCH__ >= 1200 && __CUDACC_VER_MAJOR__ >= 13
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
}

// The same into the shared memory of every block of the cluster whose bit is set, each with its own barrier.
template <typename... At>
MLC_DEVICE void mlc_tma_load_multicast(void* to, const mlc_tensor_map& map, void* barrier, long blocks,
                                       At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned target = mlc_shared_address(to), signal = mlc_shared_address(barrier);
    if constexpr (RANK == 1)
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"((unsigned short)blocks), "r"(at[0])
            : "memory");
    else if constexpr (RANK == 2)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"((unsigned short)blocks), "r"(at[0]), "r"(at[1])
            : "memory");
    else if constexpr (RANK == 3)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"((unsigned short)blocks), "r"(at[0]), "r"(at[1]), "r"(at[2])
            : "memory");
    else if constexpr (RANK == 4)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"((unsigned short)blocks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
            : "memory");
    else if constexpr (RANK == 5)
        asm volatile(
            "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(target),
            "l"(&map), "r"(signal), "h"((unsigned short)blocks), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
            "r"(at[4])
            : "memory");
}

// The box at `from` to these coordinates, as part of the thread's current group of copies out of shared memory.
template <typename... At>
MLC_DEVICE void mlc_tma_store(const mlc_tensor_map& map, const void* from, At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned source = mlc_shared_address(from);
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
}

// The same, added to what is there; T is the element type of the map: float, int, mlc_f16 or mlc_bf16.
template <typename T, typename... At>
MLC_DEVICE void mlc_tma_add(const mlc_tensor_map& map, const void* from, At... coordinates) {
    constexpr int RANK = sizeof...(At);
    static_assert(RANK >= 1 && RANK <= 5, "a tensor map has 1 to 5 axes");
    const int at[] = {(int)coordinates...};
    const unsigned source = mlc_shared_address(from);
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
}

// So many bytes, a multiple of 16, between addresses at multiples of 16.
MLC_DEVICE void mlc_bulk_load(void* to, const void* from, long bytes, void* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     mlc_shared_address(to)),
                 "l"(from), "r"((int)bytes), "r"(mlc_shared_address(barrier))
                 : "memory");
}
MLC_DEVICE void mlc_bulk_store(void* to, const void* from, long bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(mlc_shared_address(from)),
                 "r"((int)bytes)
                 : "memory");
}

// Ends the group of this thread's copies out of shared memory.
MLC_DEVICE void mlc_bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until all but the latest PENDING groups have read their sources, which may then be overwritten.
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Until all but the latest PENDING groups are written.
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

#else

namespace mlc::emu {

// Hands the runtime the pieces of a box, 16 bytes of shared memory at a time, so that a swizzle can move each; `some`
// of them make a call.
constexpr int SOME_PIECES = 64;

struct Box {
    const mlc_tensor_map& map;
    const long* at;

    // Where the element at these places of the box is, or null outside of the tensor.
    MLC_UNCHECKED char* find(const unsigned* place) const {
        const char* p = map.base;
        for (unsigned d = 0; d < map.rank; d++) {
            const long x = at[d] + (long)place[d] * map.steps[d];
            if (x < 0 || x >= map.dims[d]) return nullptr;
            p += x * map.strides[d];
        }
        return (char*)p;
    }
};

// Calls `each(shared, global, bytes)` for runs of a box that stay together on both sides; global is null outside.
template <class F>
MLC_UNCHECKED MLC_DEVICE void walk_box(const mlc_tensor_map& map, void* shared, const long* at, F each) {
    const Box box{map, at};
    const unsigned row = map.box[0] * map.element, mask = map.swizzle ? map.swizzle - 16 : 0;
    unsigned long rows = 1;
    for (unsigned d = 1; d < map.rank; d++) rows *= map.box[d];
    unsigned place[5] = {};
    for (unsigned long r = 0; r < rows; r++) {
        unsigned long rest = r;
        for (unsigned d = 1; d < map.rank; d++) place[d] = rest % map.box[d], rest /= map.box[d];
        for (unsigned byte = 0; byte < row; byte += 16) {
            unsigned long target = (unsigned long)shared + r * row + byte;
            target ^= target >> 3 & mask;
            const unsigned bytes = row - byte < 16 ? row - byte : 16;
            // Elements inside of the tensor, those outside before them, and those behind.
            unsigned from = 0;
            while (from < bytes) {
                place[0] = (byte + from) / map.element;
                char* const p = box.find(place);
                unsigned to = from + map.element;
                for (; to < bytes; to += map.element) {
                    place[0] = (byte + to) / map.element;
                    if ((box.find(place) != nullptr) != (p != nullptr)) break;
                }
                each((char*)target + from, p, to - from);
                from = to;
            }
        }
    }
}

MLC_UNCHECKED MLC_DEVICE void check_box(const mlc_tensor_map& map, const void* shared, const long* at, int rank) {
    const unsigned align = map.swizzle > 16 ? 8 * map.swizzle : 128;
    if ((unsigned)rank != map.rank) fail("a tensor map takes as many coordinates as it has axes");
    if ((unsigned long)shared & 127) fail("a tile of a tensor copy is not at a multiple of 128 bytes");
    if ((unsigned long)shared % align) fail("a swizzled tile is not at a multiple of 8 times its span");
    if (at[0] * map.element % 16) fail("a box begins amid 16 bytes along the innermost axis");
}

MLC_DEVICE void load_box(void* to, const mlc_tensor_map& map, void* barrier, const long* at, int rank) {
    check_box(map, to, at, rank);
    Piece pieces[SOME_PIECES];
    unsigned count = 0, bytes = 0;
    walk_box(map, to, at, [&](char* shared, char* global, unsigned size) MLC_UNCHECKED {
        if (count == SOME_PIECES) {
            async_load(pieces, count, barrier, bytes);
            count = bytes = 0;
        }
        pieces[count++] = {shared, global, size};
        bytes += size;
    });
    async_load(pieces, count, barrier, bytes);
}

MLC_DEVICE void store_box(const mlc_tensor_map& map, const void* from, const long* at, int rank, Apply* apply) {
    check_box(map, from, at, rank);
    for (int d = 0; d < rank; d++)
        if (at[d] < 0) fail("a box is stored to before the beginning of an axis");
    Piece pieces[SOME_PIECES];
    unsigned count = 0;
    walk_box(map, (void*)from, at, [&](char* shared, char* global, unsigned size) MLC_UNCHECKED {
        if (!global) return;
        if (count == SOME_PIECES) {
            async_store(pieces, count, apply);
            count = 0;
        }
        pieces[count++] = {global, shared, size};
    });
    if (count) async_store(pieces, count, apply);
}

MLC_DEVICE float sum_of(float a, float b) {
    return a + b;
}
MLC_DEVICE int sum_of(int a, int b) {
    return (int)((unsigned)a + (unsigned)b);
}
MLC_DEVICE mlc_bf16 sum_of(mlc_bf16 a, mlc_bf16 b) {
    return {mlc_to_bf16(mlc_from_bf16(a.bits) + mlc_from_bf16(b.bits))};
}
MLC_DEVICE mlc_f16 sum_of(mlc_f16 a, mlc_f16 b) {
    return {mlc_to_f16(mlc_from_f16(a.bits) + mlc_from_f16(b.bits))};
}
template <typename T>
MLC_UNCHECKED __noinline__ void add_elements(void* to, const void* from, unsigned bytes) {
    for (unsigned i = 0; i < bytes / sizeof(T); i++) ((T*)to)[i] = sum_of(((T*)to)[i], ((const T*)from)[i]);
}

}  // namespace mlc::emu

MLC_DEVICE void mlc_tma_prefetch(const mlc_tensor_map&) {
}

template <typename... At>
MLC_DEVICE void mlc_tma_load(void* to, const mlc_tensor_map& map, void* barrier, At... coordinates) {
    const long at[] = {(long)coordinates...};
    mlc::emu::load_box(to, map, barrier, at, sizeof...(At));
}
template <typename... At>
MLC_DEVICE void mlc_tma_load_multicast(void* to, const mlc_tensor_map& map, void* barrier, long blocks,
                                       At... coordinates) {
    const long at[] = {(long)coordinates...};
    for (unsigned rank = 0; rank < 16; rank++)
        if (blocks >> rank & 1)
            mlc::emu::load_box(mlc::emu::cluster_map(to, rank), map, mlc::emu::cluster_map(barrier, rank), at,
                               sizeof...(At));
}
template <typename... At>
MLC_DEVICE void mlc_tma_store(const mlc_tensor_map& map, const void* from, At... coordinates) {
    const long at[] = {(long)coordinates...};
    mlc::emu::store_box(map, from, at, sizeof...(At), nullptr);
}
template <typename T, typename... At>
MLC_DEVICE void mlc_tma_add(const mlc_tensor_map& map, const void* from, At... coordinates) {
    const long at[] = {(long)coordinates...};
    mlc::emu::store_box(map, from, at, sizeof...(At), &mlc::emu::add_elements<T>);
}
MLC_DEVICE void mlc_bulk_load(void* to, const void* from, long bytes, void* barrier) {
    if (((unsigned long)to | (unsigned long)from | (unsigned long)bytes) & 15)
        mlc::emu::fail("a bulk copy's addresses and bytes are multiples of 16");
    const mlc::emu::Piece piece{to, from, (unsigned)bytes};
    mlc::emu::async_load(&piece, 1, barrier, (unsigned)bytes);
}
MLC_DEVICE void mlc_bulk_store(void* to, const void* from, long bytes) {
    if (((unsigned long)to | (unsigned long)from | (unsigned long)bytes) & 15)
        mlc::emu::fail("a bulk copy's addresses and bytes are multiples of 16");
    const mlc::emu::Piece piece{to, from, (unsigned)bytes};
    mlc::emu::async_store(&piece, 1);
}
MLC_DEVICE void mlc_bulk_commit() {
    mlc::emu::bulk_commit();
}
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait_read() {
    mlc::emu::bulk_wait(PENDING, true);
}
template <int PENDING>
MLC_DEVICE void mlc_bulk_wait() {
    mlc::emu::bulk_wait(PENDING, false);
}

#endif
