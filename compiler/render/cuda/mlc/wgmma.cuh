// Tensor instructions of a warpgroup (wgmma, sm_90a): the accumulator in registers, b in shared memory, a in either.
//
// An operand in shared memory lies in panels: rows of SPAN bytes, the span of its swizzle (16 bytes for 0), below each
// other without a gap; a wider operand has several panels, `panel` bytes apart. The rows of mk and nk run along m or n,
// those of km and kn along k. A panel begins at a multiple of 8 * SPAN bytes; a row may be entered in its middle, and
// at every eighth row. Each instruction takes 32 bytes along k.
//
// All threads of a warpgroup call these. From mlc_wgmma_fence to the wait for its group, the accumulators and a
// register operand belong to the hardware.
#pragma once
#include "emulated.cuh"

enum mlc_axes { mlc_mk, mlc_km, mlc_kn, mlc_nk };

#ifdef __CUDACC__
#include "wgmma_shapes.cuh"

// The descriptor of an operand (PTX ISA, "Matrix Descriptor Format"): in units of 16 bytes where it begins and two
// strides, between panels and between groups of 8 rows, in an order that depends on the kind; then the kind of swizzle.
// Addresses in shared memory have less than 18 bits, but above them, in clusters, the block's rank: it must not get into
// the stride. With a sum in place of the "or", ptxas runs the products one after another (C7514).
template <int SPAN, bool K_MAJOR>
MLC_DEVICE unsigned long long mlc_matrix_descriptor(const void* p, long panel) {
    static_assert(SPAN == 0 || SPAN == 32 || SPAN == 64 || SPAN == 128, "no such swizzle");
    const unsigned rows = 8 * (SPAN ? SPAN : 16), kind = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
    const bool swapped = SPAN == 0 && !K_MAJOR;
    const unsigned leading = swapped ? rows : (unsigned)panel, stride = swapped ? (unsigned)panel : rows;
    const unsigned address = (unsigned)__cvta_generic_to_shared(p);
    return (unsigned long long)((address & 0x3ffff) >> 4 | (leading & 0x3ffff) >> 4 << 16) |
           (unsigned long long)((stride & 0x3ffff) >> 4 | kind << 30) << 32;
}

template <int N, typename T>
struct mlc_wgmma_instruction;

#define MLC_FLOATS(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MLC_INTS(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define MLC_PREDICATE(i) "{\n.reg .pred p;\nsetp.ne.b32 p, %" #i ", 0;\n"

