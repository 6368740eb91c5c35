// For the C++ bodies of the copy engine: a tensor map's box as pieces of memory, and what the hardware asks of one.
#pragma once
#include "convert.cuh"

#ifndef __CUDACC__

namespace mlc::emu {

// Hands the runtime the pieces of a box, 16 bytes of shared memory at a time, so that a swizzle can move each; `some`
// of them make a call.
constexpr int SOME_PIECES = 64;

struct Box {
    const mlc_tensor_map& map;
    const int* at;

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
MLC_UNCHECKED MLC_DEVICE void walk_box(const mlc_tensor_map& map, void* shared, const int* at, F each) {
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

MLC_UNCHECKED MLC_DEVICE void check_box(const mlc_tensor_map& map, const void* shared, const int* at, int rank) {
    const unsigned align = map.swizzle > 16 ? 8 * map.swizzle : 128;
    if ((unsigned)rank != map.rank) fail("a tensor map takes as many coordinates as it has axes");
    if ((unsigned long)shared & 127) fail("a tile of a tensor copy is not at a multiple of 128 bytes");
    if ((unsigned long)shared % align) fail("a swizzled tile is not at a multiple of 8 times its span");
    if (at[0] * (int)map.element % 16) fail("a box begins amid 16 bytes along the innermost axis");
}

MLC_UNCHECKED __noinline__ static void load_box(unsigned address, const mlc_tensor_map& map, unsigned barrier, const int* at, int rank) {
    void* const to = shared_pointer(address);
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

MLC_UNCHECKED __noinline__ static void load_own_box(unsigned address, const mlc_tensor_map& map, unsigned barrier, const int* at, int rank) {
    load_box(own_address(address), map, own_address(barrier), at, rank);
}

MLC_UNCHECKED __noinline__ static void store_box(const mlc_tensor_map& map, unsigned address, const int* at, int rank, Apply* apply) {
    void* const from = shared_pointer(own_address(address));
    check_box(map, from, at, rank);
    for (int d = 0; d < rank; d++)
        if (at[d] < 0) fail("a box is stored to before the beginning of an axis");
    Piece pieces[SOME_PIECES];
    unsigned count = 0;
    walk_box(map, from, at, [&](char* shared, char* global, unsigned size) MLC_UNCHECKED {
        if (!global) return;
        if (count == SOME_PIECES) {
            async_store(pieces, count, apply);
            count = 0;
        }
        pieces[count++] = {global, shared, size};
    });
    if (count) async_store(pieces, count, apply);
}

// So many bytes, a multiple of 16, between addresses at multiples of 16.
MLC_UNCHECKED MLC_DEVICE void check_bytes(unsigned shared, const void* global, int bytes) {
    if ((shared | (unsigned long)global | (unsigned long)bytes) & 15 || bytes < 0)
        fail("a bulk copy's addresses and bytes are multiples of 16");
}
MLC_DEVICE void load_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
    check_bytes(to, from, bytes);
    const Piece piece{shared_pointer(own_address(to)), from, (unsigned)bytes};
    async_load(&piece, 1, own_address(barrier), (unsigned)bytes);
}
MLC_DEVICE void store_bytes(void* to, unsigned from, int bytes) {
    check_bytes(from, to, bytes);
    const Piece piece{to, shared_pointer(own_address(from)), (unsigned)bytes};
    async_store(&piece, 1);
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

#endif
