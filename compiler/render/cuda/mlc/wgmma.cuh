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
#include "emulated_wgmma.cuh"

enum mlc_axes { mlc_mk, mlc_km, mlc_kn, mlc_nk };

// The descriptor of an operand (PTX ISA, "Matrix Descriptor Format"): in units of 16 bytes where it begins and two
// strides, between panels and between groups of 8 rows, in an order that depends on the kind; then the kind of swizzle.
// Addresses in shared memory have less than 18 bits, but above them, in clusters, the block's rank: it must not get into
// the stride. What products differ by is given in bytes, `moved`, and added last, to the descriptor that they then have in
// common: in 64 bits, since ptxas runs products one after another (C7514) for some sums of 32, and for sums in place of
// the "or".
template <int SPAN, bool K_MAJOR>
MLC_DEVICE unsigned long long mlc_matrix_descriptor(const void* p, long panel, long moved) {
    static_assert(SPAN == 0 || SPAN == 32 || SPAN == 64 || SPAN == 128, "no such swizzle");
    const unsigned rows = 8 * (SPAN ? SPAN : 16), kind = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
    const bool swapped = SPAN == 0 && !K_MAJOR;
    const unsigned leading = swapped ? rows : (unsigned)panel, stride = swapped ? (unsigned)panel : rows;
    const unsigned address = mlc_shared_address(p);
    const unsigned begin = (address & 0x3ffff) >> 4 | (leading & 0x3ffff) >> 4 << 16;
    const unsigned long long first = (unsigned long long)begin |
                                     (unsigned long long)((stride & 0x3ffff) >> 4 | kind << 30) << 32;
    return first + ((unsigned long)moved >> 4);
}

#ifdef __CUDACC__

#include "wgmma_shapes.cuh"

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
#define MLC_F8E4M3(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_ALONG_K(mlc_f8e4m3, float, MLC_FLOATS, "k32.f32.e4m3.e4m3", ", 1, 1", n, p0, p1, p2, p3, p4, p5)
#define MLC_F8E5M2(n, p0, p1, p2, p3, p4, p5, p6) \
    MLC_WGMMA_ALONG_K(mlc_f8e5m2, float, MLC_FLOATS, "k32.f32.e5m2.e5m2", ", 1, 1", n, p0, p1, p2, p3, p4, p5)
MLC_WGMMA_SHAPES(MLC_BF16)
MLC_WGMMA_SHAPES(MLC_F16)
MLC_WGMMA_SHAPES(MLC_TF32)
MLC_WGMMA_SHAPES(MLC_I8)
MLC_WGMMA_SHAPES(MLC_F8E4M3)
MLC_WGMMA_SHAPES(MLC_F8E5M2)
#undef MLC_BF16
#undef MLC_F16
#undef MLC_TF32
#undef MLC_I8
#undef MLC_F8E4M3
#undef MLC_F8E5M2
#undef MLC_WGMMA_TRANSPOSING
#undef MLC_WGMMA_ALONG_K
#undef MLC_PREDICATE

#else

// What the hardware does with two descriptors, or with registers and one.
template <int N, typename T>
struct mlc_wgmma_instruction {
    template <int TA, int TB, typename Acc>
    MLC_DEVICE void shared(Acc* d, unsigned long long a, unsigned long long b, int accumulate, int line) {
        const mlc::emu::WgmmaOperands<Acc> operands{d, nullptr, a, b, accumulate};
        mlc::emu::wgmma<N, T, false, TA, TB>(operands, "wgmma", line);
    }
    template <int TB, typename Acc>
    MLC_DEVICE void registers(Acc* d, const T* a, unsigned long long b, int accumulate, int line) {
        const mlc::emu::WgmmaOperands<Acc> operands{d, a, 0, b, accumulate};
        mlc::emu::wgmma_registers(a, 16);
        mlc::emu::wgmma<N, T, true, false, TB>(operands, "wgmma.rs", line);
    }
};

#endif

// acc[64][N] += a . b, or = where `accumulate` is 0; T is the type of a and b (float is read as tf32).
template <int N, typename T, mlc_axes A, int A_SPAN, mlc_axes B, int B_SPAN, typename Acc>
MLC_DEVICE void mlc_wgmma(Acc* acc, const void* a, long a_panel, const void* b, long b_panel,
                          long accumulate, long a_moved = 0, long b_moved = 0 MLC_LINE_OF_CALL) {
    static_assert((A == mlc_mk || A == mlc_km) && (B == mlc_kn || B == mlc_nk), "a is mk or km, b kn or nk");
    static_assert(sizeof(T) == 2 || (A == mlc_mk && B == mlc_nk), "only 16-bit types are transposed");
    mlc_wgmma_instruction<N, T>::template shared<A == mlc_km, B == mlc_kn>(
        acc, mlc_matrix_descriptor<A_SPAN, A == mlc_mk>(a, a_panel, a_moved),
        mlc_matrix_descriptor<B_SPAN, B == mlc_nk>(b, b_panel, b_moved), accumulate != 0 MLC_LINE);
}
// The same with a in registers.
template <int N, mlc_axes B, int B_SPAN, typename T, typename Acc>
MLC_DEVICE void mlc_wgmma_rs(Acc* acc, const T* a, const void* b, long b_panel, long accumulate,
                             long b_moved = 0 MLC_LINE_OF_CALL) {
    static_assert(B == mlc_kn || B == mlc_nk, "b is kn or nk");
    static_assert(sizeof(T) == 2 || B == mlc_nk, "only 16-bit types are transposed");
#ifdef __CUDACC__
    unsigned left[4];
    memcpy(left, a, sizeof left);
#else
    const T* const left = a;  // where the thread has them, to be watched there
#endif
    mlc_wgmma_instruction<N, T>::template registers<B == mlc_kn>(
        acc, left, mlc_matrix_descriptor<B_SPAN, B == mlc_nk>(b, b_panel, b_moved), accumulate != 0 MLC_LINE);
}

// Pins accumulators here: otherwise the compiler may move copies of them to where the hardware owns them.
#ifdef __CUDACC__
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
// The same for operands of 16 bits: otherwise their computation may move between products that use others (C7519).
template <int COUNT, typename T>
MLC_DEVICE void mlc_wgmma_hold(T* left) {
    static_assert(sizeof(T) == 2, "pairs of 16 bits");
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        unsigned pair;
        memcpy(&pair, left + i, sizeof pair);
        asm volatile("" : "+r"(pair)::"memory");
        memcpy(left + i, &pair, sizeof pair);
    }
}
#else
template <int COUNT, typename Acc>
MLC_DEVICE void mlc_wgmma_hold(Acc*) {
}
#endif
// Before the first instruction, and after other code has written COUNT registers of `acc` or an operand in registers.
template <int COUNT, typename Acc>
MLC_DEVICE void mlc_wgmma_fence(Acc* acc) {
    mlc_wgmma_hold<COUNT>(acc);
#ifdef __CUDACC__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    mlc::emu::wgmma_fence();
#endif
}
MLC_DEVICE void mlc_wgmma_commit() {
#ifdef __CUDACC__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    mlc::emu::wgmma_commit();
#endif
}
// Waits until at most the latest PENDING groups are in flight, whose accumulators may not be touched yet.
template <int PENDING>
MLC_DEVICE void mlc_wgmma_wait() {
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#else
    mlc::emu::wgmma_wait(PENDING);
#endif
}
// States that none are in flight. ptxas infers that from a wait only, and would add one in the loop before (C7517).
MLC_DEVICE void mlc_wgmma_idle() {
#ifdef __CUDACC__
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#else
    mlc::emu::wgmma_idle();
#endif
}