// The operands after the accumulators are numbered p0, p1, ..: two descriptors, the predicate, two transpositions; or
// the four registers of a, a descriptor, the predicate, a transposition.
#define MLC_WGMMA_TRANSPOSING(T, kind, n, p0, p1, p2, p3, p4, p5, p6)                                       \
    template <>                                                                                             \
    struct mlc_wgmma_instruction<n, T> {                                                                    \
        template <int TA, int TB>                                                                           \
        MLC_DEVICE void shared(float* d, unsigned long long a, unsigned long long b, int accumulate) {      \
            asm volatile(MLC_PREDICATE(p2) "wgmma.mma_async.sync.aligned.m64n" #n kind " {" MLC_NAMES_##n   \
                         "}, %" #p0 ", %" #p1 ", p, 1, 1, %" #p3 ", %" #p4 ";\n}\n"                         \
                         : MLC_OPERANDS_##n(MLC_FLOATS, d)                                                  \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(TA), "n"(TB));                              \
        }                                                                                                   \
        template <int TB>                                                                                   \
        MLC_DEVICE void registers(float* d, const unsigned (&a)[4], unsigned long long b, int accumulate) { \
            asm volatile(MLC_PREDICATE(p5) "wgmma.mma_async.sync.aligned.m64n" #n kind " {" MLC_NAMES_##n   \
                         "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";\n}\n"   \
                         : MLC_OPERANDS_##n(MLC_FLOATS, d)                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TB));   \
        }                                                                                                   \
    };
// Types whose operands both run along k; `signs` are immediates that only floats have.
#define MLC_WGMMA_ALONG_K(T, Acc, four, kind, signs, n, p0, p1, p2, p3, p4, p5)                           \
    template <>                                                                                           \
    struct mlc_wgmma_instruction<n, T> {                                                                  \
        template <int TA, int TB>                                                                         \
        MLC_DEVICE void shared(Acc* d, unsigned long long a, unsigned long long b, int accumulate) {      \
            static_assert(!TA && !TB, "only 16-bit types are transposed");                                \
            asm volatile(MLC_PREDICATE(p2) "wgmma.mma_async.sync.aligned.m64n" #n kind " {" MLC_NAMES_##n \
                         "}, %" #p0 ", %" #p1 ", p" signs ";\n}\n"                                        \
                         : MLC_OPERANDS_##n(four, d)                                                      \
                         : "l"(a), "l"(b), "r"(accumulate));                                              \
        }                                                                                                 \
        template <int TB>                                                                                 \
        MLC_DEVICE void registers(Acc* d, const unsigned (&a)[4], unsigned long long b, int accumulate) { \
            static_assert(!TB, "only 16-bit types are transposed");                                       \
            asm volatile(MLC_PREDICATE(p5) "wgmma.mma_async.sync.aligned.m64n" #n kind " {" MLC_NAMES_##n \
                         "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p" signs ";\n}\n"        \
                         : MLC_OPERANDS_##n(four, d)                                                      \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));          \
        }                                                                                                 \
    };
#define MLC_BF16(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_TRANSPOSING(mlc_bf16, "k16.f32.bf16.bf16", n, p0, p1, p2, p3, p4, p5, p6)
#define MLC_F16(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_TRANSPOSING(mlc_f16, "k16.f32.f16.f16", n, p0, p1, p2, p3, p4, p5, p6)
#define MLC_TF32(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_ALONG_K(float, float, MLC_FLOATS, "k8.f32.tf32.tf32", ", 1, 1", n, p0, p1, p2, p3, p4, p5)
#define MLC_I8(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_ALONG_K(signed char, int, MLC_INTS, "k32.s32.s8.s8", "", n, p0, p1, p2, p3, p4, p5)
MLC_WGMMA_SHAPES(MLC_BF16)
MLC_WGMMA_SHAPES(MLC_F16)
MLC_WGMMA_SHAPES(MLC_TF32)
MLC_WGMMA_SHAPES(MLC_I8)
#undef MLC_BF16
#undef MLC_F16
#undef MLC_TF32
#undef MLC_I8
#undef MLC_WGMMA_TRANSPOSING
#undef MLC_WGMMA_ALONG_K
#undef MLC_PREDICATE

// acc[64][N] += a . b, or = where `accumulate` is 0; T is the type of a and b (float is read as tf32).
template <int N, typename T, mlc_axes A, int A_SPAN, mlc_axes B, int B_SPAN, typename Acc>
MLC_DEVICE void mlc_wgmma(Acc* acc, const void* a, long a_panel, const void* b, long b_panel, long accumulate) {
    static_assert((A == mlc_mk || A == mlc_km) && (B == mlc_kn || B == mlc_nk), "a is mk or km, b kn or nk");
    mlc_wgmma_instruction<N, T>::template shared<A == mlc_km, B == mlc_kn>(
        acc, mlc_matrix_descriptor<A_SPAN, A == mlc_mk>(a, a_panel),
        mlc_matrix_descriptor<B_SPAN, B == mlc_nk>(b, b_panel), accumulate != 0);
}
// The same with a in registers.
template <int N, mlc_axes B, int B_SPAN, typename T, typename Acc>
MLC_DEVICE void mlc_wgmma_rs(Acc* acc, const T* a, const void* b, long b_panel, long accumulate) {
    static_assert(B == mlc_kn || B == mlc_nk, "b is kn or nk");
    unsigned left[4];
    memcpy(left, a, sizeof left);
    mlc_wgmma_instruction<N, T>::template registers<B == mlc_kn>(
        acc, left, mlc_matrix_descriptor<B_SPAN, B == mlc_nk>(b, b_panel), accumulate != 0);
}

// Ties accumulators to this point: else the compiler may move copies of them to where the hardware owns them.
template <int COUNT>
MLC_DEVICE void mlc_wgmma_hold(float* acc) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(acc[i])::"memory");
}
template <int COUNT>
MLC_DEVICE void mlc_wgmma_hold(int* acc) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(acc[i])::"memory");
}
// Before the first instruction, and after other code has written COUNT registers of `acc` or an operand in registers.
template <int COUNT, typename Acc>
MLC_DEVICE void mlc_wgmma_fence(Acc* acc) {
    mlc_wgmma_hold<COUNT>(acc);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
MLC_DEVICE void mlc_wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most PENDING groups, the latest, are under way; their accumulators may then not be touched yet.
template <int PENDING>
MLC_DEVICE void mlc_wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#else

namespace mlc::emu {

// The operand in shared memory of which 32 bytes along k are read, as numbers: to[row * row_step + k * k_step].
template <typename T, int SPAN, bool K_MAJOR, typename Acc>
MLC_UNCHECKED MLC_DEVICE void gather_operand(Acc* to, const void* p, long panel, int rows, int row_step, int k_step) {
    constexpr int WIDTH = SPAN ? SPAN : 16, PIECE = 16 / sizeof(T), DEPTH = 32 / sizeof(T);
    constexpr unsigned long MASK = SPAN ? SPAN - 16 : 0;
    const int lines = K_MAJOR ? rows : DEPTH, bytes = (K_MAJOR ? DEPTH : rows) * (int)sizeof(T);
    for (int line = 0; line < lines; line++)
        for (int byte = 0; byte < bytes; byte += 16) {
            unsigned long at = (unsigned long)p + byte / WIDTH * panel + line * WIDTH + byte % WIDTH;
            at ^= at >> 3 & MASK;
            wgmma_read((const void*)at, 16);
            for (int i = 0; i < PIECE; i++) {
                const int across = byte / (int)sizeof(T) + i, row = K_MAJOR ? line : across,
                          k = K_MAJOR ? across : line;
                to[row * row_step + k * k_step] = element(((const T*)at)[i]);
            }
        }
}

template <typename Acc>
struct WgmmaOperands {
    Acc* acc;
    const void *a, *b;
    long a_panel, b_panel, accumulate;
};

// `left(to, lanes)` fills a[64][DEPTH].
template <int N, typename T, mlc_axes B, int B_SPAN, typename Acc, typename Left>
MLC_DEVICE void wgmma(const WgmmaOperands<Acc>& operands, const char* name, int line, Left left) {
    static_assert(N % 8 == 0 && N >= 8 && N <= 256, "n is a multiple of 8 up to 256");
    wgmma_registers(operands.acc, N / 2 * sizeof(Acc));
    group_collective(
        warp() & ~3u, 4, name, &operands, nullptr,
        [left](Lanes& lanes) MLC_UNCHECKED {
            constexpr int DEPTH = 32 / sizeof(T);
            Acc a[64 * DEPTH], b[DEPTH * N], sum[64 * N];
            const WgmmaOperands<Acc>& first = *(const WgmmaOperands<Acc>*)lanes.in[0];
            for (int t = 0; t < 128; t++) {
                const WgmmaOperands<Acc>& held = *(const WgmmaOperands<Acc>*)lanes.in[t];
                if (held.b != first.b || held.accumulate != first.accumulate)
                    fail("wgmma: threads of the warpgroup name different operands");
                const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
                for (int i = 0; i < N / 2; i++)
                    sum[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2] = first.accumulate ? held.acc[i] : 0;
            }
            left(a, lanes);
            gather_operand<T, B_SPAN, B == mlc_nk>(b, first.b, first.b_panel, N, 1, N);
            product(sum, a, b, 64, N, DEPTH);
            for (int t = 0; t < 128; t++) {
                Acc* const acc = ((const WgmmaOperands<Acc>*)lanes.in[t])->acc;
                const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
                for (int i = 0; i < N / 2; i++) acc[i] = sum[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + column + i % 2];
            }
        },
        line);
}

}  // namespace mlc::emu

template <int N, typename T, mlc_axes A, int A_SPAN, mlc_axes B, int B_SPAN, typename Acc>
MLC_DEVICE void mlc_wgmma(Acc* acc, const void* a, long a_panel, const void* b, long b_panel, long accumulate,
                          int line = __builtin_LINE()) {
    const mlc::emu::WgmmaOperands<Acc> operands{acc, a, b, a_panel, b_panel, accumulate};
    mlc::emu::wgmma<N, T, B, B_SPAN>(operands, "wgmma", line, [](Acc* to, mlc::emu::Lanes& lanes) MLC_UNCHECKED {
        const auto& first = *(const mlc::emu::WgmmaOperands<Acc>*)lanes.in[0];
        for (int t = 1; t < 128; t++)
            if (((const mlc::emu::WgmmaOperands<Acc>*)lanes.in[t])->a != first.a)
                mlc::emu::fail("wgmma: threads of the warpgroup name different operands");
        mlc::emu::gather_operand<T, A_SPAN, A == mlc_mk>(to, first.a, first.a_panel, 64, 32 / sizeof(T), 1);
    });
}
template <int N, mlc_axes B, int B_SPAN, typename T, typename Acc>
MLC_DEVICE void mlc_wgmma_rs(Acc* acc, const T* a, const void* b, long b_panel, long accumulate,
                             int line = __builtin_LINE()) {
    const mlc::emu::WgmmaOperands<Acc> operands{acc, a, b, 0, b_panel, accumulate};
    mlc::emu::wgmma_registers(a, 16);
    mlc::emu::wgmma<N, T, B, B_SPAN>(operands, "wgmma.rs", line, [](Acc* to, mlc::emu::Lanes& lanes) MLC_UNCHECKED {
        constexpr int DEPTH = 32 / sizeof(T);
        for (int t = 0; t < 128; t++) {
            const T* const held = (const T*)((const mlc::emu::WgmmaOperands<Acc>*)lanes.in[t])->a;
            mlc::emu::gather_left<16, DEPTH>(to + t / 32 * 16 * DEPTH, held, t % 32);
        }
    });
}

template <int COUNT, typename Acc>
MLC_DEVICE void mlc_wgmma_hold(Acc*) {
}
template <int COUNT, typename Acc>
MLC_DEVICE void mlc_wgmma_fence(Acc*) {
    mlc::emu::wgmma_fence();
}
MLC_DEVICE void mlc_wgmma_commit() {
    mlc::emu::wgmma_commit();
}
template <int PENDING>
MLC_DEVICE void mlc_wgmma_wait() {
    mlc::emu::wgmma_wait(PENDING);
}

#endif
