// Tensor instructions of a warp (mma.sync) and the moves of their operands (ldmatrix, stmatrix).
// Fragments are arrays in registers, in the order of the rows of compiler/targets/instructions.py.
#pragma once
#include "emulated.cuh"

#ifndef __CUDACC__

namespace mlc::emu {

// Word (row r, words 0 to 3) of matrix j lies at the address that lane 8 j + r passed. Lane l has word l % 4 of row l /
// 4; transposed, it has column l / 4 of rows 2 (l % 4) and the next.
template <int COUNT, bool TRANSPOSED, bool STORE>
MLC_DEVICE void move_matrices(unsigned address, void* fragment, const char* name, int line) {
    void* row = nullptr;
    if (lane() < 8 * COUNT) {
        row = shared_pointer(own_address(address));
        if (address & 15) fail("a row of a matrix is not at a multiple of 16 bytes");
        if (STORE)
            write(row, 16);
        else
            read(row, 16);
    }
    warp_collective(
        ~0u, name, row, fragment,
        [](Lanes& lanes) MLC_UNCHECKED {
            for (int l = 0; l < 32; l++)
                for (int j = 0; j < COUNT; j++)
                    for (int half = 0; half < 2; half++) {
                        const int r = TRANSPOSED ? 2 * (l % 4) + half : l / 4,
                                  c = TRANSPOSED ? l / 4 : 2 * (l % 4) + half;
                        void* shared = (unsigned short*)lanes.in[8 * j + r] + c;
                        void* held = (unsigned short*)lanes.out[l] + 2 * j + half;
                        __builtin_memcpy(STORE ? shared : held, STORE ? held : shared, 2);
                    }
        },
        line);
}

}  // namespace mlc::emu

#endif

// COUNT (1, 2 or 4) matrices of 8 rows of 16 bytes; this thread passes the address of row `lane` of all of them, and
// gets two neighbours of 16 bits (or one value of 32) of each: COUNT * 4 bytes.
template <int COUNT, typename T>
MLC_DEVICE void mlc_ldmatrix(T* fragment, const void* row MLC_LINE_OF_CALL) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "ldmatrix loads 1, 2 or 4 matrices");
    const unsigned at = mlc_shared_address(row);
#ifdef __CUDACC__
    unsigned r[COUNT];
    if constexpr (COUNT == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
    else if constexpr (COUNT == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    memcpy(fragment, r, sizeof r);
#else
    mlc::emu::move_matrices<COUNT, false, false>(at, fragment, "ldmatrix", line);
#endif
}

// The same for 16-bit types with rows and columns exchanged: two neighbours of a column.
template <int COUNT, typename T>
MLC_DEVICE void mlc_ldmatrix_transposed(T* fragment, const void* row MLC_LINE_OF_CALL) {
    static_assert(sizeof(T) == 2 && (COUNT == 1 || COUNT == 2 || COUNT == 4), "ldmatrix transposes 1, 2 or 4 matrices");
    const unsigned at = mlc_shared_address(row);
#ifdef __CUDACC__
    unsigned r[COUNT];
    if constexpr (COUNT == 1)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(at) : "memory");
    else if constexpr (COUNT == 2)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    memcpy(fragment, r, sizeof r);
#else
    mlc::emu::move_matrices<COUNT, true, false>(at, fragment, "ldmatrix.trans", line);
#endif
}

// The reverse of mlc_ldmatrix.
template <int COUNT, typename T>
MLC_DEVICE void mlc_stmatrix(void* row, const T* fragment MLC_LINE_OF_CALL) {
    static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "stmatrix stores 1, 2 or 4 matrices");
    const unsigned at = mlc_shared_address(row);
#ifdef __CUDACC__
    unsigned r[COUNT];
    memcpy(r, fragment, sizeof r);
    if constexpr (COUNT == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(r[0]) : "memory");
    else if constexpr (COUNT == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(r[0]), "r"(r[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r[0]), "r"(r[1]),
                     "r"(r[2]), "r"(r[3])
                     : "memory");
#else
    mlc::emu::move_matrices<COUNT, false, true>(at, (void*)fragment, "stmatrix", line);
#endif
}

// The reverse of mlc_ldmatrix_transposed.
template <int COUNT, typename T>
MLC_DEVICE void mlc_stmatrix_transposed(void* row, const T* fragment MLC_LINE_OF_CALL) {
    static_assert(sizeof(T) == 2 && (COUNT == 1 || COUNT == 2 || COUNT == 4), "stmatrix transposes 1, 2 or 4 matrices");
    const unsigned at = mlc_shared_address(row);
#ifdef __CUDACC__
    unsigned r[COUNT];
    memcpy(r, fragment, sizeof r);
    if constexpr (COUNT == 1)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at), "r"(r[0]) : "memory");
    else if constexpr (COUNT == 2)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(r[0]), "r"(r[1])
                     : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(r[0]),
                     "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
#else
    mlc::emu::move_matrices<COUNT, true, true>(at, (void*)fragment, "stmatrix.trans", line);
#endif
}

#ifdef __CUDACC__

