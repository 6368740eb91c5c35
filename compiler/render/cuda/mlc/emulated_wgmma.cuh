// For the C++ body of wgmma: what the hardware makes of a matrix descriptor, and the product of a warpgroup.
#pragma once
#include "emulated.cuh"

#ifndef __CUDACC__

namespace mlc::emu {

// A matrix descriptor taken apart (PTX ISA, "Matrix Descriptor Format"), in bytes: rows of `width` bytes, one below the
// other; groups of 8 rows `down` apart, and what is right of a row's end `right` away. `mask` is of the address bits
// that the swizzle changes.
struct MatrixView {
    unsigned start, right, down, width, mask;
};
MLC_UNCHECKED __noinline__ static MatrixView take_apart(unsigned long long descriptor, bool k_major) {
    const unsigned leading = (unsigned)(descriptor >> 16 & 0x3fff) << 4, stride = (unsigned)(descriptor >> 32 & 0x3fff) << 4,
                   kind = (unsigned)(descriptor >> 62);
    if (descriptor & (3ull << 14 | 3ull << 30 | 7ull << 46 | 0x3ffull << 52))
        fail("bits of a matrix descriptor are set that mean nothing", "matrix descriptor");
    if (descriptor >> 49 & 7) fail("a matrix descriptor has a base offset, which is not emulated", "matrix descriptor");
    MatrixView view{(unsigned)(descriptor & 0x3fff) << 4, leading, stride, kind ? 256u >> kind : 16, 0};
    if (!kind) {
        if (!k_major) view.right = stride, view.down = leading;
        return view;
    }
    view.mask = view.width - 16;
    const unsigned pattern = 8 * view.width;
    if (view.start % pattern >= view.width)
        fail("a swizzled operand begins amid 8 rows of its pattern", "matrix descriptor");
    if (view.down % pattern) fail("groups of 8 rows are not whole patterns of the swizzle apart", "matrix descriptor");
    if (!k_major && view.right % pattern)  // along k one row holds all, and the hardware does not look at it
        fail("panels are not whole patterns of the swizzle apart", "matrix descriptor");
    return view;
}

// The operand of which 32 bytes along k are read, as numbers: to[row * row_step + k * k_step].
template <typename T, typename Acc>
MLC_UNCHECKED __noinline__ static void gather_operand(Acc* to, unsigned long long descriptor, bool k_major, int rows,
                                                      int row_step, int k_step) {
    constexpr int PIECE = 16 / sizeof(T), DEPTH = 32 / sizeof(T);
    const MatrixView view = take_apart(descriptor, k_major);
    const char* const window = own_window();
    const unsigned lines = k_major ? rows : DEPTH, pieces = (k_major ? DEPTH : rows) / PIECE, abreast = view.width / 16;
    const int line_step = k_major ? row_step : k_step, across_step = k_major ? k_step : row_step;
    for (unsigned line = 0; line < lines; line++) {
        const unsigned below = view.start + line / 8 * view.down + line % 8 * view.width;
        for (unsigned piece = 0; piece < pieces; piece++) {
            unsigned at = below + piece / abreast * view.right + piece % abreast * 16;
            at = (at ^ (at >> 3 & view.mask)) % WINDOW;
            wgmma_read(window + at, 16);
            const T* const from = (const T*)(window + at);
            Acc* const next = to + line * line_step + (int)piece * PIECE * across_step;
            for (int i = 0; i < PIECE; i++) next[i * across_step] = element(from[i]);
        }
    }
}

template <typename Acc>
struct WgmmaOperands {
    Acc* acc;
    const void* held;  // a in registers
    unsigned long long a, b;
    int accumulate;
};

// Element i of a thread's accumulators, in a tile of N columns.
template <int N>
MLC_DEVICE int accumulator(int thread, int i) {
    return (thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// HELD: a is in registers.
template <int N, typename T, bool HELD, bool TA, bool TB, typename Acc>
MLC_DEVICE void wgmma(const WgmmaOperands<Acc>& operands, const char* name, int line) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "n is a multiple of 8 up to 256");
    wgmma_registers(operands.acc, N / 2 * sizeof(Acc));
    group_collective(
        warp() & ~3u, 4, name, &operands, nullptr,
        [](Lanes& lanes) MLC_UNCHECKED {
            constexpr int DEPTH = 32 / sizeof(T);
            Acc a[64 * DEPTH], b[DEPTH * N], sum[64 * N];
            const WgmmaOperands<Acc>& first = *(const WgmmaOperands<Acc>*)lanes.in[0];
            for (int t = 0; t < 128; t++) {
                const WgmmaOperands<Acc>& mine = *(const WgmmaOperands<Acc>*)lanes.in[t];
                if (mine.a != first.a || mine.b != first.b || mine.accumulate != first.accumulate)
                    fail("wgmma: threads of the warpgroup name different operands");
                for (int i = 0; i < N / 2; i++) sum[accumulator<N>(t, i)] = first.accumulate ? mine.acc[i] : 0;
                if constexpr (HELD) gather_left<16, DEPTH>(a + t / 32 * 16 * DEPTH, (const T*)mine.held, t % 32);
            }
            if constexpr (!HELD) gather_operand<T>(a, first.a, !TA, 64, DEPTH, 1);
            gather_operand<T>(b, first.b, !TB, N, 1, N);
            product(sum, a, b, 64, N, DEPTH);
            for (int t = 0; t < 128; t++) {
                Acc* const acc = ((const WgmmaOperands<Acc>*)lanes.in[t])->acc;
                for (int i = 0; i < N / 2; i++) acc[i] = sum[accumulator<N>(t, i)];
            }
        },
        line);
}

}  // namespace mlc::emu

#endif