// mma.sync with operands of one 32-bit register each for b, or with two, four: what the element types and K ask for.
#define MLC_MMA_4_2(types, shape, d, a, b)                                          \
    asm volatile("mma.sync.aligned." shape ".row.col." types                        \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : MLC_MMA_ACC(d)                                                   \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#define MLC_MMA_2_1(types, shape, d, a, b)                                                                          \
    asm volatile("mma.sync.aligned." shape ".row.col." types " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
                 : MLC_MMA_ACC(d)                                                                                   \
                 : "r"((a)[0]), "r"((a)[1]), "r"((b)[0]))

// acc += a . b; T is the element type of a and b: mlc_bf16, mlc_f16, mlc_f8e4m3, mlc_f8e5m2, float (read as tf32;
// acc float), signed char (acc int). M is 16, N is 8.
template <int M, int N, int K, typename T>
MLC_DEVICE void mlc_mma_sync(float* acc, const T* a, const T* b) {
    static_assert(M == 16 && N == 8 && (K == 32 / sizeof(T) || K == 16 / sizeof(T)), "no such mma.sync");
    unsigned left[4], right[2];
    memcpy(left, a, M * K * sizeof(T) / 32);
    memcpy(right, b, N * K * sizeof(T) / 32);
#define MLC_MMA_ACC(d) "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3])
    if constexpr (mlc_same<T, mlc_bf16> && K == 16)
        MLC_MMA_4_2("f32.bf16.bf16.f32", "m16n8k16", acc, left, right);
    else if constexpr (mlc_same<T, mlc_bf16>)
        MLC_MMA_2_1("f32.bf16.bf16.f32", "m16n8k8", acc, left, right);
    else if constexpr (mlc_same<T, mlc_f16> && K == 16)
        MLC_MMA_4_2("f32.f16.f16.f32", "m16n8k16", acc, left, right);
    else if constexpr (mlc_same<T, mlc_f16>)
        MLC_MMA_2_1("f32.f16.f16.f32", "m16n8k8", acc, left, right);
    else if constexpr (mlc_same<T, mlc_f8e4m3>)
        MLC_MMA_4_2("f32.e4m3.e4m3.f32", "m16n8k32", acc, left, right);
    else if constexpr (mlc_same<T, mlc_f8e5m2>)
        MLC_MMA_4_2("f32.e5m2.e5m2.f32", "m16n8k32", acc, left, right);
    else if constexpr (K == 8)
        MLC_MMA_4_2("f32.tf32.tf32.f32", "m16n8k8", acc, left, right);
    else
        MLC_MMA_2_1("f32.tf32.tf32.f32", "m16n8k4", acc, left, right);
#undef MLC_MMA_ACC
}

template <int M, int N, int K>
MLC_DEVICE void mlc_mma_sync(int* acc, const signed char* a, const signed char* b) {
    static_assert(M == 16 && N == 8 && (K == 32 || K == 16), "no such mma.sync");
    unsigned left[4], right[2];
    memcpy(left, a, M * K / 32);
    memcpy(right, b, N * K / 32);
#define MLC_MMA_ACC(d) "+r"((d)[0]), "+r"((d)[1]), "+r"((d)[2]), "+r"((d)[3])
    if constexpr (K == 32)
        MLC_MMA_4_2("s32.s8.s8.s32", "m16n8k32", acc, left, right);
    else
        MLC_MMA_2_1("s32.s8.s8.s32", "m16n8k16", acc, left, right);
#undef MLC_MMA_ACC
}

// The shapes of M = 16 are those of sm_90.
template <int M, int N, int K>
MLC_DEVICE void mlc_mma_sync(double* d, const double* a, const double* b) {
    static_assert(N == 8 && ((M == 8 && K == 4) || (M == 16 && (K == 4 || K == 8 || K == 16))), "no such mma.sync");
    if constexpr (M == 8)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(d[0]), "+d"(d[1])
                     : "d"(a[0]), "d"(b[0]));
    else if constexpr (K == 4)
        asm volatile(
            "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
            : "d"(a[0]), "d"(a[1]), "d"(b[0]));
    else if constexpr (K == 8)
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
            : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
            : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
            : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
              "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

#undef MLC_MMA_4_2
#undef MLC_MMA_2_1

#else

template <int M, int N, int K, typename T, typename Acc>
MLC_DEVICE void mlc_mma_sync(Acc* acc, const T* a, const T* b, int line = __builtin_LINE()) {
    struct Operands {
        Acc* acc;
        const T *a, *b;
    } operands{acc, a, b};
    mlc::emu::warp_collective(
        ~0u, "mma.sync", &operands, nullptr,
        [](mlc::emu::Lanes& lanes) MLC_UNCHECKED {
            constexpr int PACK = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
            Acc left[M * K], right[K * N], sum[M * N];
            for (int lane = 0; lane < 32; lane++) {
                const Operands& held = *(const Operands*)lanes.in[lane];
                const int row = lane / 4, column = lane % 4;
                mlc::emu::gather_left<M, K>(left, held.a, lane);
                for (int i = 0; i < K / 4; i++)
                    right[(i / PACK * 4 * PACK + column * PACK + i % PACK) * N + row] = mlc::emu::element(held.b[i]);
                for (int h = 0; h < M / 8; h++)
                    __builtin_memcpy(sum + (row + 8 * h) * N + 2 * column, held.acc + 2 * h, 2 * sizeof(Acc));
            }
            mlc::emu::product(sum, left, right, M, N, K);
            for (int lane = 0; lane < 32; lane++) {
                const Operands& held = *(const Operands*)lanes.in[lane];
                for (int h = 0; h < M / 8; h++)
                    __builtin_memcpy(held.acc + 2 * h, sum + (lane / 4 + 8 * h) * N + 2 * (lane % 4), 2 * sizeof(Acc));
            }
        },
        line);
}

#endif
